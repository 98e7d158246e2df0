// ParameterSpec: what a set of shared parameters is made of, and where everything lies in its
// memory. Pure; every rank works it out for itself, and what another process could have written
// into the pool is never asked.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/optimise.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricshm {

/// A tensor of the model.
struct Parameter {
    std::string name;                 // for people and files; no two alike
    std::vector<std::int64_t> shape;  // elements, row-major; empty: one element
    std::uint32_t options = 0;        // which of the step's Hyper it is moved by

    std::uint64_t elements() const noexcept;
};

/// The same on all ranks of a group.
struct ParameterSpec {
    std::vector<Parameter> parameters;
    kernels::Rule rule = kernels::Rule::kAdamW;
    kernels::DType gradients = kernels::DType::kF32;  // f32, f16 or bf16
    kernels::DType copy = kernels::DType::kF32;       // f16, bf16; f32: the parameters themselves
    int slots = 0;                                    // ranks that have a gradient in it, at most
};

inline constexpr std::uint32_t kMaxOptions = 1024;
inline constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 40;

/// kInvalid, with a text that names the parameter.
Result<void> check_spec(const ParameterSpec& spec);

/// Two specs that differ have different numbers, all but certainly. Never 0.
std::uint64_t signature_of(const ParameterSpec& spec) noexcept;

/// Elements [begin, end) of the set, of which each array has one at the same index.
struct ElementRange {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;

    std::uint64_t count() const noexcept { return end - begin; }
    bool operator==(const ElementRange&) const = default;
};

/// Parameters begin at multiples of so many elements: a cache line of the narrowest type.
inline constexpr std::uint64_t kParameterAlign = 32;
/// Shards begin at multiples of so many elements, and square sums are taken over so many: they do
/// not depend on how many ranks there are.
inline constexpr std::uint64_t kBlockElements = 1024;

/// No set has more steps: a double counts as far.
inline constexpr std::uint64_t kMaxSteps = std::uint64_t{1} << 53;

/// Where everything lies, in bytes from the start of the set's memory.
struct ParameterLayout {
    std::vector<ElementRange> pieces;    // of the parameters, in their order
    std::vector<ElementRange> segments;  // neighbours with the same options, gaps included
    std::vector<std::uint32_t> options;  // of the segments
    std::uint64_t elements = 0;          // of each array, gaps included; whole blocks

    Bytes slots = 0;       // SlotRecord[spec.slots]
    Bytes logs = 0;        // [spec.slots] undo logs of log_bytes
    Bytes log_bytes = 0;   // of one slot: one array after the other, kLogElements each
    Bytes parameters = 0;  // f32[elements]
    Bytes state[3] = {};   // f32[elements] each, those that the rule has
    int states = 0;
    Bytes copy = 0;             // 0: none
    Bytes gradients = 0;        // [spec.slots] of gradient_stride
    Bytes gradient_stride = 0;  // bytes
    Bytes total = 0;

    /// Of a spec that check_spec() accepts.
    static ParameterLayout of(const ParameterSpec& spec);
};

/// What is stepped at once, and so what an undo log holds. 1 Ki elements of AdamW are 12 KiB of
/// log and as much of parameters and state, which the second level cache keeps.
inline constexpr std::uint64_t kLogElements = 1024;

/// Cuts `elements`, a multiple of kBlockElements, in proportion to `shares` (all equal when empty),
/// in whole blocks. Shares are not negative and not all 0.
std::vector<ElementRange> cut_shards(std::uint64_t elements, const std::vector<double>& shares,
                                     int world);

}  // namespace fabricshm
