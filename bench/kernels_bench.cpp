// How fast does one core combine and copy buffers, by sources, destinations and kind of store,
// against memcpy over the same memory?
//
// bytes_per_second counts what has to move: every source read once, every destination written once
// (without the line that a plain store reads before it writes). The instruction set is the best
// one, or FABRIC_ISA. A job counts as warm when its buffers fit the second-level cache.

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/copy.hpp"
#include "kernels/reduce.hpp"

namespace {

constexpr std::size_t kPage = 4096;

// Shared memory, as the pool is, written once so that no page fault is measured.
class SharedBuffer {
  public:
    // Anonymous, but shared: page tables and faults are those of the pool, without a daemon.
    explicit SharedBuffer(std::size_t bytes) : bytes_((bytes + kPage - 1) / kPage * kPage) {
        data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (data_ == MAP_FAILED) {
            data_ = nullptr;
        } else {
            std::memset(data_, 0x3c, bytes_);  // 0x3c3c3c3c is an ordinary float, near 0.01
        }
    }
    SharedBuffer(SharedBuffer&& other) noexcept : data_(other.data_), bytes_(other.bytes_) {
        other.data_ = nullptr;
    }
    SharedBuffer& operator=(SharedBuffer&&) = delete;
    ~SharedBuffer() {
        if (data_ != nullptr) munmap(data_, bytes_);
    }
    void* data() const { return data_; }

