// Device memory that ranks export to each other. Here ranks are threads of one process, which reach
// each other's memory where it is; multiproc.client.cuda_exports has processes.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "libfabricshm/base/reason.hpp"
#include "tests/support/apart_sums.hpp"
#include "tests/support/mock_gpu/stream_ranks.hpp"

using namespace fabricshm;
using namespace mock_gpu;
namespace apart = test_support::apart;
namespace device = kernels::cuda;
using device::CollectiveKind;
using kernels::DType;

namespace {

constexpr int kWorld = 3;
constexpr Bytes kSkip = 512;  // so that offsets in an allocation and in a range differ
// What fits into half of a stage for each rank's part, of the largest type.
constexpr std::uint64_t kFits = kStageBytes / 2 / kWorld / 16;

int copies(const HostState& host) {
    return static_cast<int>(
        std::count_if(host.launches.begin(), host.launches.end(),
                      [](const Launch& one) { return one.kernel == device::kCopyKernel; }));
}

bool run_one(gpu::DeviceGroup& group, const gpu::DeviceCall& call) {
    return group.run(call, nullptr).ok() && group.status().ok();
}

bool allreduce_is_right(gpu::DeviceGroup& group, std::byte* input, std::byte* output, int rank,
                        int world, std::uint64_t count, DType type = DType::kF32) {
    apart::give_all(type, input, rank, 0, count);
    auto call = call_of(CollectiveKind::kAllReduce, input, output, count);
    call.dtype = type;
    call.op = apart::op_of(type);
    return run_one(group, call) &&
           apart::wrong(type, output, count, [&](std::byte* at, std::uint64_t i) {
               apart::combine(type, at, world, i);
           }) == 0;
}

// The collectives other than an allreduce; whether all elements are right.
bool others_are_right(gpu::DeviceGroup& group, std::byte* input, std::byte* output, int rank,
                      std::uint64_t count, DType type) {
    const Bytes part = count * kernels::size_of(type);
    const auto call = [&](CollectiveKind kind, const void* from, void* to) {
        auto made = call_of(kind, from, to, count);
        made.dtype = type;
        made.op = apart::op_of(type);
        return made;
    };
    std::uint64_t wrong = 0;
    apart::give_all(type, input, rank, 0, count * kWorld);
    if (!run_one(group, call(CollectiveKind::kReduceScatter, input, output))) return false;
    const std::uint64_t first = static_cast<std::uint64_t>(rank) * count;
    wrong += apart::wrong(type, output, count, [first, type](std::byte* at, std::uint64_t i) {
        apart::combine(type, at, kWorld, first + i);
    });
    apart::give_all(type, input, rank, 0, count);
    if (!run_one(group, call(CollectiveKind::kAllGather, input, output))) return false;
    for (int from = 0; from < kWorld; ++from) {
        wrong +=
            apart::wrong(type, output + static_cast<Bytes>(from) * part, count,
                         [=](std::byte* at, std::uint64_t i) { apart::give(type, at, from, i); });
    }
    for (int root = 0; root < kWorld; ++root) {
        apart::give_all(type, input, rank, 0, count);
        auto broadcast = call(CollectiveKind::kBroadcast, input, input);
        broadcast.root = root;
        if (!run_one(group, broadcast)) return false;
        wrong += apart::wrong(type, input, count, [=](std::byte* at, std::uint64_t i) {
            apart::give(type, at, root, i);
        });
    }
    return wrong == 0;
}

// The argument of a collective as rank 1 of 2 has it.
device::CollectiveArgs hostile_args(Ranks& ranks, device::GridWords& grid,
                                    device::StatusWords& status, std::uint64_t count) {
    const auto address = [](const void* at) { return reinterpret_cast<device::Address>(at); };
    device::CollectiveArgs args{};
    args.group.block = address(ranks.base);
    args.group.grid = address(&grid);
    args.group.status = address(&status);
    args.group.timeout_ns = 60'000'000'000;
    args.group.rank = 1;
    args.group.world = 2;
    args.group.epoch = reinterpret_cast<device::DeviceGroupHeader*>(ranks.base)->epoch;
    args.group.pool = {address(ranks.base), kArenaBytes};
    args.group.device[0] = {ranks.device_memory[0], kPerRank};
    args.kind = CollectiveKind::kAllGather;
    args.type = DType::kF32;
    args.divisor = 2;
    args.count = count;
    args.input = address(ranks.own(1, Where::kPool));
    args.output = args.input + kPerRank / 2;
    args.shown_output = device::kPrivatePlace;
    return args;
}

}  // namespace

