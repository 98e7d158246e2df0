#include "fabricd/data/plan/exchange.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "libfabricshm/base/check.hpp"

namespace fabricd {

namespace {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15U;

// The finaliser of splitmix64.
std::uint64_t mixed(std::uint64_t number) noexcept {
    number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9U;
    number = (number ^ (number >> 27)) * 0x94d049bb133111ebU;
    return number ^ (number >> 31);
}

/// The numbers of one step.
class StepNumbers {
  public:
    StepNumbers(const ExchangeRule& rule, std::uint64_t step) noexcept {
        for (const std::uint64_t word : {rule.seed, rule.epoch, step}) {
            state_ = mixed((state_ ^ word) + kGolden);
        }
    }
    std::uint64_t next() noexcept {
        state_ += kGolden;
        return mixed(state_);
    }

  private:
    std::uint64_t state_ = 0;
};

/// A batch's places, step by step.
class Places {
  public:
    Places(const ExchangeRule& rule, std::uint32_t since, const std::vector<std::uint32_t>& counts)
        : rule_(rule), step_(since), counts_(counts), starts_(counts.size() + 1, 0) {
        std::partial_sum(counts.begin(), counts.end(), starts_.begin() + 1);
        places_.resize(starts_.back());
        std::iota(places_.begin(), places_.end(), 0U);
    }

    void go_to(std::uint32_t batch) {
        if (rule_.part == 0) return;
        for (; step_ < batch; ++step_) swap_once();
    }
    const std::vector<std::uint32_t>& all() const noexcept { return places_; }
    std::uint32_t start_of(std::uint32_t rank) const noexcept { return starts_[rank]; }

  private:
    // Pairs of a ring that begins at a random rank; of an odd number of ranks one stays alone.
    void swap_once() {
        const auto world = static_cast<std::uint32_t>(counts_.size());
        if (world < 2) return;
        StepNumbers numbers(rule_, step_);
        const auto first = static_cast<std::uint32_t>(numbers.next() % world);
        for (std::uint32_t pair = 0; pair < world / 2; ++pair) {
            const std::uint32_t rank = (first + 2 * pair) % world;
            const std::uint32_t other = (rank + 1) % world;
            const std::uint64_t share = rule_.part * std::min(counts_[rank], counts_[other]);
            const bool one_more = numbers.next() >> 32U < share % kWholeExchange;
            const auto picks = static_cast<std::uint32_t>(share >> 32U) + (one_more ? 1U : 0U);
            for (std::uint32_t pick = 0; pick < picks; ++pick) {
                // In this order, for both take from one row of numbers.
                const std::uint32_t own = choose(rank, pick, numbers);
                const std::uint32_t theirs = choose(other, pick, numbers);
                std::swap(places_[own], places_[theirs]);
            }
        }
    }

    // One of a rank's places that it has not taken yet, put in front of these.
    std::uint32_t choose(std::uint32_t rank, std::uint32_t pick, StepNumbers& numbers) {
        const std::uint32_t front = starts_[rank] + pick;
        const auto taken = static_cast<std::uint32_t>(numbers.next() % (counts_[rank] - pick));
        std::swap(places_[front], places_[front + taken]);
        return front;
    }

    ExchangeRule rule_;
    std::uint32_t step_;
    std::vector<std::uint32_t> counts_;
    std::vector<std::uint32_t> starts_;
    std::vector<std::uint32_t> places_;
};

}  // namespace

std::vector<std::uint32_t> exchanged_places(const ExchangeRule& rule, std::uint32_t since,
                                            std::uint32_t batch,
                                            const std::vector<std::uint32_t>& counts) {
    FABRIC_CHECK(rule.part <= kWholeExchange);
    Places places(rule, since, counts);
    places.go_to(batch);
    return places.all();
}

std::vector<std::uint32_t> fabric_share(const std::vector<std::uint32_t>& order,
                                        std::uint32_t batch_size, bool drop_last,
                                        const std::vector<BatchCut>& cuts, std::uint32_t rank,
                                        const ExchangeRule& rule) {
    FABRIC_CHECK(batch_size > 0 && rule.part <= kWholeExchange);
    FABRIC_CHECK(!cuts.empty() && cuts.front().since == 0);
    const auto whole = static_cast<std::uint32_t>(order.size() / batch_size);
    const auto rest = static_cast<std::uint32_t>(order.size() % batch_size);
    const std::uint32_t batches = whole + (rest > 0 && !drop_last ? 1 : 0);
    std::vector<std::uint32_t> share;
    auto cut = cuts.begin();
    Places places(rule, 0, cut->counts);
    for (std::uint32_t batch = 0; batch < batches; ++batch) {
        const bool is_tail = batch == whole;
        const bool is_new = std::next(cut) != cuts.end() && std::next(cut)->since <= batch;
        if (is_new) ++cut;
        if (is_new && !is_tail) places = Places(rule, cut->since, cut->counts);
        if (is_tail) places = Places(rule, cut->since, cut->tail);
        places.go_to(batch);
        FABRIC_CHECK(places.all().size() == (is_tail ? rest : batch_size));
        for (std::uint32_t at = places.start_of(rank); at < places.start_of(rank + 1); ++at) {
            share.push_back(order[std::size_t{batch} * batch_size + places.all()[at]]);
        }
    }
    return share;
}

std::vector<std::uint32_t> equal_cut(std::uint32_t total, std::uint32_t unit, std::uint32_t world) {
    FABRIC_CHECK(unit > 0 && world > 0);
    const std::uint32_t units = (total + unit - 1) / unit;
    std::vector<std::uint32_t> counts(world);
    std::uint32_t begin = 0;
    for (std::uint32_t rank = 0; rank < world; ++rank) {
        const std::uint32_t own = units / world + (rank < units % world ? 1 : 0);
        const std::uint32_t end = std::min(begin + own * unit, total);
        counts[rank] = end - begin;
        begin = end;
    }
    return counts;
}

}  // namespace fabricd
