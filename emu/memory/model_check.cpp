#include "emu/memory/model_check.hpp"

#include <algorithm>
#include <barrier>
#include <thread>
#include <vector>

namespace emu {

namespace {

using fabricshm::LinkClock;
using fabricshm::LinkImage;
using fabricshm::LinkMeter;

using Times = std::vector<std::uint64_t>;

// The upper one of an even number.
double median(Times times) {
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return static_cast<double>(*middle);
}

// One operation as the library makes it: charge, access, wait for the rest. A read is charged
// before it happens and a write after.
void operate(LinkMeter& meter, PoolTouch& touch, Bytes bytes, bool is_read) {
    meter.begin();
    if (is_read) {
        meter.read(bytes);
        touch.read(bytes);
    } else {
        touch.write(bytes);
        meter.wrote(bytes);
    }
    meter.finish();
}

// Of one operation, less what reading the clock takes.
std::uint64_t timed(LinkMeter& meter, PoolTouch& touch, LinkClock& clock, Bytes bytes,
                    bool is_read) {
    // Reading the clock takes as long as a fast access.
    const std::uint64_t start = clock.now();
    operate(meter, touch, bytes, is_read);
    const std::uint64_t taken = clock.now() - start;
    return taken - std::min(taken, clock.cost());
}

double median_latency(LinkMeter& meter, PoolTouch& touch, LinkClock& clock, int operations,
                      bool is_read) {
    Times times;
    // One at least: a median of nothing would be read from nowhere.
    for (int i = 0; i < std::max(operations, 1); ++i) {
        times.push_back(timed(meter, touch, clock, fabricshm::kCacheLine, is_read));
    }
    return median(std::move(times));
}

// One bulk operation: when it ended, and how long it took.
struct Passed {
    std::uint64_t end;
    std::uint64_t taken;
};
using Passes = std::vector<Passed>;

Passes bulk(LinkMeter& meter, PoolTouch& touch, LinkClock& clock, const CheckPlan& plan,
            bool is_read) {
    Passes passes;
    const std::uint64_t end = clock.now() + plan.bulk_ns;
    do {
        const std::uint64_t taken = timed(meter, touch, clock, plan.bulk_bytes, is_read);
        passes.push_back({clock.now(), taken});
    } while (passes.back().end < end);
    return passes;
}

// Bytes per second of a lone rank, from its median operation: what other programs do to a few of
// them does not count. It waits for the latency of each, which is no part of the bandwidth.
double bandwidth_of_one(const Passes& passes, Bytes bytes, double latency_ns) {
    // Of what is left when the latency is taken off; 1 ns at least, so that a model without a limit
    // gives a large number and no infinity.
    Times times;
    for (const Passed& pass : passes) times.push_back(pass.taken);
    return static_cast<double>(bytes) / std::max(median(std::move(times)) - latency_ns, 1.0) * 1e9;
}

// All bytes over all of the time: when there are too few operations for anything better.
double bandwidth_overall(const std::vector<Passes>& ranks, Bytes bytes) {
    std::uint64_t first = ~std::uint64_t{0};
    std::uint64_t last = 0;
    double operations = 0;
    for (const Passes& own : ranks) {
        first = std::min(first, own.front().end - own.front().taken);
        last = std::max(last, own.back().end);
        operations += static_cast<double>(own.size());
    }
    return operations * static_cast<double>(bytes) /
           static_cast<double>(std::max<std::uint64_t>(last - first, 1)) * 1e9;
}

// Of several ranks together: what passed in the median of some spans of time. A rank that does not
// get onto a processor leaves the link to the others, so single operations would say too much.
double bandwidth_of_all(const std::vector<Passes>& ranks, Bytes bytes) {
    constexpr std::uint64_t kSpans = 9;
    constexpr std::uint64_t kEnough = 3;  // operations of one rank in a span
    std::uint64_t start = 0;
    std::uint64_t end = ~std::uint64_t{0};
    std::size_t fewest = ~std::size_t{0};
    for (const Passes& own : ranks) {
        // From when all are at work to when the first stops: outside of that the link is shared by
        // fewer.
        start = std::max(start, own.front().end);
        end = std::min(end, own.back().end);
        fewest = std::min(fewest, own.size());
    }
    if (end <= start || fewest < kEnough * kSpans) return bandwidth_overall(ranks, bytes);
    const std::uint64_t span = (end - start) / kSpans + 1;
    Times operations(kSpans);
    for (const Passes& own : ranks) {
        for (const Passed& pass : own) {
            if (pass.end > start && pass.end <= end) ++operations[(pass.end - start - 1) / span];
        }
    }
    return median(std::move(operations)) * static_cast<double>(bytes) / static_cast<double>(span) *
           1e9;
}

double bandwidth_of(const std::vector<Passes>& ranks, Bytes bytes, double latency_ns) {
    return ranks.size() == 1 ? bandwidth_of_one(ranks.front(), bytes, latency_ns)
                             : bandwidth_of_all(ranks, bytes);
}

class Check {
  public:
    Check(const LinkImage& links, const CheckPlan& plan, const TouchMaker& maker, LinkClock& clock)
        : links_(links),
          plan_(plan),
          maker_(maker),
          clock_(clock),
          memory_(std::make_unique<Memory>()),
          reads_(static_cast<std::size_t>(plan.ranks)),
          writes_(reads_.size()),
          start_(plan.ranks) {
        fabricshm::format_links(memory_->bytes, links);
    }

