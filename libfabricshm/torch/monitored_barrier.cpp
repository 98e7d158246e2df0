// ProcessGroupFabricshm::monitoredBarrier(): which ranks are missing, by number.

#include <sstream>

#include "libfabricshm/torch/process_group.hpp"

namespace fabricshm::torch_backend {
namespace {

using SteadyClock = std::chrono::steady_clock;

const std::vector<std::uint8_t> kPresent{1};
const std::vector<std::uint8_t> kFailed{0};

// By round: keys of earlier ones stay in the store, since no rank knows when all have read them.
std::string round_key(std::uint64_t round, const std::string& who) {
    return "fabricshm/monitored/" + std::to_string(round) + '/' + who;
}

bool arrives(c10d::Store& store, const std::string& key, SteadyClock::time_point deadline) {
    // Asked first: a store's wait() may cost a round trip and a sleep.
    if (store.check({key})) return true;
    const auto left = std::chrono::ceil<Milliseconds>(deadline - SteadyClock::now());
    if (left.count() <= 0) return false;
    try {
        store.wait({key}, left);
        return true;
    } catch (const std::exception&) {  // stores differ in what they throw on a timeout
        return false;
    }
}

std::string listed(const std::vector<int>& ranks) {
    std::ostringstream text;
    text << (ranks.size() == 1 ? "Rank " : "Ranks ");
    for (std::size_t i = 0; i < ranks.size(); ++i) text << (i == 0 ? "" : ", ") << ranks[i];
    return text.str();
}

[[noreturn]] void give_up(c10d::Store& store, std::uint64_t round, Milliseconds limit) {
    // Reported before it raises: the others wait for the outcome.
    store.set(round_key(round, "outcome"), kFailed);
    TORCH_CHECK(false, "[Rank 0]: Rank 0 timed out in monitoredBarrier after ", limit.count(),
                " ms");
}

// Rank 0: collects the others, reports the outcome to them, raises when one is missing.
void wait_for_ranks(c10d::Store& store, int size, std::uint64_t round, Milliseconds limit,
                    bool wait_all_ranks) {
    const auto deadline = SteadyClock::now() + limit;
    std::vector<int> missing;
    for (int rank = 1; rank < size; ++rank) {
        // The time was used up by ranks before this one: it is not to blame.
        if (!wait_all_ranks && SteadyClock::now() >= deadline) give_up(store, round, limit);
        if (arrives(store, round_key(round, std::to_string(rank)), deadline)) continue;
        missing.push_back(rank);
        if (!wait_all_ranks) break;
    }
    store.set(round_key(round, "outcome"), missing.empty() ? kPresent : kFailed);
    TORCH_CHECK(missing.empty(), "[Rank 0]: ", listed(missing),
                " failed to pass monitoredBarrier in ", limit.count(), " ms");
}

}  // namespace

void ProcessGroupFabricshm::monitoredBarrier(const c10d::BarrierOptions& options,
                                             bool wait_all_ranks) {
    // Counted on each rank alone, in step as all collectives are.
    ending_.check("fabricshm:monitored_barrier");
    const std::uint64_t round = monitored_barriers_++;
    const Milliseconds limit = timeout_of(options.timeout);
    if (getRank() == 0) return wait_for_ranks(*store_, getSize(), round, limit, wait_all_ranks);

    store_->set(round_key(round, std::to_string(getRank())), kPresent);
    const std::string outcome = round_key(round, "outcome");
    const bool heard = arrives(*store_, outcome, SteadyClock::now() + limit);
    // The first words are those that programs written for gloo expect.
    TORCH_CHECK(heard && store_->get(outcome) == kPresent, "Rank ", getRank(),
                " successfully reached monitoredBarrier, but received errors while waiting for "
                "send/recv from rank 0; rank 0 says which is missing");
}

}  // namespace fabricshm::torch_backend
