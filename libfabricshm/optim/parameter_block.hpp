// What the ranks of a parameter set share besides its arrays: how far each has come in the step
// under way. docs/optimisers.md has the protocol, tests/models/step.pml checks it.
//
//   ParameterHeader | SlotRecord[slots] | undo logs | parameters | state | copy | gradients[slots]

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libfabricshm/base/units.hpp"

namespace fabricshm {

inline constexpr std::uint64_t kParameterMagic = 0x3153524150424146;  // "FABPARS1"
inline constexpr std::uint32_t kParameterVersion = 2;

/// Written by the rank that makes the set, before any other can find it, but for the words of
/// recovery, which are written between two barriers by rank 0 of the group that recovers.
struct alignas(kCachePair) ParameterHeader {
    std::uint64_t magic;
    std::uint64_t signature;
    Bytes total;
    std::uint64_t slots;
    char pad_[kCachePair - 32];

    // Rises when the set goes over to another group. A rank that finds it changed after it has
    // entered a step does not belong to the set any more, and turns back.
    std::atomic<std::uint64_t> era;
    // All attempts up to this one are decided; `applied` steps had been applied then.
    std::atomic<std::uint64_t> resolved;
    std::atomic<std::uint64_t> applied;
    char pad2_[kCachePair - 24];

    char pad3_[kPageBytes - 2 * kCachePair];
};
static_assert(sizeof(ParameterHeader) == kPageBytes);

/// What one rank shows to the others. Written by that rank; after its death by the one survivor
/// that finishes its shard. Attempts count from 1 and only rise: no word is ever reset, so that a
/// rank that comes late cannot take an old value for a new one.
struct alignas(kCachePair) SlotRecord {
    // Its gradients of this attempt are complete, and it reads no parameters.
    std::atomic<std::uint64_t> ready;
    std::atomic<std::uint32_t> ready_sleepers;
    std::uint32_t reserved;
    // What the rank calls the step with, for even and odd attempts, stored before `ready`: when
    // calls differ a rank goes on at once, and may be one attempt ahead of one that still compares.
    std::uint64_t signature[2];
    double weight[2];  // of its gradient in the sum; NaN: one of the mean
    // Of ranks that step each for itself (stale_steps.hpp): the version that the rank computes, or
    // is about to. Falls to 0 between two barriers only.
    std::atomic<std::uint64_t> version;
    std::atomic<std::uint32_t> version_sleepers;
    std::uint32_t reserved3;
    char pad_[kCachePair - 64];

    // Its shard's square sum is there (steps that clip or check).
    std::atomic<std::uint64_t> measured;
    std::atomic<std::uint32_t> measured_sleepers;
    std::uint32_t finite;  // 1: all of the merged gradient of its shard is
    char pad2_[kCachePair - 16];

    // Its shard is done.
    std::atomic<std::uint64_t> done;
    std::atomic<std::uint32_t> done_sleepers;
    char pad3_[kCachePair - 12];

    // 1 while its process may touch the set.
    std::atomic<std::uint32_t> inside;
    std::uint32_t reserved2;
    // Of its process, from attach() until the set is closed: the pid in the lower half, so that
    // survivors can distinguish dead from slow; above it the era in which it took the slot, so that
    // a process that opens a set twice and closes the first does not close the second. 0: none.
    std::atomic<std::uint64_t> owner;
    std::uint64_t start_time;
    std::uint64_t pid_namespace;
    char pad4_[kCachePair - 32];

    // Steps that are applied once attempt `done` is done by all; stored before `done`, so that
    // others that find the set after a death of all ranks count right.
    std::atomic<std::uint64_t> applied;
    // The attempt that `cursor` and `logged` are about.
    std::atomic<std::uint64_t> started;
    // Elements of the shard before `cursor` are stepped. Those from `cursor` to `logged` may be:
    // their old values are in the log.
    std::atomic<std::uint64_t> cursor;
    std::atomic<std::uint64_t> logged;
    // Of ranks that step each for itself: the slot whose rank steps or copies this shard now, plus
    // 1; 0: none. Under it: how often the shard was stepped so.
    std::atomic<std::uint32_t> holder;
    std::uint32_t reserved4;
    std::atomic<std::uint64_t> served;
    char pad5_[kCachePair - 48];

    // The square sum of the merged gradient of its shard, exactly (base/exact_sum.hpp).
    std::uint64_t square_sum[36];
    char pad6_[3 * kCachePair - 36 * 8];
};
static_assert(sizeof(SlotRecord) == 8 * kCachePair);

}  // namespace fabricshm
