// What do our kernels get of the GPU and of the way to the pool? Each line: what, bytes, ours in
// microseconds and GB/s, the peer's likewise. Ratios count, not times. scripts/gpu-check runs it.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "bench/gpu/rank.hpp"
#include "kernels/cuda/launch.hpp"

using namespace fabricshm;
using gpu_bench::need;
using gpu_bench::SharedArena;
namespace device = kernels::cuda;

namespace {

constexpr int kRounds = 21;
constexpr Bytes kMoved = 64 << 20;  // more than the caches of today's GPUs
constexpr std::uint64_t kParameters = 25'600'000;

// The median time of what `work` puts on the stream, in microseconds.
double median_us(cudaStream_t stream, const std::function<void()>& work) {
    cudaEvent_t start = nullptr;
    cudaEvent_t end = nullptr;
    need(cudaEventCreate(&start), "event");
    need(cudaEventCreate(&end), "event");
    std::vector<double> times;
    for (int round = 0; round < kRounds; ++round) {
        need(cudaEventRecord(start, stream), "start");
        work();
        need(cudaEventRecord(end, stream), "end");
        need(cudaEventSynchronize(end), "round");
        float ms = 0;
        need(cudaEventElapsedTime(&ms, start, end), "time");
        if (round > 0) times.push_back(static_cast<double>(ms) * 1000);  // the first one warms up
    }
    cudaEventDestroy(start);
    cudaEventDestroy(end);
    std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
    return times[kRounds / 2];
}

void report(const std::string& what, double bytes, double ours_us, double peer_us,
            const char* peer) {
    std::printf("| %s | %.0f | %.1f | %.1f | %s %.1f | %.2f |\n", what.c_str(), bytes, ours_us,
                bytes / ours_us / 1000, peer, peer_us, peer_us > 0 ? peer_us / ours_us : 0.0);
    std::fflush(stdout);
}

struct Bench {
    explicit Bench(const SharedArena& memory)
        : arena(gpu_bench::on_device(memory)), pool(memory.buffer(0)) {
        need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
        blocks = static_cast<unsigned>(arena->device().multiprocessors()) * 4;
    }
    device::Address allocate(Bytes bytes) {
        void* made = nullptr;
        need(cudaMalloc(&made, bytes), "cudaMalloc");
        need(cudaMemset(made, 0, bytes), "clear");
        return reinterpret_cast<device::Address>(made);
    }
    void launch(gpu::Kernel kernel, const void* argument) const {
        need(arena->device().launch(kernel, blocks, argument, stream), "launch");
    }

