// How fast do one and two cores run optimiser steps over arrays far above the caches, against the
// stream limit: moving the same bytes in the same places with next to no arithmetic?
//
// bytes_per_second counts every gradient read once, and parameters and state read and written once.
// The limit is reduce() of the gradients, parameters and state in place into parameters and state.
// For ratios take the two next to each other in one run (--benchmark_enable_random_interleaving).

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "kernels/optimise.hpp"
#include "kernels/reduce.hpp"

namespace {

using kernels::DType;
using kernels::Rule;

// Shared and touched once, as in kernels_bench.cpp.
class SharedFloats {
  public:
    explicit SharedFloats(std::size_t count) : bytes_(count * sizeof(float)) {
        void* data =
            mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (data == MAP_FAILED) return;
        data_ = static_cast<float*>(data);
        std::memset(data_, 0x3c, bytes_);  // an ordinary float, near 0.01
    }
    SharedFloats(SharedFloats&& other) noexcept : data_(other.data_), bytes_(other.bytes_) {
        other.data_ = nullptr;
    }
    SharedFloats& operator=(SharedFloats&&) = delete;
    ~SharedFloats() {
        if (data_ != nullptr) munmap(data_, bytes_);
    }
    float* data() const { return data_; }

  private:
    float* data_ = nullptr;
    std::size_t bytes_;
};

// How a step goes over its arrays.
struct Shape {
    Rule rule = Rule::kAdamW;
    DType gradients = DType::kF32;
    std::size_t chunk = 0;  // elements, each chunk a job; 0: one job
    bool logged = false;
    bool copied = false;
    bool momentum = true;
    bool streaming = true;
};

// One thread's arrays, and its passes over them.
class Pass {
  public:
    Pass(const Shape& shape, std::size_t count, int gradient_count)
        : shape_(shape), count_(count), chunk_(shape.chunk == 0 ? count : shape.chunk) {
        const kernels::RuleRow& row = row_of(shape.rule);
        states_ = shape.momentum ? row.states() : 0;
        kernels::Hyper hyper;
        hyper.weight_decay = 0.01;
        hyper.momentum = shape.momentum ? 0.9 : 0;
        factors_ = kernels::make_step_factors(shape.rule, hyper, 100);
        for (int i = 0; i < gradient_count; ++i) {
            gradients_.emplace_back(count * size_of(shape.gradients) / sizeof(float));
        }
        for (int i = 0; i < 1 + states_; ++i) moved_.emplace_back(count);
        for (int i = 0; i < 1 + states_ && shape.logged; ++i) logs_.emplace_back(chunk_);
        if (shape.copied) copy_.emplace_back(count / 2);
    }

    bool missing() const {
        for (const auto* list : {&gradients_, &moved_, &logs_, &copy_}) {
            for (const SharedFloats& floats : *list) {
                if (floats.data() == nullptr) return true;
            }
        }
        return false;
    }

    void step() {
        for (std::size_t at = 0; at < count_; at += chunk_) {
            step_chunk(at, count_ - at < chunk_ ? count_ - at : chunk_);
        }
    }

    void stream() {
        std::vector<const void*> sources;
        std::vector<void*> destinations;
        for (const SharedFloats& gradient : gradients_) sources.push_back(gradient.data());
        for (const SharedFloats& floats : moved_) {
            sources.push_back(floats.data());
            destinations.push_back(floats.data());
        }
        kernels::ReduceJob job;
        job.op = kernels::ReduceOp::kMax;  // values stay what they are
        job.sources = sources.data();
        job.source_count = static_cast<int>(sources.size());
        job.destinations = destinations.data();
        job.destination_count = static_cast<int>(destinations.size());
        job.count = count_;
        job.streaming = shape_.streaming;
        kernels::reduce(job);
    }

    std::size_t bytes() const {
        const std::size_t read = gradients_.size() * size_of(shape_.gradients);
        return count_ * (read + moved_.size() * 2 * sizeof(float) + copy_.size() * 2);
    }

