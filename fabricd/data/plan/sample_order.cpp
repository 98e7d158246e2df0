#include "fabricd/data/plan/sample_order.hpp"

#include <numeric>
#include <random>
#include <utility>

#include "libfabricshm/base/check.hpp"

namespace fabricd {

// Each place is exchanged with one that is not before it, by the remainder of the next number of a
// Mersenne twister of 32 bits, which takes the lower half of a seed. The last place has no choice.
std::vector<std::uint32_t> sample_order(const Epoch& epoch) {
    FABRIC_CHECK(epoch.samples <= kOrderedSamplesMax);
    std::vector<std::uint32_t> order(epoch.samples);
    std::iota(order.begin(), order.end(), 0U);
    if (!epoch.is_shuffled) return order;
    std::mt19937 numbers(static_cast<std::uint32_t>(epoch.seed));
    for (std::uint32_t place = 0; place + 1 < epoch.samples; ++place) {
        const auto number = static_cast<std::uint32_t>(numbers());
        std::swap(order[place], order[place + number % (epoch.samples - place)]);
    }
    return order;
}

std::vector<std::uint32_t> distributed_share(std::vector<std::uint32_t> order, std::uint32_t rank,
                                             std::uint32_t replicas, bool drop_last) {
    FABRIC_CHECK(replicas > 0 && rank < replicas);
    const std::size_t samples = order.size();
    const std::size_t each = drop_last ? samples / replicas : (samples + replicas - 1) / replicas;
    order.resize(each * replicas);
    // More ranks than samples: several times around.
    for (std::size_t at = samples; at < order.size(); ++at) order[at] = order[at % samples];
    std::vector<std::uint32_t> share;
    share.reserve(each);
    for (std::size_t at = rank; at < order.size(); at += replicas) share.push_back(order[at]);
    return share;
}

}  // namespace fabricd
