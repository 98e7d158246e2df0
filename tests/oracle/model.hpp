// The sequential model: what each rank must hold after an operation, from fabricshm.h,
// docs/collectives.md and the rules of docs/kernels.md alone. Nothing here shares code with the
// library.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/oracle/program.hpp"

namespace oracle {

/// Elements that rank `member` of the group gives and receives; 0 where it has no such buffer.
std::uint64_t input_elements(const Operation& operation, int member);
std::uint64_t output_elements(const Operation& operation, int member);
/// The same in bytes.
std::uint64_t input_bytes(const Operation& operation, int member);
std::uint64_t output_bytes(const Operation& operation, int member);
/// Where the part of `member` begins, in elements, in a buffer that holds one part for each.
std::uint64_t part_start(const Operation& operation, int member);

/// Bytes [first, first + bytes) of the input that `member` gives.
void make_input(const Operation& operation, int member, std::uint64_t first, std::uint64_t bytes,
                std::byte* to);

/// What `member` must find in its output: output_bytes() of them.
void make_output(const Operation& operation, int member, std::byte* to);

/// Bytes with which buffers are overwritten: another sequence for each `seed`.
void make_junk(std::uint64_t seed, std::uint64_t bytes, std::byte* to);

}  // namespace oracle
