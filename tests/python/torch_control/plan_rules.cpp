// The cache's rules of what a sampler draws, for exchange_test.py to call through ctypes.

#include <algorithm>

#include "fabricd/data/plan/exchange.hpp"
#include "fabricd/data/plan/sample_order.hpp"

using namespace fabricd;

extern "C" __attribute__((visibility("default"))) int plan_share(
    std::uint32_t samples, std::uint64_t order_seed, std::uint32_t batch_size, int drop_last,
    std::uint32_t world, std::uint32_t rank, std::uint64_t seed, std::uint64_t epoch,
    std::uint64_t part, std::uint32_t cuts, const std::uint32_t* since, const std::uint32_t* counts,
    const std::uint32_t* tails, std::uint32_t* share) {
    std::vector<BatchCut> given(cuts);
    for (std::uint32_t cut = 0; cut < cuts; ++cut) {
        given[cut].since = since[cut];
        given[cut].counts.assign(counts + cut * world, counts + (cut + 1) * world);
        given[cut].tail.assign(tails + cut * world, tails + (cut + 1) * world);
    }
    const auto drawn = fabric_share(sample_order({samples, order_seed, true}), batch_size,
                                    drop_last != 0, given, rank, {seed, epoch, part});
    std::copy(drawn.begin(), drawn.end(), share);
    return static_cast<int>(drawn.size());
}

extern "C" __attribute__((visibility("default"))) void plan_equal_cut(std::uint32_t total,
                                                                      std::uint32_t unit,
                                                                      std::uint32_t world,
                                                                      std::uint32_t* counts) {
    const auto cut = equal_cut(total, unit, world);
    std::copy(cut.begin(), cut.end(), counts);
}
