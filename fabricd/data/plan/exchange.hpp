// Neighbour exchange: which rank computes which sample of a batch after ranks have swapped some, as
// FabricSampler(exchange=...) does: the rule of fabricshm/torch/_exchange.py, number for number.

#pragma once

#include <cstdint>
#include <vector>

namespace fabricd {

/// What all ranks know.
struct ExchangeRule {
    std::uint64_t seed = 0;
    std::uint64_t epoch = 0;
    std::uint64_t part = 0;  // of kWholeExchange: what a rank swaps after a step
};
inline constexpr std::uint64_t kWholeExchange = std::uint64_t{1} << 32U;

/// How batches are cut from batch `since` on.
struct BatchCut {
    std::uint32_t since = 0;
    std::vector<std::uint32_t> counts;  // samples per rank of a whole batch
    std::vector<std::uint32_t> tail;    // of the last one, where it is smaller
};

/// The places of a batch that is cut by `counts`: those of rank 0, then of rank 1, and so on, after
/// the exchanges of the steps from `since` up to before `batch`.
std::vector<std::uint32_t> exchanged_places(const ExchangeRule& rule, std::uint32_t since,
                                            std::uint32_t batch,
                                            const std::vector<std::uint32_t>& counts);

/// What a rank draws in an epoch, in order and without what a drained rank borrows: global batch n
/// is the n-th run of `batch_size` of `order`, of which each rank has its piece. `cuts` begin with
/// batch 0 and rise; those of a batch have its samples as their sum. O(samples).
std::vector<std::uint32_t> fabric_share(const std::vector<std::uint32_t>& order,
                                        std::uint32_t batch_size, bool drop_last,
                                        const std::vector<BatchCut>& cuts, std::uint32_t rank,
                                        const ExchangeRule& rule);

/// The cut of `total` samples into units of `unit` between ranks of equal shares.
std::vector<std::uint32_t> equal_cut(std::uint32_t total, std::uint32_t unit, std::uint32_t world);

}  // namespace fabricd
