#include "emu/sim/host_network.hpp"

#include <algorithm>
#include <numeric>

#include "libfabricshm/base/check.hpp"

namespace emu {

using fabricshm::Bytes;
using fabricshm::net::AllreducePlan;
using fabricshm::net::BlockExchange;
using fabricshm::net::HostsPlan;
using fabricshm::net::Segment;

namespace {

// Beyond it a few hosts stand for all: what they exchange differs by a stripe at most.
constexpr int kMaxExactHosts = 16;

/// What one host does of a block.
struct BlockCost {
    double first_bytes = 0;     // sent by its ranks in SCATTER
    double second_bytes = 0;    // in REDUCE: results, of two steps
    double first_messages = 0;  // of its busiest rank
    double second_messages = 0;
    double added_bytes = 0;  // that its ranks read from others and add up
};

double bytes_in(const std::vector<Segment>& segments) {
    return std::accumulate(segments.begin(), segments.end(), 0.0,
                           [](double sum, const Segment& segment) {
                               return sum + static_cast<double>(segment.bytes);
                           });
}

BlockCost cost_of_block(const HostsPlan& plan, int host, Bytes bytes, bool has_two_steps) {
    BlockCost cost;
    for (const int rank : plan.ranks_of(host)) {
        const BlockExchange with = exchange_of(plan, rank, bytes, has_two_steps);
        double first = 0;
        double second = 0;
        for (int other = 0; other < plan.hosts(); ++other) {
            const auto& sent = with.sent[static_cast<std::size_t>(other)];
            const auto& come = with.come[static_cast<std::size_t>(other)];
            cost.first_bytes += bytes_in(sent);
            cost.added_bytes += bytes_in(come);
            first += static_cast<double>(sent.size());
            if (!has_two_steps) continue;
            cost.second_bytes += bytes_in(come);
            second += static_cast<double>(come.size());
        }
        cost.first_messages = std::max(cost.first_messages, first);
        cost.second_messages = std::max(cost.second_messages, second);
    }
    return cost;
}

// The busiest of the hosts, which the others wait for.
BlockCost busiest(const HostsPlan& plan, Bytes bytes, bool has_two_steps) {
    BlockCost most;
    const int stride = std::max(1, (plan.hosts() - 1) / kMaxExactHosts);
    for (int host = 0; host < plan.hosts(); host += stride) {
        const BlockCost cost = cost_of_block(plan, host, bytes, has_two_steps);
        most.first_bytes = std::max(most.first_bytes, cost.first_bytes);
        most.second_bytes = std::max(most.second_bytes, cost.second_bytes);
        most.first_messages = std::max(most.first_messages, cost.first_messages);
        most.second_messages = std::max(most.second_messages, cost.second_messages);
        most.added_bytes = std::max(most.added_bytes, cost.added_bytes);
    }
    return most;
}

HostsPlan plan_of(const std::vector<int>& ranks, int ring_from) {
    std::vector<std::uint64_t> pools;
    for (std::size_t host = 0; host < ranks.size(); ++host) {
        pools.insert(pools.end(), static_cast<std::size_t>(ranks[host]), host);
    }
    return HostsPlan(pools, ring_from);
}

/// A host's processors and its wire, which work at the same time.
class HostTime {
  public:
    explicit HostTime(const NetworkFigures& figures) : figures_(figures) {}
    void move(double bytes) { processor_ += bytes / figures_.memory; }
    /// When the last of it is at the other side. All hosts do the same: what comes from them is
    /// there at that time, too.
    Seconds send(double messages, double bytes) {
        processor_ += messages * figures_.message;
        wire_ = std::max(wire_, processor_) + bytes * figures_.framing / figures_.bandwidth;
        return wire_ + figures_.latency;
    }
    void wait(Seconds until) { processor_ = std::max(processor_, until); }
    Seconds now() const noexcept { return processor_; }

