// Do collectives on the streams of a real GPU give the bits of the CPU's kernels? Ranks as
// processes and as streams of one process, buffers in the pool, on the device and in memory of it
// that is exported to the peers, a rank of the CPU among them, graphs, and the end of a wait for a
// rank that does not come. scripts/gpu-check runs it.

#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "bench/gpu/rank.hpp"
#include "kernels/cuda/host_rank.hpp"
#include "kernels/reduce.hpp"
#include "libfabricshm/base/reason.hpp"

using namespace fabricshm;
using gpu_bench::need;
using gpu_bench::SharedArena;
using kernels::DType;
using kernels::ReduceOp;
using kernels::cuda::CollectiveKind;

namespace {

constexpr DType kTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16,
                            DType::kI8,  DType::kI32, DType::kU64, DType::kF8E4M3};
// Below, at and above what one block, one piece and 16 bytes hold.
constexpr std::uint64_t kCounts[] = {1, 3, 255, 4096, 65537, (20 << 20) / 8 + 5};
constexpr Bytes kLargestBytes = 8 * ((20 << 20) / 8 + 5);

// Bytes that are small numbers of every type: the upper bits of a float's exponent stay as they
// are.
void fill(std::byte* to, int rank, DType type, std::uint64_t count) {
    const Bytes element = kernels::size_of(type);
    std::uint64_t random = 88172645463325252u + static_cast<std::uint64_t>(rank) * 977;
    for (std::uint64_t i = 0; i < count; ++i) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::uint64_t bits = random >> 32 << 32 | (random & 0x7fffffff);
        if (type == DType::kF64) {
            const double value = static_cast<double>(random % 2000001) / 1000.0 - 1000.0;
            std::memcpy(&bits, &value, sizeof bits);
        } else if (type == DType::kF32) {
            const float value = static_cast<float>(random % 2000001) / 1000.0F - 1000.0F;
            std::memcpy(&bits, &value, sizeof value);
        } else if (type == DType::kF16) {
            bits = (random & 0x83ff) | 0x3800;
        } else if (type == DType::kBF16) {
            bits = (random & 0x807f) | 0x3f00;
        } else if (type == DType::kF8E4M3) {
            bits = (random & 0x87) | 0x30;
        }
        std::memcpy(to + i * element, &bits, element);
    }
}

// What the CPU's kernels make of the ranks' inputs.
std::vector<std::byte> expected_sum(int world, DType type, std::uint64_t count) {
    const Bytes bytes = count * kernels::size_of(type);
    std::vector<std::vector<std::byte>> inputs;
    std::vector<const void*> sources;
    for (int rank = 0; rank < world; ++rank) {
        fill(inputs.emplace_back(bytes).data(), rank, type, count);
        sources.push_back(inputs.back().data());
    }
    std::vector<std::byte> sum(bytes);
    void* to = sum.data();
    kernels::ReduceJob job{};
    job.type = type;
    job.op = ReduceOp::kSum;
    job.sources = sources.data();
    job.source_count = world;
    job.destinations = &to;
    job.destination_count = 1;
    job.count = count;
    job.divisor = world;
    kernels::reduce(job);
    return sum;
}

// Memory of the device, as a trainer has it.
struct OnDevice {
    explicit OnDevice(Bytes bytes) { need(cudaMalloc(&data, bytes), "cudaMalloc"); }
    ~OnDevice() { cudaFree(data); }
    void* data = nullptr;
};

gpu::DeviceCall allreduce_of(DType type, std::uint64_t count, const void* input, void* output) {
    gpu::DeviceCall call;
    call.kind = CollectiveKind::kAllReduce;
    call.dtype = type;
    call.count = count;
    call.input = input;
    call.output = output;
    return call;
}

// One rank's part; true: all bits are right.
// `device`: memory there, or nullptr for a buffer in the pool.
bool sum_is_right(const SharedArena& arena, gpu::DeviceGroup& group, int rank, int world,
                  DType type, std::uint64_t count, void* device, cudaStream_t stream) {
    const Bytes bytes = count * kernels::size_of(type);
    std::vector<std::byte> own(bytes);
    std::vector<std::byte> got(bytes);
    fill(own.data(), rank, type, count);
    void* buffer = device != nullptr ? device : arena.buffer(rank);
    need(cudaMemcpyAsync(buffer, own.data(), bytes, cudaMemcpyDefault, stream), "copy in");
    need(group.run(allreduce_of(type, count, buffer, buffer), stream), "allreduce");
    need(group.wait(stream, Clock::now() + std::chrono::seconds(60)), "wait");
    need(cudaMemcpyAsync(got.data(), buffer, bytes, cudaMemcpyDefault, stream), "copy out");
    need(cudaStreamSynchronize(stream), "copy out");
    return got == expected_sum(world, type, count);
}