    Figures run() {
        std::vector<std::thread> others;
        for (int rank = 1; rank < plan_.ranks; ++rank) {
            others.emplace_back([this, rank] { work(rank); });
        }
        work(0);
        for (std::thread& other : others) other.join();
        figures_.read_bandwidth = bandwidth_of(reads_, plan_.bulk_bytes, figures_.read_latency_ns);
        figures_.write_bandwidth =
            bandwidth_of(writes_, plan_.bulk_bytes, figures_.write_latency_ns);
        return figures_;
    }

  private:
    struct Memory {
        alignas(4096) std::byte bytes[fabricshm::kLinkPageBytes];
    };

    void work(int rank) {
        const auto touch = maker_(rank, plan_.ranks);
        // As ranks of a larger world would be: all of these on the first node.
        const int world = plan_.ranks * static_cast<int>(links_.node_count);
        LinkMeter meter(memory_->bytes, links_, rank, world, clock_);
        // Latency is measured while the others wait: it is that of a link without traffic.
        if (rank == 0) {
            const int operations = plan_.latency_operations;
            figures_.read_latency_ns = median_latency(meter, *touch, clock_, operations, true);
            figures_.write_latency_ns = median_latency(meter, *touch, clock_, operations, false);
        }
        const auto at = static_cast<std::size_t>(rank);
        start_.arrive_and_wait();
        reads_[at] = bulk(meter, *touch, clock_, plan_, true);
        start_.arrive_and_wait();
        writes_[at] = bulk(meter, *touch, clock_, plan_, false);
    }

    const LinkImage& links_;
    const CheckPlan plan_;
    const TouchMaker& maker_;
    LinkClock& clock_;
    std::unique_ptr<Memory> memory_;
    std::vector<Passes> reads_;
    std::vector<Passes> writes_;
    std::barrier<> start_;
    Figures figures_;
};

}  // namespace

Figures check_model(const LinkImage& links, const CheckPlan& plan, const TouchMaker& maker,
                    LinkClock& clock) {
    return Check(links, plan, maker, clock).run();
}

// Hops stay: what charging costs is part of what this machine needs.
LinkImage unslowed(LinkImage links) {
    for (auto& route : links.routes) {
        route.read_latency_ns = 0;
        route.write_latency_ns = 0;
    }
    for (auto& channel : links.channels) {
        channel.read_ns_per_byte = 0;
        channel.write_ns_per_byte = 0;
    }
    return links;
}

}  // namespace emu