  private:
    void step_chunk(std::size_t at, std::size_t count) {
        kernels::OptimiseJob job;
        job.rule = shape_.rule;
        job.factors = factors_;
        job.gradient_type = shape_.gradients;
        const void* gradients[8];
        for (std::size_t i = 0; i < gradients_.size(); ++i) {
            const char* from = reinterpret_cast<const char*>(gradients_[i].data());
            gradients[i] = from + at * size_of(shape_.gradients);
        }
        job.gradients = gradients;
        job.gradient_count = static_cast<int>(gradients_.size());
        job.scale = 0.5f;
        kernels::UndoLog log;
        float** const arrays[] = {&job.parameters, &job.first, &job.second, &job.maximum};
        float** const logs[] = {&log.parameters, &log.first, &log.second, &log.maximum};
        for (std::size_t i = 0; i < moved_.size(); ++i) *arrays[i] = moved_[i].data() + at;
        for (std::size_t i = 0; i < logs_.size(); ++i) *logs[i] = logs_[i].data();
        log.logged = &logged_;
        log.base = at;
        job.undo = shape_.logged ? &log : nullptr;
        if (shape_.copied) job.copy = reinterpret_cast<std::uint16_t*>(copy_[0].data()) + at;
        job.count = count;
        job.streaming = shape_.streaming;
        kernels::optimise(job);
    }

    Shape shape_;
    std::size_t count_;
    std::size_t chunk_;
    int states_;
    kernels::StepFactors factors_;
    std::vector<SharedFloats> gradients_, moved_, logs_, copy_;
    std::atomic<std::uint64_t> logged_{0};
};

// Arguments: gradients, elements of all threads together.
void run(benchmark::State& state, const Shape& shape, bool limit) {
    const auto count = static_cast<std::size_t>(state.range(1)) / state.threads();
    Pass pass(shape, count, static_cast<int>(state.range(0)));
    if (pass.missing()) return state.SkipWithError("not enough memory");
    for (auto _ : state) {
        limit ? pass.stream() : pass.step();
        benchmark::ClobberMemory();
    }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(pass.bytes()));
    state.SetLabel(kernels::isa_name());
}

// What merge() gives over the same gradients, without a destination and with one.
void merge(benchmark::State& state, bool stored) {
    const auto count = static_cast<std::size_t>(state.range(1)) / state.threads();
    std::vector<SharedFloats> gradients;
    std::vector<const void*> sources;
    for (int i = 0; i < state.range(0) + 1; ++i) gradients.emplace_back(count);
    for (int i = 0; i < state.range(0); ++i) sources.push_back(gradients[i].data());
    kernels::MergeJob job;
    job.gradients = sources.data();
    job.gradient_count = static_cast<int>(sources.size());
    job.destination = stored ? gradients.back().data() : nullptr;
    job.count = count;
    job.streaming = true;
    for (auto _ : state) benchmark::DoNotOptimize(kernels::merge(job).square_sum);
    const std::int64_t arrays = state.range(0) + (stored ? 1 : 0);
    state.SetBytesProcessed(state.iterations() * arrays * static_cast<std::int64_t>(count * 4));
}

constexpr std::int64_t kSmoke = 65536, kLarge = 25'600'000;

void sizes(benchmark::internal::Benchmark* bench) {
    bench->ArgNames({"gradients", "elements"})->UseRealTime();
    for (const int threads : {1, 2}) bench->Threads(threads);
    for (const std::int64_t elements : {kSmoke, kLarge}) bench->Args({2, elements});
}

void add(const std::string& name, const Shape& shape) {
    const auto with = [&](bool limit) {
        return [shape, limit](benchmark::State& state) { run(state, shape, limit); };
    };
    benchmark::RegisterBenchmark((name + "/step").c_str(), with(false))->Apply(sizes);
    if (shape.gradients != DType::kF32 || shape.copied || shape.chunk != 0) return;
    benchmark::RegisterBenchmark((name + "/limit").c_str(), with(true))->Apply(sizes);
}

void add_all() {
    for (const kernels::RuleRow& row : kernels::kRuleRows) add(row.name, {.rule = row.rule});
    add("sgd_plain", {.rule = Rule::kSgd, .momentum = false});
    add("adamw_bf16", {.gradients = DType::kBF16});
    add("adamw_f16", {.gradients = DType::kF16});
    add("adamw_copy", {.copied = true});
    for (const std::size_t chunk : {1024, 2048, 4096, 32768}) {
        const std::string name = "adamw_chunk_" + std::to_string(chunk);
        add(name + "_logged", {.chunk = chunk, .logged = true});
        add(name, {.chunk = chunk});
    }
    add("adamw_chunk_2048_cached", {.chunk = 2048, .streaming = false});
    const auto merges = [](bool stored) {
        return [stored](benchmark::State& state) { merge(state, stored); };
    };
    benchmark::RegisterBenchmark("merge/norm", merges(false))->Apply(sizes);
    benchmark::RegisterBenchmark("merge/stored", merges(true))->Apply(sizes);
}

}  // namespace

int main(int argc, char** argv) {
    add_all();
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