enum class Memory {
    kStaged,    // peers can't reach what is on the device
    kExported,  // they read and write it where it is
};

bool g_quick = false;  // fewer sizes: tools make each access a thousand times slower

// `together`: the ranks of one process. Allocating and freeing waits for all of a context's
// kernels, so none of them does it while another one's kernel waits for it.
int check_rank(const SharedArena& arena, const std::shared_ptr<gpu::DeviceArena>& device, int rank,
               int world, Memory where, std::barrier<>& together) {
    const auto group = gpu_bench::join(arena, device, rank, world);
    cudaStream_t stream = nullptr;
    need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    const OnDevice memory(kLargestBytes);
    together.arrive_and_wait();
    const bool exports = where == Memory::kExported;
    if (exports) {
        gpu_bench::export_memory(arena, *group, rank, world, memory.data, kLargestBytes);
    }
    int wrong = 0;
    for (const DType type : kTypes) {
        for (const std::uint64_t count : kCounts) {
            if (g_quick && count > 4096) continue;
            // Even ranks have theirs on the device, then all have, then none, which exports do not
            // change.
            const bool on_device[] = {rank % 2 == 0, true, false};
            for (int round = 0; round < (exports ? 2 : 3); ++round) {
                void* const at = on_device[round] ? memory.data : nullptr;
                if (sum_is_right(arena, *group, rank, world, type, count, at, stream)) {
                    continue;
                }
                ++wrong;
                std::fprintf(stderr, "rank %d of %d: %s x %llu is wrong\n", rank, world,
                             kernels::row_of(type).name, static_cast<unsigned long long>(count));
            }
        }
    }
    if (exports) gpu_bench::end_export(arena, *group, world);
    together.arrive_and_wait();
    cudaStreamDestroy(stream);
    return wrong == 0 ? 0 : 1;
}

