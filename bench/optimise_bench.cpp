// How near does an optimiser step come to what the same memory allows?
//
// Each iteration makes one pass of the step and one of the limit (step_limit.hpp: the same arrays
// read and written, no arithmetic but an addition), in turn, over the same memory, so that both
// meet the same machine. `ratio` is the median over the iterations of the limit's time / the
// step's: 1 is as fast as the memory. bytes_per_second counts what has to move: two gradients
// read, parameters and states read and written. Chunks of 2,048 elements, as a parameter set steps.

#include <benchmark/benchmark.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/memory_moves.hpp"
#include "bench/step_limit.hpp"
#include "kernels/optimise.hpp"
#include "kernels/reduce.hpp"

namespace {

constexpr std::size_t kChunk = 2048;
constexpr int kArrays = 6;  // two gradients, parameters, three states
constexpr std::size_t kHugePage = 2 << 20;

// Where memory has huge pages both passes get them.
class Arrays {
  public:
    explicit Arrays(std::size_t count)
        : bytes_((count * sizeof(float) + kHugePage - 1) / kHugePage * kHugePage) {
        for (float*& array : arrays_) {
            void* at = mmap(nullptr, bytes_ + kHugePage, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (at == MAP_FAILED) return;
            const auto address = reinterpret_cast<std::uintptr_t>(at);
            array = reinterpret_cast<float*>((address + kHugePage - 1) / kHugePage * kHugePage);
            madvise(array, bytes_, MADV_HUGEPAGE);
            std::fill_n(array, count, 0.25F);
        }
        complete_ = true;
    }
    // Until the process ends: all cases share them.
    float* operator[](int i) const { return arrays_[i]; }
    bool complete() const { return complete_; }

  private:
    std::size_t bytes_;
    float* arrays_[kArrays] = {};
    bool complete_ = false;
};

const Arrays& arrays_of(std::size_t count) {
    static std::vector<std::pair<std::size_t, std::unique_ptr<Arrays>>> all;
    for (const auto& [has, arrays] : all) {
        if (has == count) return *arrays;
    }
    return *all.emplace_back(count, std::make_unique<Arrays>(count)).second;
}

// Threads that run one pass after the other together, each over its part of the elements.
class Team {
  public:
    using Pass = std::function<void(int thread, std::size_t begin, std::size_t end)>;

    Team(int threads, std::size_t count)
        : count_(count), threads_(threads), gate_(threads), seconds_(threads) {
        for (int t = 1; t < threads; ++t) {
            others_.emplace_back([this, t] {
                for (gate_.arrive_and_wait(); pass_ != nullptr; gate_.arrive_and_wait()) {
                    run(t);
                    gate_.arrive_and_wait();
                }
            });
        }
    }
    ~Team() {
        pass_ = nullptr;
        gate_.arrive_and_wait();
        for (std::thread& other : others_) other.join();
    }
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    /// The longest that a thread ran: time on a processor, so that what else the machine does
    /// counts only as far as it takes memory away.
    double time(const Pass& pass) {
        pass_ = &pass;
        gate_.arrive_and_wait();
        run(0);
        gate_.arrive_and_wait();
        return *std::max_element(seconds_.begin(), seconds_.end());
    }

  private:
    void run(int thread) {
        const std::size_t part = count_ / static_cast<std::size_t>(threads_) / kChunk * kChunk;
        const std::size_t begin = part * static_cast<std::size_t>(thread);
        const double start = thread_seconds();
        (*pass_)(thread, begin, thread + 1 == threads_ ? count_ : begin + part);
        seconds_[static_cast<std::size_t>(thread)] = thread_seconds() - start;
    }
    static double thread_seconds() {
        timespec now;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
    }

