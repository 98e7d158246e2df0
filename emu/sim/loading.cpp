#include "emu/sim/loading.hpp"

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <unordered_map>

#include "fabricd/data/blocks/s3_fifo.hpp"
#include "fabricd/data/plan/kept_samples.hpp"
#include "fabricd/data/plan/prefetcher.hpp"
#include "fabricd/data/plan/sample_order.hpp"
#include "libfabricshm/base/check.hpp"

namespace emu {

using fabricshm::Bytes;
using Order = std::vector<std::uint32_t>;

namespace {

constexpr const char* kNames[kLoadingPolicies] = {"lru", "s3-fifo", "farthest", "kept", "plan"};

/// Which samples stay, of those that are read one after the other.
class Keeper {
  public:
    virtual ~Keeper() = default;
    virtual bool has(std::uint32_t sample) const = 0;
    /// It is read, for the `time`-th time of all reads; it was there or was fetched for it.
    virtual void read(std::uint32_t sample, std::size_t time) = 0;
    virtual Bytes used() const = 0;
    /// An epoch begins, in which each sample is read once.
    virtual void begin_epoch(const Order&) {}
    /// A sample is fetched ahead: what the policy has room for.
    virtual Bytes in_place() const { return 0; }
    virtual bool exchange(std::uint32_t) { return false; }
};

class LruKeeper : public Keeper {
  public:
    explicit LruKeeper(std::size_t most) : most_(most) {}
    bool has(std::uint32_t sample) const override { return places_.count(sample) != 0; }
    Bytes used() const override { return order_.size(); }
    void read(std::uint32_t sample, std::size_t) override {
        if (const auto place = places_.find(sample); place != places_.end()) {
            order_.erase(place->second);
        }
        order_.push_back(sample);
        places_[sample] = std::prev(order_.end());
        if (order_.size() <= most_) return;
        places_.erase(order_.front());
        order_.pop_front();
    }

  private:
    std::size_t most_;
    std::list<std::uint32_t> order_;
    std::unordered_map<std::uint32_t, std::list<std::uint32_t>::iterator> places_;
};

class S3FifoKeeper : public Keeper {
  public:
    explicit S3FifoKeeper(std::size_t most) : cache_(most) {}
    bool has(std::uint32_t sample) const override { return cache_.has(sample); }
    Bytes used() const override { return cache_.used(); }
    void read(std::uint32_t sample, std::size_t) override {
        if (cache_.has(sample)) return cache_.touch(sample);
        std::vector<std::uint64_t> evicted;
        cache_.add(
            sample, 1, [](std::uint64_t) { return true; }, evicted);
    }

  private:
    fabricd::S3Fifo cache_;
};

/// Knows all reads to come.
class FarthestKeeper : public Keeper {
  public:
    FarthestKeeper(std::size_t most, const Order& reads) : most_(most), next_use_(reads.size()) {
        std::unordered_map<std::uint32_t, std::size_t> later;
        for (std::size_t at = reads.size(); at-- > 0;) {
            const auto found = later.find(reads[at]);
            // Those that are never read again differ by their number, as all others do.
            next_use_[at] = found != later.end() ? found->second : reads.size() + reads[at];
            later[reads[at]] = at;
        }
    }
    bool has(std::uint32_t sample) const override { return uses_.count(sample) != 0; }
    Bytes used() const override { return by_use_.size(); }
    void read(std::uint32_t sample, std::size_t time) override {
        if (const auto use = uses_.find(sample); use != uses_.end()) by_use_.erase(use->second);
        const std::size_t next = next_use_[time];
        uses_[sample] = next;
        by_use_[next] = sample;
        if (by_use_.size() <= most_) return;
        const auto last = std::prev(by_use_.end());
        uses_.erase(last->second);
        by_use_.erase(last);
    }

