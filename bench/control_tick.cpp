// How long does a tick of the control loop take, by the number of sessions?
//
// A tick is what the loop's thread does once per window, but for the sampling and the journal: it
// takes the counters apart and decides. Jobs of 8 ranks, none of which needs a decision, or all of
// which do in one window; telemetry as the pages would bring it.

#include <benchmark/benchmark.h>

#include <cmath>

#include "fabricd/control/loop/loop.hpp"

namespace {

constexpr std::size_t kRanks = 8;

// Members of complete groups with fresh pages, so that nothing is left out as stale.
fabricd::Sample sample_of(std::size_t sessions) {
    fabricd::Sample sample;
    sample.sessions.resize(sessions);
    for (std::size_t i = 0; i < sessions; ++i) {
        auto& session = sample.sessions[i];
        session.session_id = i + 1;
        session.page_number = 1;
        session.member = true;
        session.stale = false;
        session.image = fabricshm::empty_telemetry();
        session.image.arena_id = 1;
        session.image.group_id = i / kRanks + 1;
        session.image.rank = static_cast<std::int32_t>(i % kRanks);
        session.image.world = kRanks;
        session.image.loss = 1;
    }
    return sample;
}

// Ten steps of 100 ms; the first rank of each job is slower by `slow`.
// Half of each step is computing: the imbalance that is decided about is that of the computing
// alone.
void advance(fabricd::Sample& sample, double slow) {
    sample.taken_ns += 1'000'000'000;
    for (auto& session : sample.sessions) {
        const double factor = session.image.rank == 0 ? slow : 1;
        session.image.steps += 10;
        session.image.samples += 320;
        session.image.step_ns += 1'000'000'000;
        session.image.compute_ns += static_cast<std::int64_t>(500e6 * factor);
        session.image.wait_ns += 100'000'000;
        session.image.comm_ns += 100'000'000;
    }
}

fabricd::ControlConfig acting() {
    fabricd::ControlConfig config;
    config.mode = "on";
    return config;
}

void quiet_tick(benchmark::State& state) {
    auto sample = sample_of(static_cast<std::size_t>(state.range(0)));
    fabricd::WindowMaker maker;
    // One loop for all iterations: what it remembers of the job is part of what a tick costs.
    fabricd::Loop loop(acting());
    std::size_t decisions = 0;
    for (auto _ : state) {
        // Moving the counters is the sampler's work, see telemetry_bench.cpp.
        state.PauseTiming();
        advance(sample, 1);
        state.ResumeTiming();
        decisions += loop.tick(maker.next(sample)).decisions.size();
    }
    // A benchmark that measures something else than it says fails.
    if (decisions != 0) state.SkipWithError("a quiet job was decided about");
}

// The worst window: every job gets new shares in it.
void deciding_tick(benchmark::State& state) {
    auto sample = sample_of(static_cast<std::size_t>(state.range(0)));
    std::size_t decisions = 0;
    for (auto _ : state) {
        state.PauseTiming();
        // Made again in each iteration: after a decision the loop waits and would decide nothing.
        fabricd::WindowMaker maker;
        fabricd::Loop loop(acting());
        // As many windows as it takes until the next one is the one that decides.
        // Imbalance has to last for some windows (control.imbalance_windows) before it is acted on.
        for (int i = 0; i < 3; ++i) {
            advance(sample, 1.7);
            benchmark::DoNotOptimize(loop.tick(maker.next(sample)));
        }
        advance(sample, 1.7);
        state.ResumeTiming();
        decisions += loop.tick(maker.next(sample)).decisions.size();
    }
    const auto jobs = static_cast<double>(state.range(0)) / kRanks;
    state.counters["decisions_per_job"] =
        static_cast<double>(decisions) / static_cast<double>(state.iterations()) / jobs;
    if (decisions == 0) state.SkipWithError("no job was decided about");
}

BENCHMARK(quiet_tick)->ArgName("sessions")->Arg(64)->Arg(1000)->Arg(10000);
BENCHMARK(deciding_tick)->ArgName("sessions")->Arg(64)->Arg(1000)->Arg(10000);

}  // namespace

BENCHMARK_MAIN();
