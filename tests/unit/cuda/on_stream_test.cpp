// Ranks as threads, each with its own group on the mock's device, whose kernels run on the CPU:
// what the host puts on streams makes the results that it promises.

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/cuda/device_group.hpp"
#include "tests/support/mock_gpu/stream_ranks.hpp"

using namespace fabricshm;
using namespace mock_gpu;
using kernels::cuda::CollectiveKind;

namespace {

// Some ranks have their buffers in the pool and some on the device.
Where mixed(int rank) {
    return rank % 2 == 0 ? Where::kDevice : Where::kPool;
}

// One element, a few, all of half a stage, and what is cut into pieces with a rest.
constexpr std::uint64_t kCounts[] = {0, 1, 5, 255, kStageBytes / 8, kStageBytes / 8 * 2 + 3};

}  // namespace

TEST_SUITE("cuda.on_stream") {
    TEST_CASE("an allreduce sums what lies in the pool and on devices, in place and not") {
        for (const int world : {1, 2, 3, 4}) {
            Ranks ranks(world);
            std::vector<int> good(static_cast<std::size_t>(world));
            ranks.run([&](int rank, gpu::DeviceGroup& group) {
                for (const std::uint64_t count : kCounts) {
                    for (const bool in_place : {true, false}) {
                        std::byte* input = ranks.own(rank, mixed(rank));
                        std::byte* output = in_place ? input : input + kPerRank / 2;
                        fill(input, rank, count);
                        const auto call = call_of(CollectiveKind::kAllReduce, input, output, count);
                        const bool done = group.run(call, nullptr).ok() && group.status().ok();
                        if (done && is_sum(output, world, 0, count)) {
                            ++good[static_cast<std::size_t>(rank)];
                        }
                    }
                }
            });
            for (const int all : good) CHECK(all == 2 * static_cast<int>(std::size(kCounts)));
        }
    }

    TEST_CASE("a reduce_scatter gives each rank the sum of its part") {
        constexpr int kWorld = 3;
        Ranks ranks(kWorld);
        std::vector<int> good(kWorld);
        ranks.run([&](int rank, gpu::DeviceGroup& group) {
            for (const std::uint64_t count : kCounts) {
                std::byte* input = ranks.own(rank, mixed(rank));
                std::byte* output = input + kPerRank / 2;
                fill(input, rank, count * kWorld);
                const auto call = call_of(CollectiveKind::kReduceScatter, input, output, count);
                const bool done = group.run(call, nullptr).ok() && group.status().ok();
                const std::uint64_t first = count * static_cast<std::uint64_t>(rank);
                if (done && is_sum(output, kWorld, first, count)) {
                    ++good[static_cast<std::size_t>(rank)];
                }
            }
        });
        for (const int all : good) CHECK(all == static_cast<int>(std::size(kCounts)));
    }

    TEST_CASE("an all_gather gives all ranks all parts, also in place") {
        constexpr int kWorld = 4;
        Ranks ranks(kWorld);
        std::vector<int> good(kWorld);
        ranks.run([&](int rank, gpu::DeviceGroup& group) {
            for (const std::uint64_t count : kCounts) {
                std::byte* output = ranks.own(rank, mixed(rank));
                std::byte* input = output + static_cast<Bytes>(rank) * count * sizeof(float);
                fill(input, rank, count);
                const auto call = call_of(CollectiveKind::kAllGather, input, output, count);
                bool done = group.run(call, nullptr).ok() && group.status().ok();
                const auto* values = reinterpret_cast<const float*>(output);
                for (std::uint64_t i = 0; i < count * kWorld; ++i) {
                    const auto from = static_cast<int>(i / count);
                    if (values[i] != value_of(from, i % count)) done = false;
                }
                if (done) ++good[static_cast<std::size_t>(rank)];
            }
        });
        for (const int all : good) CHECK(all == static_cast<int>(std::size(kCounts)));
    }

    TEST_CASE("a broadcast gives all ranks what the root has") {
        constexpr int kWorld = 3;
        Ranks ranks(kWorld);
        std::vector<int> good(kWorld);
        ranks.run([&](int rank, gpu::DeviceGroup& group) {
            for (const std::uint64_t count : kCounts) {
                for (int root = 0; root < kWorld; ++root) {
                    std::byte* buffer = ranks.own(rank, mixed(rank));
                    fill(buffer, rank, count);
                    auto call = call_of(CollectiveKind::kBroadcast, buffer, buffer, count);
                    call.root = root;
                    bool done = group.run(call, nullptr).ok() && group.status().ok();
                    const auto* values = reinterpret_cast<const float*>(buffer);
                    for (std::uint64_t i = 0; i < count; ++i) {
                        if (values[i] != value_of(root, i)) done = false;
                    }
                    if (done) ++good[static_cast<std::size_t>(rank)];
                }
            }
        });
        for (const int all : good) CHECK(all == kWorld * static_cast<int>(std::size(kCounts)));
    }

    TEST_CASE("a fused step moves each rank's elements and gives all of them to all") {
        constexpr int kWorld = 2;
        constexpr std::uint64_t kTotal = 1000;
        constexpr double kRate = 0.5;
        Ranks ranks(kWorld);
        kernels::Hyper hyper;
        hyper.learning_rate = kRate;
        const auto factors = kernels::make_step_factors(kernels::Rule::kSgd, hyper, 1);
        std::memcpy(ranks.base + kBuffersAt - 4096, &factors, sizeof factors);
        std::vector<int> good(kWorld);
        ranks.run([&](int rank, gpu::DeviceGroup& group) {
            std::byte* memory = ranks.own(rank, mixed(rank));
            gpu::DeviceStep step;
            step.rule = kernels::Rule::kSgd;
            step.scale = 0.5F;
            step.total = kTotal;
            step.begin = rank == 0 ? 0 : 600;
            step.count = rank == 0 ? 600 : 400;
            step.factors = ranks.base + kBuffersAt - 4096;
            step.gradient = memory;
            step.publish = memory + 8192;
            step.parameters = memory + 16384;
            fill(memory, rank, kTotal);
            auto* own = reinterpret_cast<float*>(memory + 16384);
            for (std::uint64_t i = 0; i < step.count; ++i) {
                own[i] = static_cast<float>(step.begin + i);
            }
            bool done = group.step(step, nullptr).ok() && group.status().ok();
            const auto* all = reinterpret_cast<const float*>(memory + 8192);
            for (std::uint64_t i = 0; i < kTotal; ++i) {
                // Halves and quarters of small whole numbers: exact.
                const double mean = (value_of(0, i) + value_of(1, i)) * 0.5;
                if (all[i] != static_cast<double>(i) - kRate * mean) done = false;
            }
            if (done) ++good[static_cast<std::size_t>(rank)];
        });
        for (const int all : good) CHECK(all == 1);
    }

    TEST_CASE("a rank that does not come ends the others' waits by the timeout, and the group") {
        // Long enough for ranks 0 and 1 to be no later than that on a busy machine.
        Ranks ranks(3, std::chrono::seconds(2));
        std::vector<Error> seen(3);
        ranks.run([&](int rank, gpu::DeviceGroup& group) {
            if (rank == 2) return;
            const auto put =
                group.run(call_of(CollectiveKind::kBarrier, nullptr, nullptr, 0), nullptr);
            seen[static_cast<std::size_t>(rank)] = put.ok() ? group.status().error() : put.error();
        });
        // The first to give up names rank 2; the other may hear of that first.
        for (int rank = 0; rank < 2; ++rank) {
            const Error& error = seen[static_cast<std::size_t>(rank)];
            const bool by_itself = error.code == Errc::kTimeout && error.detail == 2;
            const bool by_peer = error.code == Errc::kPeer && error.detail == 1 - rank;
            CHECK((by_itself || by_peer));
        }
        const auto later =
            ranks.groups[0]->run(call_of(CollectiveKind::kBarrier, nullptr, nullptr, 0), nullptr);
        CHECK_FALSE(later.ok());
    }

    TEST_CASE("a death that one rank hears of ends the waits of all, naming the dead") {
        // The timeout would be a minute; the test's own is the proof that it is not waited for.
        Ranks ranks(3);
        std::vector<Error> seen(3);
        std::atomic<int> waiting{0};
        ranks.run([&](int rank, gpu::DeviceGroup& group) {
            const auto index = static_cast<std::size_t>(rank);
            if (rank == 2) {  // dead: rank 0's host learns of it while its kernel waits
                while (waiting.load() < 2) std::this_thread::yield();
                ranks.deaths[0] = 2;
                while (ranks.groups[0]->status().ok()) std::this_thread::yield();
                return;
            }
            waiting.fetch_add(1);
            const auto put =
                group.run(call_of(CollectiveKind::kBarrier, nullptr, nullptr, 0), nullptr);
            seen[index] = put.ok() ? group.status().error() : put.error();
        });
        for (int rank = 0; rank < 2; ++rank) {
            const Error& error = seen[static_cast<std::size_t>(rank)];
            CHECK(error.code == Errc::kPeer);
            // A kernel that sees its peer fail first names that one.
            CHECK((error.detail == 2 || error.detail == 1 - rank));
        }
    }

    TEST_CASE("ranks that call different operations all fail") {
        Ranks ranks(2);
        std::vector<Error> seen(2);
        ranks.run([&](int rank, gpu::DeviceGroup& group) {
            std::byte* buffer = ranks.own(rank, Where::kPool);
            const std::uint64_t count = rank == 0 ? 8 : 9;
            const auto put =
                group.run(call_of(CollectiveKind::kAllReduce, buffer, buffer, count), nullptr);
            seen[static_cast<std::size_t>(rank)] = put.ok() ? group.status().error() : put.error();
        });
        for (int rank = 0; rank < 2; ++rank) {
            const Error& error = seen[static_cast<std::size_t>(rank)];
            CHECK(error.code == Errc::kMismatch);
            CHECK(error.detail == 1 - rank);
        }
    }
}