  private:
    void* data_;
    std::size_t bytes_;
};

// All of them before the first is used, so that no allocation is timed.
std::vector<SharedBuffer> make_buffers(int count, std::size_t bytes) {
    std::vector<SharedBuffer> buffers;
    for (int i = 0; i < count; ++i) buffers.emplace_back(bytes);
    return buffers;
}

bool missing(const std::vector<SharedBuffer>& buffers) {
    for (const SharedBuffer& buffer : buffers) {
        if (buffer.data() == nullptr) return true;
    }
    return false;
}

// What has to move at the least, so that figures are comparable with the machine's bandwidth,
// whatever the kernel does in between.
void report(benchmark::State& state, std::size_t buffers, std::size_t bytes) {
    const auto moved = static_cast<std::int64_t>(buffers * bytes);
    state.SetBytesProcessed(state.iterations() * moved);
    state.SetLabel(kernels::isa_name());
}

// Arguments: sources, destinations, streaming, in place (destination d is source d), bytes.
// A benchmark by five arguments, since a kernel's speed depends on all of them: more sources read
// more, streaming saves a read per store, in place saves a buffer.
void reduce(benchmark::State& state, kernels::DType type, kernels::ReduceOp op) {
    const int sources = static_cast<int>(state.range(0));
    const int destinations = static_cast<int>(state.range(1));
    const bool in_place = state.range(3) != 0;
    const auto bytes = static_cast<std::size_t>(state.range(4));
    const auto buffers = make_buffers(sources + (in_place ? 0 : destinations), bytes);
    if (missing(buffers)) return state.SkipWithError("not enough memory");
    std::vector<const void*> from;
    std::vector<void*> to;
    for (int s = 0; s < sources; ++s) from.push_back(buffers[s].data());
    for (int d = 0; d < destinations; ++d) {
        to.push_back(buffers[in_place ? d : sources + d].data());
    }
    kernels::ReduceJob job;
    job.type = type;
    job.op = op;
    job.sources = from.data();
    job.source_count = sources;
    job.destinations = to.data();
    job.destination_count = destinations;
    job.count = bytes / kernels::size_of(type);
    // Division for the mean is by the number of sources, as in a collective.
    job.divisor = sources;
    job.streaming = state.range(2) != 0;
    for (auto _ : state) {
        kernels::reduce(job);
        // The compiler may not keep results in registers, or leave a repetition out.
        benchmark::ClobberMemory();
    }
    report(state, static_cast<std::size_t>(sources + destinations), bytes);
}

// Arguments: streaming, destinations, bytes.
void copy_to_all(benchmark::State& state) {
    const int destinations = static_cast<int>(state.range(1));
    const auto bytes = static_cast<std::size_t>(state.range(2));
    const auto buffers = make_buffers(1 + destinations, bytes);
    if (missing(buffers)) return state.SkipWithError("not enough memory");
    std::vector<void*> to;
    for (int d = 0; d < destinations; ++d) to.push_back(buffers[1 + d].data());
    for (auto _ : state) {
        kernels::copy_to_all(to.data(), destinations, buffers[0].data(), bytes,
                             state.range(0) != 0);
        benchmark::ClobberMemory();
    }
    report(state, static_cast<std::size_t>(1 + destinations), bytes);
}

// Argument: bytes.
// The yardstick: what a libc that was tuned for years makes of the same memory.
void library_memcpy(benchmark::State& state) {
    const auto bytes = static_cast<std::size_t>(state.range(0));
    const auto buffers = make_buffers(2, bytes);
    if (missing(buffers)) return state.SkipWithError("not enough memory");
    for (auto _ : state) {
        std::memcpy(buffers[1].data(), buffers[0].data(), bytes);
        benchmark::ClobberMemory();
    }
    report(state, 2, bytes);
}

constexpr std::int64_t kKi = 1024, kMi = 1024 * 1024;
constexpr std::int64_t kSmall = 512, kWarm = 32 * kKi, kMiddle = 1 * kMi, kLarge = 64 * kMi;

void hot_shapes(benchmark::internal::Benchmark* bench) {
    bench->ArgNames({"sources", "destinations", "streaming", "in_place", "bytes"});
    for (const std::int64_t bytes : {kSmall, kWarm, kMiddle, kLarge}) {
        for (const std::int64_t sources : {2, 4}) {
            for (const std::int64_t streaming : {0, 1}) {
                // Small results are read at once: past the cache they would only have to be fetched
                // back.
                if (streaming != 0 && bytes < kMiddle) continue;
                bench->Args({sources, 1, streaming, 0, bytes});
                bench->Args({sources, sources, streaming, 0, bytes});
                bench->Args({sources, sources, streaming, 1, bytes});
            }
        }
    }
}

// Up to the largest world, far more than there are registers for.
void many_sources(benchmark::internal::Benchmark* bench) {
    bench->ArgNames({"sources", "destinations", "streaming", "in_place", "bytes"});
    for (const std::int64_t sources : {3, 8, 16, 64, 256}) {
        bench->Args({sources, 1, 0, 0, kWarm});
        bench->Args({sources, 1, 0, 0, 256 * kKi});
    }
}

// One shape is enough to see a type or an operation that falls behind.
void one_shape(benchmark::internal::Benchmark* bench) {
    bench->ArgNames({"sources", "destinations", "streaming", "in_place", "bytes"});
    bench->Args({2, 1, 0, 0, kWarm})->Args({4, 1, 0, 0, kWarm});
}

void copy_shapes(benchmark::internal::Benchmark* bench) {
    bench->ArgNames({"streaming", "destinations", "bytes"});
    for (const std::int64_t bytes : {kWarm, kMiddle, kLarge}) {
        for (const std::int64_t destinations : {1, 3}) {
            bench->Args({0, destinations, bytes})->Args({1, destinations, bytes});
        }
    }
}

using kernels::DType;
using kernels::ReduceOp;

BENCHMARK(library_memcpy)->ArgName("bytes")->Arg(kWarm)->Arg(kMiddle)->Arg(kLarge);
BENCHMARK(copy_to_all)->Apply(copy_shapes);
BENCHMARK_CAPTURE(reduce, f32_sum, DType::kF32, ReduceOp::kSum)->Apply(hot_shapes);
BENCHMARK_CAPTURE(reduce, f32_avg, DType::kF32, ReduceOp::kAvg)->Apply(hot_shapes);
BENCHMARK_CAPTURE(reduce, f32_sum_many, DType::kF32, ReduceOp::kSum)->Apply(many_sources);
BENCHMARK_CAPTURE(reduce, f32_avg_of_3, DType::kF32, ReduceOp::kAvg)->Args({3, 1, 0, 0, kWarm});
BENCHMARK_CAPTURE(reduce, f32_max, DType::kF32, ReduceOp::kMax)->Apply(one_shape);
BENCHMARK_CAPTURE(reduce, f64_sum, DType::kF64, ReduceOp::kSum)->Apply(one_shape);
BENCHMARK_CAPTURE(reduce, bf16_sum, DType::kBF16, ReduceOp::kSum)->Apply(one_shape);
BENCHMARK_CAPTURE(reduce, f16_sum, DType::kF16, ReduceOp::kSum)->Apply(one_shape);
BENCHMARK_CAPTURE(reduce, i8_sum, DType::kI8, ReduceOp::kSum)->Apply(one_shape);
BENCHMARK_CAPTURE(reduce, i32_avg, DType::kI32, ReduceOp::kAvg)->Apply(one_shape);
BENCHMARK_CAPTURE(reduce, i64_prod, DType::kI64, ReduceOp::kProd)->Apply(one_shape);

}  // namespace

BENCHMARK_MAIN();
