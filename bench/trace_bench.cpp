// What does a trace cost an operation: while it is off, while it is on, and in an allreduce of 8
// bytes?
//
// The allreduce is run by two threads with a processor each. With random interleaving and
// repetitions (--benchmark_enable_random_interleaving=true --benchmark_repetitions=12) runs with
// and without a trace alternate, and their medians compare.

#include <benchmark/benchmark.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <memory>
#include <thread>

#include "libfabricshm/collective/group.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/shm/group_block.hpp"

namespace {

using namespace fabricshm;

constexpr int kRanks = 2;

void pin_to(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    // Best effort: without it the figures are only less steady.
    (void)::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);
}

// As the daemon measures it: over a while.
TickRate measured_rate() {
    const TickMoment first = tick_moment();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return rate_between(first, tick_moment(), kernel_uses_ticks());
}

/// A trace that lasts, in memory of this process.
struct LastingTrace {
    LastingTrace() {
        format_trace(bytes());
        trace.begin_trace(bytes(), INT64_MAX, measured_rate());
    }
    std::byte* bytes() { return reinterpret_cast<std::byte*>(ring.get()); }

    std::unique_ptr<TraceRing> ring = std::make_unique<TraceRing>();
    OperationTrace trace;
};

// What the meter does around an operation of 8 bytes; off is what every operation pays.
void around_an_operation(benchmark::State& state) {
    static LastingTrace lasting;
    static LatencyCounters latencies;
    Meter meter;
    meter.set_latencies(&latencies);
    if (state.range(0) != 0) meter.set_trace(lasting.trace);
    TraceRecord record{};
    record.group_id = 1;
    record.world = 2;
    for (auto _ : state) {
        const Meter::Timing timing = meter.begin(8);
        benchmark::ClobberMemory();
        meter.end(timing, {Kind::kAllreduce, 8, true});
        if (timing.traced_ns != 0) meter.trace(timing, record);
        ++record.epoch;
    }
}
BENCHMARK(around_an_operation)->ArgName("trace")->Arg(0)->Arg(1);

/// Memory with the block of a group of two, as the daemon formats it.
class Block {
  public:
    Block() : bytes_(group_block_bytes(kRanks)), memory_(Mapping::own(bytes_).value()) {
        format_group_block(memory_.data(), {1, 1, kRanks});
    }
    GroupPlace place(int rank, std::shared_ptr<Meter> meter) {
        GroupPlace place;
        place.arena = memory_.data();
        place.arena_bytes = place.block_bytes = bytes_;
        place.rank = rank;
        place.world = kRanks;
        place.group_id = 1;
        place.meter = std::move(meter);
        return place;
    }

  private:
    Bytes bytes_;
    Mapping memory_;
};

std::unique_ptr<Group> join(Block& block, int rank, LastingTrace* trace) {
    static LatencyCounters latencies[kRanks];
    auto meter = std::make_shared<Meter>();
    meter->set_latencies(&latencies[rank]);
    if (trace != nullptr) meter->set_trace(trace->trace);
    return Group::attach(block.place(rank, std::move(meter)),
                         Clock::now() + std::chrono::seconds(30))
        .value();
}

Call sum_of(double& value) {
    Call call;
    call.kind = Kind::kAllreduce;
    call.dtype = kernels::DType::kF64;
    call.count = 1;
    call.input = reinterpret_cast<const std::byte*>(&value);
    call.output = reinterpret_cast<std::byte*>(&value);
    return call;
}

// The other rank: goes on for as long as rank 0 puts something into the sum.
void follow(Block& block, LastingTrace* trace) {
    pin_to(1);
    const auto group = join(block, 1, trace);
    double value = 0;
    const Call call = sum_of(value);
    do {
        value = 0;
    } while (group->run(call).ok() && value != 0);
}

void allreduce_of_8_bytes(benchmark::State& state) {
    static LastingTrace traces[kRanks];
    const bool traced = state.range(0) != 0;
    Block block;
    std::thread other(follow, std::ref(block), traced ? &traces[1] : nullptr);
    pin_to(0);
    const auto group = join(block, 0, traced ? &traces[0] : nullptr);
    double value = 0;
    const Call call = sum_of(value);
    for (auto _ : state) {
        value = 1;
        if (!group->run(call).ok()) state.SkipWithError("allreduce failed");
    }
    value = 0;
    (void)group->run(call);
    other.join();
}
BENCHMARK(allreduce_of_8_bytes)->ArgName("trace")->Arg(0)->Arg(1)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