    std::size_t count_;
    int threads_;
    std::barrier<> gate_;
    std::vector<double> seconds_;
    const Pass* pass_ = nullptr;
    std::vector<std::thread> others_;
};

// One thread's log, as the slot of a rank has it.
struct Log {
    alignas(64) std::atomic<std::uint64_t> logged{0};
    alignas(64) float old[4][kChunk];
};

void step(const Arrays& arrays, kernels::Rule rule, Log* log, std::size_t begin, std::size_t end) {
    const kernels::RuleRow& row = kernels::row_of(rule);
    kernels::Hyper hyper;
    hyper.momentum = 0.9;
    hyper.weight_decay = 0.01;
    kernels::UndoLog undo;
    kernels::OptimiseJob job;
    job.rule = rule;
    job.factors = kernels::make_step_factors(rule, hyper, 100);
    job.gradient_count = 2;
    job.scale = 0.5F;
    job.streaming = true;
    for (std::size_t at = begin; at < end; at += kChunk) {
        const void* gradients[] = {arrays[0] + at, arrays[1] + at};
        job.gradients = gradients;
        job.parameters = arrays[2] + at;
        job.first = row.first ? arrays[3] + at : nullptr;
        job.second = row.second ? arrays[4] + at : nullptr;
        job.maximum = row.maximum ? arrays[5] + at : nullptr;
        job.count = std::min(kChunk, end - at);
        if (log != nullptr) {
            undo = {&log->logged, at, log->old[0], log->old[1], log->old[2], log->old[3]};
            job.undo = &undo;
        }
        kernels::optimise(job);
    }
}

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
}

// Arguments: with a log, threads, elements.
void optimise(benchmark::State& state, kernels::Rule rule) {
    const bool logs = state.range(0) != 0;
    const int threads = static_cast<int>(state.range(1));
    const auto count = static_cast<std::size_t>(state.range(2));
    const Arrays& arrays = arrays_of(count);
    if (!arrays.complete()) return state.SkipWithError("not enough memory");
    const int values = 1 + kernels::row_of(rule).states();
    const auto log = std::make_unique<Log[]>(static_cast<std::size_t>(threads));
    Team team(threads, count);
    const Team::Pass steps = [&](int thread, std::size_t begin, std::size_t end) {
        step(arrays, rule, logs ? &log[thread] : nullptr, begin, end);
    };
    const Team::Pass limit = [&](int, std::size_t begin, std::size_t end) {
        const float* gradients[] = {arrays[0] + begin, arrays[1] + begin};
        float* to[4];
        for (int v = 0; v < values; ++v) to[v] = arrays[2 + v] + begin;
        bench::step_limit(gradients, to, values, end - begin);
    };
    std::vector<double> ratios, limits;
    for (auto _ : state) {
        const double limit_seconds = team.time(limit), seconds = team.time(steps);
        state.SetIterationTime(seconds);
        limits.push_back(limit_seconds);
        ratios.push_back(limit_seconds / seconds);
    }
    const auto moved = static_cast<double>(count * sizeof(float)) * (2 + 2 * values);
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(moved));
    state.counters["limit_per_second"] = benchmark::Counter(
        moved / median(limits), benchmark::Counter::kDefaults, benchmark::Counter::OneK::kIs1024);
    state.counters["ratio"] = median(ratios);
    state.SetLabel(kernels::isa_name());
}

// STREAM's copy and triad of the same arrays, for comparison: stores past the cache.
void stream(benchmark::State& state, bool triad) {
    const int threads = static_cast<int>(state.range(0));
    const auto count = static_cast<std::size_t>(state.range(1));
    const Arrays& arrays = arrays_of(count);
    if (!arrays.complete()) return state.SkipWithError("not enough memory");
    const bench::MemoryMoves& moves = bench::memory_moves();
    Team team(threads, count);
    const Team::Pass pass = [&](int, std::size_t begin, std::size_t end) {
        if (triad) {
            return moves.triad(arrays[2] + begin, arrays[0] + begin, arrays[1] + begin,
                               end - begin);
        }
        const float* from = arrays[0] + begin;
        float* to = arrays[2] + begin;
        moves.move({&from, 1, &to, 1, end - begin, bench::Store::kStreaming});
    };
    for (auto _ : state) state.SetIterationTime(team.time(pass));
    const std::size_t moved = count * sizeof(float) * (triad ? 3 : 2);
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(moved));
    state.SetLabel(moves.isa);
}

constexpr std::int64_t kSmall = 64 * 1024, kLarge = 25'600'000;

void step_shapes(benchmark::internal::Benchmark* bench) {
    bench->ArgNames({"log", "threads", "elements"})->UseManualTime();
    for (const std::int64_t count : {kSmall, kLarge}) {
        for (const std::int64_t threads : {1, 2}) {
            bench->Args({0, threads, count})->Args({1, threads, count});
        }
    }
}

void stream_shapes(benchmark::internal::Benchmark* bench) {
    bench->ArgNames({"threads", "elements"})->UseManualTime();
    for (const std::int64_t threads : {1, 2})
        bench->Args({threads, kSmall})->Args({threads, kLarge});
}

using kernels::Rule;

BENCHMARK_CAPTURE(stream, copy, false)->Apply(stream_shapes);
BENCHMARK_CAPTURE(stream, triad, true)->Apply(stream_shapes);
BENCHMARK_CAPTURE(optimise, sgd, Rule::kSgd)->Apply(step_shapes);
BENCHMARK_CAPTURE(optimise, adam, Rule::kAdam)->Apply(step_shapes);
BENCHMARK_CAPTURE(optimise, adamw, Rule::kAdamW)->Apply(step_shapes);
BENCHMARK_CAPTURE(optimise, adabelief, Rule::kAdaBelief)->Apply(step_shapes);
BENCHMARK_CAPTURE(optimise, max_adabelief, Rule::kMaxAdaBelief)->Apply(step_shapes);

}  // namespace

BENCHMARK_MAIN();