TEST_SUITE("cuda.exports") {
    TEST_CASE("memory that all export is used where it is, of every type and in every collective") {
        Ranks ranks(kWorld);
        const auto exported = ranks.export_all(0b111, kSkip);
        REQUIRE(exported.ok());
        CHECK(*exported == 0b111);
        std::vector<int> good(kWorld);
        ranks.run([&](int rank, gpu::DeviceGroup& group) {
            std::byte* input = ranks.own(rank, Where::kDevice) + kSkip;
            std::byte* output = input + kPerRank / 2;
            for (int t = 0; t < kernels::kDTypeCount; ++t) {
                const auto type = static_cast<DType>(t);
                if (allreduce_is_right(group, input, output, rank, kWorld, kFits, type) &&
                    allreduce_is_right(group, input, input, rank, kWorld, kFits, type) &&
                    others_are_right(group, input, output, rank, kFits, type)) {
                    ++good[static_cast<std::size_t>(rank)];
                }
            }
        });
        for (const int all : good) CHECK(all == kernels::kDTypeCount);
        CHECK(copies(ranks.host) == 0);
        CHECK(ranks.host.opens == 0);  // a handle can't be opened by the process that made it
    }

    TEST_CASE("ranks that export go with those that do not, also where operations are cut") {
        constexpr std::uint64_t kCut = kStageBytes / 8 * 2 + 3;  // of f32
        for (const unsigned int exporters : {0b000U, 0b001U, 0b110U, 0b111U}) {
            Ranks ranks(kWorld);
            const auto exported = ranks.export_all(exporters, kSkip);
            REQUIRE(exported.ok());
            CHECK(*exported == exporters);
            std::vector<int> good(kWorld);
            ranks.run([&](int rank, gpu::DeviceGroup& group) {
                std::byte* input = ranks.own(rank, Where::kDevice) + kSkip;
                std::byte* output = input + kPerRank / 2;
                if (allreduce_is_right(group, input, output, rank, kWorld, kCut)) {
                    ++good[static_cast<std::size_t>(rank)];
                }
            });
            for (const int all : good) CHECK(all == 1);
            // Three pieces, each in and out, for every rank that does not export.
            CHECK(copies(ranks.host) == 6 * (3 - __builtin_popcount(exporters)));
            ranks.run([&](int rank, gpu::DeviceGroup& group) {
                std::byte* input = ranks.own(rank, Where::kDevice) + kSkip;
                std::byte* output = input + kPerRank / 2;
                if (others_are_right(group, input, output, rank, kCut, DType::kF32)) {
                    ++good[static_cast<std::size_t>(rank)];
                }
            });
            for (const int all : good) CHECK(all == 2);
            if (exporters == 0b111) CHECK(copies(ranks.host) == 0);
        }
    }

    TEST_CASE(
        "a step takes exported gradients larger than half of a stage, and stores into peers") {
        constexpr std::uint64_t kTotal = 5000;
        constexpr double kRate = 0.5;
        Ranks ranks(2);
        REQUIRE(ranks.export_all(0b11).ok());
        kernels::Hyper hyper;
        hyper.learning_rate = kRate;
        const auto factors = kernels::make_step_factors(kernels::Rule::kSgd, hyper, 1);
        std::memcpy(ranks.base + kBuffersAt - 4096, &factors, sizeof factors);
        std::vector<int> good(2);
        ranks.run([&](int rank, gpu::DeviceGroup& group) {
            std::byte* memory = ranks.own(rank, Where::kDevice);
            gpu::DeviceStep step;
            step.rule = kernels::Rule::kSgd;
            step.scale = 0.5F;
            step.total = kTotal;
            step.begin = rank == 0 ? 0 : 3000;
            step.count = rank == 0 ? 3000 : 2000;
            step.factors = ranks.base + kBuffersAt - 4096;
            step.gradient = memory;
            step.publish = memory + 32768;
            step.parameters = memory + 65536;
            fill(memory, rank, kTotal);
            auto* own = reinterpret_cast<float*>(memory + 65536);
            for (std::uint64_t i = 0; i < step.count; ++i) {
                own[i] = static_cast<float>(step.begin + i);
            }
            bool done = group.step(step, nullptr).ok() && group.status().ok();
            const auto* all = reinterpret_cast<const float*>(memory + 32768);
            for (std::uint64_t i = 0; i < kTotal; ++i) {
                const double mean = (value_of(0, i) + value_of(1, i)) * 0.5;
                if (all[i] != static_cast<double>(i) - kRate * mean) done = false;
            }
            if (done) ++good[static_cast<std::size_t>(rank)];
        });
        for (const int all : good) CHECK(all == 1);
        CHECK(copies(ranks.host) == 0);
    }

    TEST_CASE("buffers that are not all inside of the range go through the stage") {
        Ranks ranks(2);
        REQUIRE(ranks.export_all(0b11, kSkip, kSkip).ok());
        std::vector<int> good(2);
        const auto run_at = [&](Bytes at) {
            ranks.host.launches.clear();
            ranks.run([&](int rank, gpu::DeviceGroup& group) {
                std::byte* buffer = ranks.own(rank, Where::kDevice) + at;
                if (allreduce_is_right(group, buffer, buffer, rank, 2, 64)) {
                    ++good[static_cast<std::size_t>(rank)];
                }
            });
            return copies(ranks.host);
        };
        CHECK(run_at(kSkip) == 0);
        CHECK(run_at(kPerRank - kSkip - 256) == 0);  // its last bytes
        CHECK(run_at(kPerRank - kSkip - 252) == 4);  // one element behind it
        CHECK(run_at(kPerRank - kSkip) == 4);
        CHECK(run_at(kSkip - 4) == 4);  // one element before it
        CHECK(run_at(0) == 4);
        for (const int all : good) CHECK(all == 6);
    }

    TEST_CASE("memory that was freed under its export and allocated again goes through the stage") {
        Ranks ranks(2);
        REQUIRE(ranks.export_all(0b11).ok());
        const gpu::Pointer before = ranks.device_memory[1];
        {
            const gpu::CurrentContext current(mock_driver(), ranks.arena->device().context());
            REQUIRE(mock_driver().free(before) == 0);
            REQUIRE(mock_driver().alloc(&ranks.device_memory[1], kPerRank) == 0);
        }
        // Where the mock gives another address the case shows nothing.
        WARN(ranks.device_memory[1] == before);
        std::vector<int> good(2);
        ranks.run([&](int rank, gpu::DeviceGroup& group) {
            std::byte* buffer = ranks.own(rank, Where::kDevice);
            if (allreduce_is_right(group, buffer, buffer, rank, 2, 64)) {
                ++good[static_cast<std::size_t>(rank)];
            }
        });
        for (const int all : good) CHECK(all == 1);
        CHECK(copies(ranks.host) == 2);  // rank 1's, in and out
    }

    TEST_CASE("the next export replaces the one before, and none is the end of it") {
        Ranks ranks(2);
        std::vector<int> good(2);
        int rounds = 0;
        for (const unsigned int exporters : {0b11U, 0b01U, 0b00U, 0b10U, 0b11U}) {
            const auto exported = ranks.export_all(exporters, rounds % 2 == 0 ? 0 : kSkip);
            REQUIRE(exported.ok());
            CHECK(*exported == exporters);
            for (const auto& group : ranks.groups) CHECK(group->exported() == exporters);
            ranks.host.launches.clear();
            ranks.run([&](int rank, gpu::DeviceGroup& group) {
                std::byte* buffer = ranks.own(rank, Where::kDevice) + kSkip;
                if (allreduce_is_right(group, buffer, buffer, rank, 2, 64)) {
                    ++good[static_cast<std::size_t>(rank)];
                }
            });
            CHECK(copies(ranks.host) == 2 * (2 - __builtin_popcount(exporters)));
            ++rounds;
        }
        for (const int all : good) CHECK(all == rounds);
    }

    TEST_CASE("what has no handle, or is no memory of this device, is refused with the reason") {
        Ranks ranks(2);
        gpu::DeviceGroup& group = *ranks.groups[0];
        const auto refusal = [&](const void* pointer, Bytes bytes) {
            const auto offered = group.offer(pointer, bytes);
            REQUIRE_FALSE(offered.ok());
            return offered.error();
        };
        std::byte* own = ranks.own(0, Where::kDevice);
        std::vector<std::byte> heap(4096);
        CHECK(refusal(ranks.base + kBuffersAt, 64).code == Errc::kInvalid);
        CHECK(refusal(heap.data(), 64).code == Errc::kInvalid);
        CHECK(refusal(nullptr, 64).code == Errc::kInvalid);
        CHECK(refusal(own, 0).code == Errc::kInvalid);
        CHECK(refusal(own, kPerRank + 1).code == Errc::kInvalid);
        CHECK(refusal(own + kSkip, kPerRank).code == Errc::kInvalid);
        CHECK(refusal(own, ~Bytes{0}).code == Errc::kInvalid);
        const auto take = [&] {
            gpu::Pointer made = 0;
            const gpu::CurrentContext current(mock_driver(), ranks.arena->device().context());
            REQUIRE(mock_driver().alloc(&made, 4096) == 0);
            return made;
        };
        ranks.host.has_ipc_handles = false;
        const gpu::Pointer mapped = take();
        const Error none = refusal(reinterpret_cast<void*>(mapped), 4096);
        CHECK(none.code == Errc::kUnsupported);
        CHECK(std::strstr(reason_of(none), "cuMemCreate") != nullptr);
        ranks.host.has_ipc_handles = true;
        ranks.host.memory_device = 1;
        const gpu::Pointer elsewhere = take();
        CHECK(refusal(reinterpret_cast<void*>(elsewhere), 4096).code == Errc::kInvalid);
        mock_driver().free(mapped);
        mock_driver().free(elsewhere);
        CHECK(group.status().ok());
        CHECK(group.offer(own, kPerRank).ok());
    }

    TEST_CASE("a rank on a CPU exports nothing") {
        Ranks ranks(2, std::chrono::seconds(60), 0b10);
        const auto refused = ranks.groups[1]->offer(nullptr, 0);
        REQUIRE_FALSE(refused.ok());
        CHECK(refused.error().code == Errc::kUnsupported);
    }

    TEST_CASE("parts that are apart have to be inside as a whole") {
        constexpr std::uint64_t kCount = 64;
        constexpr Bytes kStride = 4096;
        constexpr Bytes kSpan = kStride + kCount * sizeof(float);  // of two parts
        for (const Bytes at : {kPerRank - kSpan, kPerRank - kSpan + 4, kPerRank - 256}) {
            Ranks ranks(2);
            REQUIRE(ranks.export_all(0b11).ok());
            std::vector<device::StatusWords> status(2);
            std::vector<device::GridWords> grids(2);
            std::vector<std::thread> threads;
            for (int rank = 0; rank < 2; ++rank) {
                const auto index = static_cast<std::size_t>(rank);
                auto args = hostile_args(ranks, grids[index], status[index], kCount);
                args.group.rank = rank;
                args.group.device[1] = {ranks.device_memory[1], kPerRank};
                args.kind = CollectiveKind::kReduceScatter;
                args.stride = kStride;
                args.input = ranks.device_memory[index] + (rank == 0 ? 0 : kPerRank - kSpan);
                args.output = reinterpret_cast<device::Address>(ranks.own(rank, Where::kPool));
                args.shown_input =
                    device::make_place(device::Space::kDevice, rank == 0 ? 0 : at) | device::kApart;
                threads.emplace_back(
                    [args] { execute_kernel(device::kCollectiveKernel, 1, &args); });
            }
            for (std::thread& thread : threads) thread.join();
            const bool fits = at == kPerRank - kSpan;
            CHECK(status[0].report ==
                  (fits ? 0 : device::make_report(device::Outcome::kBadPlace, 1)));
        }
    }

    TEST_CASE("a place outside of what a rank exports is an error, and nothing is read there") {
        constexpr std::uint64_t kCount = 64;
        const struct {
            device::Place shown;
            Errc expected;
            bool exports;
        } cases[] = {
            {device::make_place(device::Space::kDevice, kPerRank - 4 * kCount + 4), Errc::kCorrupt,
             true},
            {device::make_place(device::Space::kDevice, kPerRank), Errc::kCorrupt, true},
            {device::make_place(device::Space::kDevice, (Bytes{1} << 62) - 4), Errc::kCorrupt,
             true},
            {device::make_place(device::Space::kDevice, 0), Errc::kUnsupported, false},
            {device::make_place(device::Space::kDevice, kPerRank - 4 * kCount), Errc::kOk, true},
        };
        for (const auto& one : cases) {
            Ranks ranks(2);
            REQUIRE(ranks.export_all(one.exports ? 0b11 : 0b01).ok());
            Error seen{Errc::kOk, 0, ""};
            ranks.run([&](int rank, gpu::DeviceGroup& group) {
                if (rank == 1) {
                    device::GridWords grid{};
                    device::StatusWords status{};
                    auto args = hostile_args(ranks, grid, status, kCount);
                    args.shown_input = one.shown;
                    execute_kernel(device::kCollectiveKernel, 1, &args);
                    return;
                }
                std::byte* input = ranks.own(0, Where::kDevice);
                const auto put = group.run(
                    call_of(CollectiveKind::kAllGather, input, input + kPerRank / 2, kCount),
                    nullptr);
                if (put.ok()) {
                    seen = group.status().error();
                } else {
                    seen = put.error();
                }
            });
            CHECK(seen.code == one.expected);
        }
    }
}