    std::shared_ptr<gpu::DeviceArena> arena;
    std::byte* pool;
    cudaStream_t stream = nullptr;
    unsigned blocks = 1;
};

void measure_pool(Bench& bench) {
    const device::Address own = bench.allocate(kMoved);
    const auto at = [](device::Address address) { return reinterpret_cast<void*>(address); };
    const auto pool = bench.arena->base() + (bench.pool - bench.arena->host());
    for (const bool reads : {true, false}) {
        const device::CopyArgs args{reads ? pool : own, reads ? own : pool, kMoved, {}};
        const double ours =
            median_us(bench.stream, [&] { bench.launch(gpu::Kernel::kCopy, &args); });
        const double peer = median_us(bench.stream, [&] {
            need(cudaMemcpyAsync(at(args.destination), at(args.source), kMoved, cudaMemcpyDefault,
                                 bench.stream),
                 "cudaMemcpyAsync");
        });
        report(reads ? "pool to device" : "device to pool", kMoved, ours, peer, "cudaMemcpy");
    }
    cudaFree(at(own));
}

void measure_reduction(Bench& bench) {
    constexpr int kSources = 2;
    device::ReduceArgs args{};
    args.type = kernels::DType::kF32;
    args.op = kernels::ReduceOp::kSum;
    args.source_count = kSources;
    args.destination_count = 1;
    args.divisor = 1;
    args.count = kMoved / sizeof(float);
    for (int i = 0; i < kSources; ++i) args.sources[i] = bench.allocate(kMoved);
    args.destinations[0] = bench.allocate(kMoved);
    const double ours = median_us(bench.stream, [&] { bench.launch(gpu::Kernel::kReduce, &args); });
    const double copy = median_us(bench.stream, [&] {
        need(cudaMemcpyAsync(reinterpret_cast<void*>(args.destinations[0]),
                             reinterpret_cast<void*>(args.sources[0]), kMoved,
                             cudaMemcpyDeviceToDevice, bench.stream),
             "cudaMemcpyAsync");
    });
    // A copy moves two bytes for each, this one three.
    report("reduce 2 sources, device", 3.0 * kMoved, ours, copy * 1.5, "copy rate");
}

void measure_step(Bench& bench) {
    constexpr Bytes kBytes = kParameters * sizeof(float);
    kernels::Hyper hyper;
    const kernels::StepFactors factors =
        kernels::make_step_factors(kernels::Rule::kAdamW, hyper, 1);
    device::StepArgs args{};
    args.group.world = 1;
    args.rule = kernels::Rule::kAdamW;
    args.gradient_type = args.publish_type = kernels::DType::kF32;
    args.gradient_count = 1;
    args.scale = 1;
    args.total = args.count = kParameters;
    args.factors = bench.allocate(sizeof factors);
    need(cudaMemcpy(reinterpret_cast<void*>(args.factors), &factors, sizeof factors,
                    cudaMemcpyHostToDevice),
         "factors");
    args.parameters = bench.allocate(kBytes);
    args.first = bench.allocate(kBytes);
    args.second = bench.allocate(kBytes);
    args.gradients[0] = bench.allocate(kBytes);
    const double ours = median_us(bench.stream, [&] { bench.launch(gpu::Kernel::kStep, &args); });
    // Four arrays read, three written. What PyTorch's takes is measured by scripts/gpu-check.
    report("AdamW, 25.6 M parameters, device", 7.0 * kBytes, ours, 0, "torch: below");
}

// Two processes; rank 0 reports.
void measure_allreduce(const SharedArena& memory, int rank) {
    const auto arena = gpu_bench::on_device(memory);
    const auto group = gpu_bench::join(memory, arena, rank, 2);
    cudaStream_t stream = nullptr;
    need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    void* own = nullptr;
    need(cudaMalloc(&own, kMoved), "cudaMalloc");
    for (const std::string where : {"pool", "device, staged", "device, exported"}) {
        const bool in_pool = where == "pool";
        // Peers then read and write the memory where it is: this is what that is worth.
        if (where == "device, exported") {
            gpu_bench::export_memory(memory, *group, rank, 2, own, kMoved);
        }
        for (Bytes bytes = 8; bytes <= kMoved; bytes *= 8) {
            gpu::DeviceCall call;
            call.kind = device::CollectiveKind::kAllReduce;
            call.count = bytes / sizeof(float);
            call.input = call.output = in_pool ? memory.buffer(rank) : own;
            const double ours =
                median_us(stream, [&] { need(group->run(call, stream), "allreduce"); });
            need(group->status(), "allreduce");
            if (rank == 0) {
                report("allreduce, 2 processes, " + where, static_cast<double>(bytes), ours, 0,
                       "none");
            }
        }
    }
    gpu_bench::end_export(memory, *group, 2);
}

bool in_child(const std::function<void()>& body, int count = 1) {
    std::vector<pid_t> children;
    for (int i = 0; i < count; ++i) {
        const pid_t child = ::fork();
        if (child == 0) {
            body();
            std::fflush(nullptr);
            ::_exit(0);
        }
        children.push_back(child);
    }
    bool good = true;
    for (const pid_t child : children) {
        int status = 1;
        good = ::waitpid(child, &status, 0) == child && status == 0 && good;
    }
    return good;
}

}  // namespace

int main() {
    if (const int code = gpu_bench::probe(); code != 0) return code;
    SharedArena arena;
    std::printf("| what | bytes | ours, us | GB/s | peer, us | peer / ours |\n");
    std::printf("|---|---|---|---|---|---|\n");
    std::fflush(stdout);
    bool good = in_child([&] {
        Bench bench(arena);
        measure_pool(bench);
        measure_reduction(bench);
        measure_step(bench);
    });
    arena.format(2);
    const pid_t other = ::fork();
    if (other == 0) {
        measure_allreduce(arena, 1);
        ::_exit(0);
    }
    good = in_child([&] { measure_allreduce(arena, 0); }) && good;
    int status = 1;
    good = ::waitpid(other, &status, 0) == other && status == 0 && good;
    return good ? 0 : 1;
}
