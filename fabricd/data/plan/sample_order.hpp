// In which order an epoch reads the samples of a set: what PyTorch's samplers draw from a seed, so
// that a seed of eight bytes stands for a list of all samples.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fabricd {

/// Sets of more samples have another order in PyTorch (from 2^32 / 20 on).
inline constexpr std::uint32_t kOrderedSamplesMax = 214'748'364;

/// One epoch of a sampler.
struct Epoch {
    std::uint32_t samples = 0;  // of the set, kOrderedSamplesMax at most
    std::uint64_t seed = 0;     // the sampler's and the epoch's number, added
    bool is_shuffled = true;
};

/// The samples of the epoch in the order of FabricSampler, and of DistributedSampler before it cuts
/// them: torch.randperm() with a generator of that seed. O(samples).
std::vector<std::uint32_t> sample_order(const Epoch& epoch);

/// What DistributedSampler gives one rank of that: each `replicas`-th from `rank` on. Without
/// `drop_last` the order is made longer from its start until all ranks get as many, else shorter.
std::vector<std::uint32_t> distributed_share(std::vector<std::uint32_t> order, std::uint32_t rank,
                                             std::uint32_t replicas, bool drop_last);

}  // namespace fabricd