  private:
    const NetworkFigures& figures_;
    Seconds processor_ = 0;
    Seconds wire_ = 0;
};

NetworkCost cost_of_small(const HostsPlan& plan, Bytes bytes, double locals,
                          const NetworkFigures& figures) {
    const double others = plan.hosts() - 1;
    const auto size = static_cast<double>(bytes);
    HostTime host(figures);
    if (locals > 1) host.move((locals + 1) * size);
    host.wait(host.send(others, others * size));
    host.move((others + 2) * size);
    if (locals > 1) host.move((locals + 1) * size);
    return {1, others, others * size, host.now()};
}

NetworkCost cost_of_large(const HostsPlan& plan, const AllreducePlan& sizes, double locals,
                          const NetworkFigures& figures) {
    NetworkCost cost;
    const bool two = sizes.has_two_steps;
    const BlockCost each = busiest(plan, sizes.each, two);
    const BlockCost last = busiest(plan, sizes.last, two);
    HostTime host(figures);
    std::vector<Seconds> scattered(sizes.blocks);
    std::vector<Seconds> returned(sizes.blocks);
    const std::uint64_t behind = two ? 2 : 1;
    // As LargeAllreduce::run() of the library: three stages, each of another block.
    for (std::uint64_t turn = 0; turn < sizes.blocks + behind; ++turn) {
        const auto of = [&](std::uint64_t block) -> const BlockCost& {
            return block + 1 == sizes.blocks ? last : each;
        };
        const auto size = [&](std::uint64_t block) {
            return static_cast<double>(sizes.bytes_of(block));
        };
        if (turn < sizes.blocks) {
            if (locals > 1) host.move((locals + 1) * size(turn));
            scattered[turn] = host.send(of(turn).first_messages, of(turn).first_bytes);
            cost.messages += of(turn).first_messages;
            cost.wire += of(turn).first_bytes;
        }
        if (turn >= 1 && turn - 1 < sizes.blocks) {
            const std::uint64_t block = turn - 1;
            host.wait(scattered[block]);
            host.move(of(block).added_bytes + 2 * of(block).added_bytes / (plan.hosts() - 1));
            returned[block] = host.now();
            if (two) {
                returned[block] = host.send(of(block).second_messages, of(block).second_bytes);
                cost.messages += of(block).second_messages;
                cost.wire += of(block).second_bytes;
            }
        }
        if (turn >= behind) {
            const std::uint64_t block = turn - behind;
            host.wait(returned[block]);
            if (two) host.move(2 * size(block));
            if (locals > 1) host.move((locals + 1) * size(block));
        }
    }
    cost.steps = two ? 2 : 1;
    cost.time = host.now();
    return cost;
}

/// One step along the ring: what a host sends to the next one.
struct RingStep {
    double messages = 0;  // of its busiest rank
    double bytes = 0;
};

// Stripe for stripe: all hosts send one at the same time, and each waits for that of the one before
// it. The first host stands for all: stripes differ by a part's unit at most.
std::vector<RingStep> ring_steps(const HostsPlan& plan, Bytes bytes) {
    std::vector<RingStep> steps;
    for (int reducer = 0; reducer < plan.hosts(); ++reducer) {
        RingStep step;
        for (const int rank : plan.ranks_of(0)) {
            const auto sent = plan.crossings(rank, 1, bytes, reducer);
            step.bytes += bytes_in(sent);
            step.messages = std::max(step.messages, static_cast<double>(sent.size()));
        }
        steps.push_back(step);
    }
    return steps;
}

NetworkCost cost_of_ring(const HostsPlan& plan, const AllreducePlan& sizes, double locals,
                         const NetworkFigures& figures) {
    NetworkCost cost;
    HostTime host(figures);
    const std::vector<RingStep> each = ring_steps(plan, sizes.each);
    const std::vector<RingStep> last = ring_steps(plan, sizes.last);
    // As RingAllreduce::run_block() of the library.
    for (std::uint64_t block = 0; block < sizes.blocks; ++block) {
        const auto& steps = block + 1 == sizes.blocks ? last : each;
        const auto size = static_cast<double>(sizes.bytes_of(block));
        if (locals > 1) host.move((locals + 1) * size);
        for (const bool adds : {true, false}) {
            // Each round passes all stripes but one.
            for (int step = 0; step + 1 < plan.hosts(); ++step) {
                const RingStep& sent = steps[static_cast<std::size_t>(step)];
                host.wait(host.send(sent.messages, sent.bytes));
                host.move((adds ? 3 : 2) * sent.bytes);
                cost.messages += sent.messages;
                cost.wire += sent.bytes;
            }
        }
        if (locals > 1) host.move((locals + 1) * size);
    }
    cost.steps = 2.0 * (plan.hosts() - 1);
    cost.time = host.now();
    return cost;
}

}  // namespace

NetworkCost cost_of_plan(const std::vector<int>& ranks, Bytes bytes, const NetworkFigures& figures,
                         int ring_from) {
    FABRIC_CHECK(ranks.size() > 1 && bytes > 0);
    const HostsPlan plan = plan_of(ranks, ring_from);
    const AllreducePlan sizes = plan_allreduce(plan, bytes, largest_message(plan));
    const double locals = *std::ranges::max_element(ranks);
    if (sizes.is_small) return cost_of_small(plan, bytes, locals, figures);
    return sizes.is_ring ? cost_of_ring(plan, sizes, locals, figures)
                         : cost_of_large(plan, sizes, locals, figures);
}

NetworkCost cost_of_flat_ring(const std::vector<int>& ranks, Bytes bytes,
                              const NetworkFigures& figures) {
    FABRIC_CHECK(ranks.size() > 1 && bytes > 0);
    const double world = std::accumulate(ranks.begin(), ranks.end(), 0.0);
    const double chunk = static_cast<double>(bytes) / world;
    NetworkCost cost;
    cost.steps = 2 * (world - 1);
    cost.messages = cost.steps;
    cost.wire = cost.steps * chunk;
    // Each rank waits in each step for what its neighbour sends in it.
    const Seconds step = figures.message + chunk * figures.framing / figures.bandwidth +
                         figures.latency + 3 * chunk / figures.memory;
    cost.time = cost.steps * step;
    return cost;
}

Report answer_network(const NetworkQuery& query) {
    Report report;
    report.query = "network";
    report.facts = {{"bandwidth_per_s", query.figures.bandwidth},
                    {"latency_s", query.figures.latency},
                    {"message_s", query.figures.message},
                    {"memory_per_s", query.figures.memory}};
    report.columns = {"hosts",           "ranks",       "size_bytes",    "steps",
                      "messages",        "wire_bytes",  "time_s",        "ring_steps",
                      "ring_wire_bytes", "ring_time_s", "ring_over_plan"};
    bool is_on_paper = false;
    for (const int hosts : query.hosts) {
        std::vector<int> ranks;
        for (int host = 0; host < hosts; ++host) {
            ranks.push_back(query.ranks[static_cast<std::size_t>(host) % query.ranks.size()]);
        }
        const double world = std::accumulate(ranks.begin(), ranks.end(), 0.0);
        is_on_paper = is_on_paper || world > 256;
        for (const Bytes bytes : query.sizes) {
            const NetworkCost ours = cost_of_plan(ranks, bytes, query.figures, query.ring_from);
            const NetworkCost ring = cost_of_flat_ring(ranks, bytes, query.figures);
            report.rows.push_back({1.0 * hosts, world, static_cast<double>(bytes), ours.steps,
                                   ours.messages, ours.wire, ours.time, ring.steps, ring.wire,
                                   ring.time, ring.time / ours.time});
        }
    }
    report.notes.push_back(
        "plan: what groups over several hosts do; wire: bytes that the busiest host sends; "
        "messages: of the busiest rank; ring: over all ranks, as if hosts were not known");
    if (is_on_paper) {
        report.notes.push_back("a group of today has at most 256 ranks: beyond that on paper");
    }
    return report;
}

}  // namespace emu