  private:
    std::size_t most_;
    std::vector<std::size_t> next_use_;
    std::unordered_map<std::uint32_t, std::size_t> uses_;
    std::map<std::size_t, std::uint32_t> by_use_;
};

class KeptKeeper : public Keeper {
  public:
    explicit KeptKeeper(std::size_t most) : kept_(most) {}
    bool has(std::uint32_t sample) const override { return kept_.has(sample); }
    Bytes used() const override { return kept_.used(); }
    void read(std::uint32_t sample, std::size_t) override {
        kept_.keep(sample, 1);
        kept_.set_spare(sample);
    }
    void begin_epoch(const Order& order) override {
        for (const std::uint32_t sample : order) kept_.set_needed(sample);
    }
    Bytes in_place() const override { return kept_.spare() + kept_.budget() - kept_.used(); }
    bool exchange(std::uint32_t sample) override {
        std::vector<std::uint32_t> gone;
        return kept_.exchange(sample, 1, gone);
    }

  private:
    fabricd::KeptSamples kept_;
};

std::unique_ptr<Keeper> make_keeper(LoadingPolicy policy, std::size_t most, const Order& reads) {
    switch (policy) {
        case LoadingPolicy::kLru:
            return std::make_unique<LruKeeper>(most);
        case LoadingPolicy::kS3Fifo:
            return std::make_unique<S3FifoKeeper>(most);
        case LoadingPolicy::kFarthest:
            return std::make_unique<FarthestKeeper>(most, reads);
        case LoadingPolicy::kKept:
        case LoadingPolicy::kPlan:
            break;
    }
    return std::make_unique<KeptKeeper>(most);
}

/// A source that sends one sample after the other, each its latency after it was asked for.
class Source {
  public:
    explicit Source(const LoadingFigures& figures)
        : latency_(figures.latency), each_(1 / (figures.samples_per_s * figures.source)) {}

    /// When the last byte of a sample is there that is asked for at `now`.
    Seconds fetch(Seconds now) {
        free_ = std::max(free_, now + latency_) + each_;
        return free_;
    }

  private:
    Seconds latency_;
    Seconds each_;
    Seconds free_ = 0;
};

Bytes one_unit(std::uint32_t) {
    return 1;
}

/// One job, from its first read to its last.
class Run {
  public:
    Run(const LoadingFigures& figures, LoadingPolicy policy, std::size_t most)
        : figures_(figures), source_(figures) {
        for (int epoch = 0; epoch < figures.epochs; ++epoch) {
            const auto seed = figures.seed + static_cast<std::uint64_t>(epoch);
            const auto order = fabricd::sample_order({figures.samples, seed, true});
            reads_.insert(reads_.end(), order.begin(), order.end());
        }
        const fabricd::PrefetchRates rates{figures.latency, figures.samples_per_s * figures.source,
                                           figures.samples_per_s, figures.latency};
        ahead_ = aside_ = static_cast<Bytes>(figures.workers);
        Bytes passing = 0;  // of the cache
        has_plan_ = policy == LoadingPolicy::kPlan;
        if (has_plan_) {
            // What the loader itself asks for comes with a plan as well.
            const Bytes ahead = std::min<Bytes>(most, fabricd::bytes_ahead(rates, 1, most));
            ahead_ = std::max(ahead_, ahead);
            passing = std::min<Bytes>(most, fabricd::bytes_aside(rates, 1, most));
            aside_ = std::max<Bytes>(1, passing);
        }
        keeper_ = make_keeper(policy, most - passing, reads_);
    }

    LoadingResult play() {
        LoadingResult result;
        for (int epoch = 0; epoch < figures_.epochs; ++epoch) {
            const LoadingResult one = play_epoch(epoch);
            result.most_held = std::max(result.most_held, one.most_held);
            if (epoch == 0) continue;
            const double part = 1.0 / (figures_.epochs - 1);
            result.hits += one.hits * part;
            result.epoch += one.epoch * part;
            result.stall += one.stall * part;
        }
        return result;
    }

