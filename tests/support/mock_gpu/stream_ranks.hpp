// Ranks as threads, each with its own device group on the mock's device, whose kernels run on the
// CPU, or as ranks of CPUs among them.

#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "libfabricshm/cuda/device_group.hpp"
#include "tests/support/mock_gpu/execute.hpp"
#include "tests/support/mock_gpu/mock_driver.hpp"

namespace mock_gpu {

using namespace fabricshm;

inline constexpr Bytes kArenaBytes = 2 << 20;
inline constexpr Bytes kStagesAt = 64 * kKiB;
inline constexpr Bytes kStageBytes = 8 * kKiB;  // small, so that operations are cut
inline constexpr Bytes kBuffersAt = 256 * kKiB;
inline constexpr Bytes kPerRank = 128 * kKiB;
inline constexpr char kImage[] = "code";

enum class Where { kPool, kDevice };  // on a CPU kDevice is memory of the process

// World ranks in one arena: those of `cpu_bits` on CPUs, the others on the device.
// `work(rank, group)` runs in a thread for each.
struct Ranks {
    explicit Ranks(int count, Duration timeout = std::chrono::seconds(60),
                   unsigned int cpu_bits = 0)
        : world(count),
          cpus(cpu_bits),
          memory(kArenaBytes + 4096),
          deaths(static_cast<std::size_t>(count)) {
        host.real_memory = true;
        host.execute = execute_kernel;
        base = reinterpret_cast<std::byte*>(
            round_up(reinterpret_cast<std::uintptr_t>(memory.data()), 4096));
        auto context = gpu::DeviceContext::open(mock_driver(), 0, {kImage, kImage}).value();
        arena = gpu::DeviceArena::make(context, base, kArenaBytes).value();
        gpu::format_device_group(base, world, 1);
        for (int rank = 0; rank < world; ++rank) {
            gpu::DevicePlace place;
            place.rank = rank;
            place.world = world;
            place.stage = kStagesAt + static_cast<Bytes>(rank) * kStageBytes;
            place.stage_bytes = kStageBytes;
            place.ranks_here = world;
            place.timeout = timeout;
            auto check = [this, rank]() -> Result<void> {
                const int dead = deaths[static_cast<std::size_t>(rank)].load();
                return dead < 0 ? Result<void>() : Error{Errc::kPeer, dead, "died"};
            };
            deaths[static_cast<std::size_t>(rank)] = -1;
            if (is_cpu(rank)) {
                groups.push_back(
                    gpu::DeviceGroup::make_on_host(base, kArenaBytes, place, check).value());
            } else {
                groups.push_back(gpu::DeviceGroup::make(arena, place, check).value());
            }
            gpu::Pointer own = 0;
            const gpu::CurrentContext current(mock_driver(), context->context());
            REQUIRE(mock_driver().alloc(&own, kPerRank) == 0);
            device_memory.push_back(own);
        }
    }
    ~Ranks() {
        groups.clear();
        for (const gpu::Pointer own : device_memory) mock_driver().free(own);
    }

    bool is_cpu(int rank) const { return (cpus >> rank & 1) != 0; }

    std::byte* own(int rank, Where where) const {
        const auto index = static_cast<std::size_t>(rank);
        return where == Where::kPool ? base + kBuffersAt + index * kPerRank
                                     : reinterpret_cast<std::byte*>(device_memory[index]);
    }

    // What CudaSeat does for ranks that are processes: the ranks of `exporters` export their memory
    // on the device from `skip` on but for the last `rest` bytes, the others nothing. Nothing runs
    // meanwhile.
    Result<std::uint32_t> export_all(unsigned int exporters, Bytes skip = 0, Bytes rest = 0) {
        std::vector<std::unique_ptr<gpu::DeviceExports>> exports;
        std::vector<gpu::ExportOffer> offers;
        for (int rank = 0; rank < world; ++rank) {
            const auto index = static_cast<std::size_t>(rank);
            const bool has = (exporters >> rank & 1) != 0;
            FABRIC_TRY(auto made,
                       groups[index]->offer(has ? own(rank, Where::kDevice) + skip : nullptr,
                                            has ? kPerRank - skip - rest : 0));
            offers.push_back(made->offered());
            exports.push_back(std::move(made));
        }
        std::uint32_t by_all = ~std::uint32_t{0};
        for (const auto& one : exports) {
            FABRIC_TRY(const std::uint32_t reached, one->open(offers));
            by_all &= reached;
        }
        for (std::size_t i = groups.size(); i-- > 0;) {
            exports[i]->keep(by_all);
            groups[i]->use(std::move(exports[i]));
        }
        return by_all;
    }

    template <typename Work>
    void run(const Work& work) {
        std::vector<std::thread> threads;
        for (int rank = 0; rank < world; ++rank) {
            threads.emplace_back(
                [&, rank] { work(rank, *groups[static_cast<std::size_t>(rank)]); });
        }
        for (std::thread& thread : threads) thread.join();
    }

    const int world;
    const unsigned int cpus;
    HostState& host = fresh_host();
    std::vector<std::byte> memory;
    std::byte* base = nullptr;
    std::shared_ptr<gpu::DeviceArena> arena;
    std::vector<std::atomic<int>> deaths;  // by rank: which it has heard of; -1: none
    std::vector<std::unique_ptr<gpu::DeviceGroup>> groups;
    std::vector<gpu::Pointer> device_memory;
};

// Small whole numbers: sums are exact in every order.
inline float value_of(int rank, std::uint64_t i) {
    return static_cast<float>((static_cast<std::uint64_t>(rank) * 31 + i * 7) % 101) - 50;
}

inline void fill(std::byte* memory, int rank, std::uint64_t count) {
    auto* values = reinterpret_cast<float*>(memory);
    for (std::uint64_t i = 0; i < count; ++i) values[i] = value_of(rank, i);
}

inline bool is_sum(const std::byte* memory, int world, std::uint64_t first, std::uint64_t count) {
    const auto* values = reinterpret_cast<const float*>(memory);
    for (std::uint64_t i = 0; i < count; ++i) {
        float sum = 0;
        for (int rank = 0; rank < world; ++rank) sum += value_of(rank, first + i);
        if (values[i] != sum) return false;
    }
    return true;
}

inline gpu::DeviceCall call_of(kernels::cuda::CollectiveKind kind, const void* input, void* output,
                               std::uint64_t count) {
    gpu::DeviceCall call;
    call.kind = kind;
    call.input = input;
    call.output = output;
    call.count = count;
    return call;
}

}  // namespace mock_gpu
