// Post: the bytes that one rank shows to the others in one turn of the flat engines (tiny.cpp,
// flat.cpp). Internal to collective/.

#pragma once

#include <cstddef>

#include "libfabricshm/base/units.hpp"

namespace fabricshm {

struct Operation;

/// Whether `peer` has anything to show: in a broadcast or a scatter the root alone, in a scan all
/// but the last rank, in a barrier none.
bool posts(const Operation& operation, int peer) noexcept;

/// Bytes that `peer` posts of the piece [from, from + stride) of each part; 0 when it posts
/// nothing.
Bytes post_bytes(const Operation& operation, int peer, Bytes from, Bytes stride) noexcept;

/// Where this rank reads its own post: single parts need not be read back from `posted`.
std::byte* own_post(const Operation& operation, std::byte* posted, Bytes from) noexcept;

/// Before this rank reads a peer's post in memory that is not coherent. Of a post with all parts it
/// reads its own part alone.
void acquire_post(const Operation& operation, int peer, const std::byte* posted, Bytes from,
                  Bytes stride) noexcept;

/// Copies this rank's piece to `place`: one part, or all of them at distance `stride`.
void write_post(const Operation& operation, std::byte* place, Bytes from, Bytes stride) noexcept;

}  // namespace fabricshm