  private:
    LoadingResult play_epoch(int epoch) {
        const std::size_t first = static_cast<std::size_t>(epoch) * figures_.samples;
        const Seconds begin = now_;
        const Order order(reads_.begin() + static_cast<std::ptrdiff_t>(first),
                          reads_.begin() + static_cast<std::ptrdiff_t>(first + figures_.samples));
        keeper_->begin_epoch(order);
        fabricd::Prefetcher prefetcher(order);
        LoadingResult result;
        for (std::size_t at = first; at < first + figures_.samples; ++at) {
            ask_ahead(prefetcher);
            const std::uint32_t sample = reads_[at];
            const bool is_there = keeper_->has(sample) && coming_.count(sample) == 0;
            const auto coming = coming_.find(sample);
            Seconds ready = now_;
            if (coming != coming_.end()) {
                ready = coming->second;
                coming_.erase(coming);
            } else if (!is_there) {
                ready = source_.fetch(now_);
            }
            result.hits += is_there ? 1.0 / figures_.samples : 0;
            result.stall += std::max(0.0, ready - now_);
            now_ = std::max(now_, ready) + 1 / figures_.samples_per_s;
            const auto held = static_cast<double>(keeper_->used() + prefetcher.passing_aside());
            result.most_held = std::max(result.most_held, held / figures_.samples);
            prefetcher.finish(sample);
            keeper_->read(sample, at);
        }
        result.epoch = now_ - begin;
        return result;
    }

    void ask_ahead(fabricd::Prefetcher& prefetcher) {
        const auto is_kept = [this](std::uint32_t sample) { return keeper_->has(sample); };
        for (;;) {
            const fabricd::PassingRoom room{ahead_, aside_, has_plan_ ? keeper_->in_place() : 0};
            const auto sample = prefetcher.next(room, one_unit, is_kept);
            if (!sample) return;
            coming_[*sample] = source_.fetch(now_);
            if (has_plan_ && keeper_->exchange(*sample)) prefetcher.take_place(*sample);
        }
    }

    const LoadingFigures& figures_;
    Source source_;
    Order reads_;  // of all epochs
    std::unique_ptr<Keeper> keeper_;
    bool has_plan_ = false;
    Bytes ahead_ = 0;                                    // in samples
    Bytes aside_ = 0;                                    // of these, outside of what is kept
    std::unordered_map<std::uint32_t, Seconds> coming_;  // when each that was asked for is there
    Seconds now_ = 0;
};

}  // namespace

const char* name_of(LoadingPolicy policy) noexcept {
    return kNames[static_cast<int>(policy)];
}

LoadingResult simulate_loading(const LoadingFigures& figures, LoadingPolicy policy, double cache) {
    FABRIC_CHECK(figures.epochs > 1 && figures.samples > 0);
    return Run(figures, policy, static_cast<std::size_t>(cache * figures.samples)).play();
}

Seconds least_stall(const LoadingFigures& figures, double cache) noexcept {
    const Seconds computing = figures.samples / figures.samples_per_s;
    return std::max(0.0, computing * (1 - cache) / figures.source - computing);
}

Report answer_loading(const LoadingQuery& query) {
    const LoadingFigures& figures = query.figures;
    Report report;
    report.query = "data";
    report.facts = {{"samples", static_cast<double>(figures.samples)},
                    {"sample_bytes", static_cast<double>(figures.sample_bytes)},
                    {"samples_per_second", figures.samples_per_s},
                    {"source_of_need", figures.source},
                    {"latency_s", figures.latency},
                    {"epochs", static_cast<double>(figures.epochs)},
                    {"seed", static_cast<double>(figures.seed)}};
    report.columns = {"cache_share", "policy",        "hits_share",     "epoch_s",
                      "stall_s",     "least_stall_s", "most_held_share"};
    for (const double cache : query.caches) {
        for (int policy = 0; policy < kLoadingPolicies; ++policy) {
            const auto which = static_cast<LoadingPolicy>(policy);
            const LoadingResult result = simulate_loading(figures, which, cache);
            report.rows.push_back({cache, std::string(name_of(which)), result.hits, result.epoch,
                                   result.stall, least_stall(figures, cache), result.most_held});
        }
    }
    report.notes.push_back(
        "epochs after the first, in the mean; hits: reads whose sample stayed from an earlier "
        "epoch; "
        "least_stall: what does not fit has to come from the source; farthest: knows all reads to "
        "come, no cache has more hits; kept: what fits stays; plan: the same, and fetches ahead");
    return report;
}

}  // namespace emu