// CUDA does not survive fork(): each rank starts it in its own process, the parent never.
bool in_children(int count, const std::function<int(int)>& body) {
    std::vector<pid_t> children;
    for (int i = 0; i < count; ++i) {
        const pid_t child = ::fork();
        if (child == 0) {
            const int code = body(i);
            std::fflush(nullptr);
            ::_exit(code);
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

bool ranks_as_processes(SharedArena& arena, int world, Memory where) {
    arena.format(world);
    return in_children(world, [&](int rank) {
        std::barrier<> alone(1);
        return check_rank(arena, gpu_bench::on_device(arena), rank, world, where, alone);
    });
}

bool ranks_as_streams(SharedArena& arena, int world, Memory where) {
    arena.format(world);
    return in_children(1, [&](int) {
        const auto device = gpu_bench::on_device(arena);
        std::vector<std::thread> threads;
        std::vector<int> codes(static_cast<std::size_t>(world), 1);
        std::barrier<> together(world);
        for (int rank = 0; rank < world; ++rank) {
            threads.emplace_back([&, rank] {
                need(cudaSetDevice(0), "device");
                codes[static_cast<std::size_t>(rank)] =
                    check_rank(arena, device, rank, world, where, together);
            });
        }
        for (std::thread& thread : threads) thread.join();
        for (const int code : codes) {
            if (code != 0) return code;
        }
        return 0;
    });
}

// Rank 1 is a thread of the CPU, without a device.
int host_rank(const SharedArena& arena, std::uint64_t count) {
    kernels::cuda::GridWords grid{};
    kernels::cuda::StatusWords status{};
    const auto address = [](const void* at) { return reinterpret_cast<std::uint64_t>(at); };
    fill(arena.buffer(1), 1, DType::kF32, count);
    kernels::cuda::CollectiveArgs args{};
    args.group.block = address(arena.base() + SharedArena::kBlockOffset);
    args.group.grid = address(&grid);
    args.group.status = address(&status);
    args.group.timeout_ns = 20'000'000'000;
    args.group.rank = 1;
    args.group.world = 2;
    args.group.epoch = 1;
    args.group.pool = {address(arena.base()), arena.bytes()};
    args.kind = CollectiveKind::kAllReduce;
    args.algorithm = kernels::cuda::Algorithm::kAuto;
    args.type = DType::kF32;
    args.op = ReduceOp::kSum;
    args.divisor = 2;
    args.count = count;
    args.input = args.output = address(arena.buffer(1));
    args.shown_input = args.shown_output =
        static_cast<std::uint64_t>(arena.buffer(1) - arena.base());
    kernels::cuda::run_collective_on_host(args);
    const auto sum = expected_sum(2, DType::kF32, count);
    const bool same = std::memcmp(arena.buffer(1), sum.data(), sum.size()) == 0;
    return status.report == 0 && same ? 0 : 1;
}

bool mixed_with_cpu(SharedArena& arena) {
    constexpr std::uint64_t kMixed = 100003;
    arena.format(2);
    return in_children(2, [&](int rank) {
        if (rank == 1) return host_rank(arena, kMixed);
        const auto group = gpu_bench::join(arena, gpu_bench::on_device(arena), 0, 2);
        const OnDevice memory(kMixed * sizeof(float));
        return sum_is_right(arena, *group, 0, 2, DType::kF32, kMixed, memory.data, nullptr) ? 0 : 1;
    });
}

// An allreduce that is captured once and replayed: each adds the inputs of both ranks again.
bool graphs(SharedArena& arena) {
    constexpr std::uint64_t kElements = 1000;
    constexpr int kReplays = 10;
    arena.format(2);
    return in_children(2, [&](int rank) {
        const auto group = gpu_bench::join(arena, gpu_bench::on_device(arena), rank, 2);
        cudaStream_t stream = nullptr;
        need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
        auto* values = reinterpret_cast<float*>(arena.buffer(rank));
        for (std::uint64_t i = 0; i < kElements; ++i) values[i] = 1;
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t made = nullptr;
        need(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
        need(group->run(allreduce_of(DType::kF32, kElements, values, values), stream), "captured");
        need(cudaStreamEndCapture(stream, &graph), "end of capture");
        need(cudaGraphInstantiate(&made, graph, 0), "instantiate");
        for (int i = 0; i < kReplays; ++i) need(cudaGraphLaunch(made, stream), "replay");
        need(group->wait(stream, Clock::now() + std::chrono::seconds(60)), "replays");
        for (std::uint64_t i = 0; i < kElements; ++i) {
            if (values[i] != static_cast<float>(1 << kReplays)) return 1;
        }
        return 0;
    });
}

bool missing_rank(SharedArena& arena) {
    arena.format(2);
    return in_children(1, [&](int) {
        const auto group = gpu_bench::join(arena, gpu_bench::on_device(arena), 0, 2,
                                           std::chrono::milliseconds(200));
        const TimePoint start = Clock::now();
        need(group->run({}, nullptr), "barrier");
        const auto ended = group->wait(nullptr, start + std::chrono::seconds(20));
        const bool named =
            !ended.ok() && ended.error().code == Errc::kTimeout && ended.error().detail == 1;
        return named && Clock::now() - start < std::chrono::seconds(2) ? 0 : 1;
    });
}

int report(const std::string& name, bool good) {
    std::printf("%-48s %s\n", name.c_str(), good ? "ok" : "FAILED");
    std::fflush(stdout);
    return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    g_quick = argc == 2 && std::strcmp(argv[1], "--quick") == 0;
    if (argc > 1 && !g_quick) {
        std::fprintf(stderr, "usage: fabric_gpu_check [--quick]\n");
        return 2;
    }
    if (const int code = gpu_bench::probe(); code != 0) return code;
    SharedArena arena;
    int failures = 0;
    for (int world = 1; world <= SharedArena::kMaxWorld; ++world) {
        failures += report("ranks as processes: " + std::to_string(world),
                           ranks_as_processes(arena, world, Memory::kStaged));
        failures += report("ranks as streams: " + std::to_string(world),
                           ranks_as_streams(arena, world, Memory::kStaged));
        if (world == 1) continue;  // none to export to
        failures += report("exported memory, processes: " + std::to_string(world),
                           ranks_as_processes(arena, world, Memory::kExported));
        failures += report("exported memory, streams: " + std::to_string(world),
                           ranks_as_streams(arena, world, Memory::kExported));
    }
    failures += report("a rank of the GPU and one of the CPU", mixed_with_cpu(arena));
    failures += report("a graph, replayed", graphs(arena));
    failures += report("a rank that does not come ends the wait", missing_rank(arena));
    return failures == 0 ? 0 : 1;
}
