// Ranks of CPUs in device groups: in the calling thread, with the bits of the others, and looking
// after their peers while they wait.

#include <doctest/doctest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/os/poison.hpp"
#include "tests/support/apart_sums.hpp"
#include "tests/support/mock_gpu/stream_ranks.hpp"

using namespace fabricshm;
using namespace mock_gpu;
using kernels::DType;
using kernels::cuda::CollectiveKind;
namespace apart = test_support::apart;

#ifdef __SANITIZE_THREAD__
// Ranks are threads of one mapping here. The handler puts a page in place of the lost one, and the
// guard's end the lost one back: by mmap(), which the kernel does in one go, and which this
// sanitizer takes for a store to the page.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
    return "race:on_sigbus\nrace:put_back\n";
}
#endif

namespace {

constexpr int kWorld = 4;
constexpr unsigned int kSomeCpus = 0b0101;
constexpr unsigned int kAllCpus = 0b1111;

// Of each pair of ranks one has its buffers where peers can't reach them.
Where place_of(int rank) {
    return rank < kWorld / 2 ? Where::kDevice : Where::kPool;
}

bool run_one(gpu::DeviceGroup& group, const gpu::DeviceCall& call) {
    return group.run(call, nullptr).ok() && group.status().ok();
}

// How many elements are wrong after each kind of collective, on this rank.
std::uint64_t wrong_elements(Ranks& ranks, gpu::DeviceGroup& group, int rank, DType type,
                             std::uint64_t count) {
    const Bytes element = kernels::size_of(type);
    std::byte* input = ranks.own(rank, place_of(rank));
    std::byte* output = input + kPerRank / 2;
    const auto call = [&](CollectiveKind kind) {
        auto made = call_of(kind, input, output, count);
        made.dtype = type;
        made.op = apart::op_of(type);
        return made;
    };
    std::uint64_t wrong = 0;
    apart::give_all(type, input, rank, 0, count);
    if (!run_one(group, call(CollectiveKind::kAllReduce))) return 1;
    wrong += apart::wrong(type, output, count, [type](std::byte* at, std::uint64_t i) {
        apart::combine(type, at, kWorld, i);
    });
    if (!run_one(group, call(CollectiveKind::kAllGather))) return 1;
    for (int from = 0; from < kWorld; ++from) {
        wrong += apart::wrong(
            type, output + static_cast<Bytes>(from) * count * element, count,
            [from, type](std::byte* at, std::uint64_t i) { apart::give(type, at, from, i); });
    }
    apart::give_all(type, input, rank, 0, count * kWorld);
    if (!run_one(group, call(CollectiveKind::kReduceScatter))) return 1;
    const std::uint64_t first = static_cast<std::uint64_t>(rank) * count;
    wrong += apart::wrong(type, output, count, [first, type](std::byte* at, std::uint64_t i) {
        apart::combine(type, at, kWorld, first + i);
    });
    for (int root = 0; root < kWorld; ++root) {
        apart::give_all(type, output, rank, 0, count);
        auto broadcast = call(CollectiveKind::kBroadcast);
        broadcast.input = output;
        broadcast.root = root;
        if (!run_one(group, broadcast)) return 1;
        wrong += apart::wrong(type, output, count, [root, type](std::byte* at, std::uint64_t i) {
            apart::give(type, at, root, i);
        });
    }
    return wrong;
}

Error barrier(gpu::DeviceGroup& group) {
    const auto put = group.run(call_of(CollectiveKind::kBarrier, nullptr, nullptr, 0), nullptr);
    return put.ok() ? group.status().error() : put.error();
}

}  // namespace

TEST_SUITE("cuda.cpu_ranks") {
    TEST_CASE("every type and collective has the bits of a loop over the ranks, on CPUs and GPUs") {
        for (const unsigned int cpus : {kSomeCpus, kAllCpus}) {
            Ranks ranks(kWorld, std::chrono::seconds(60), cpus);
            std::vector<std::uint64_t> wrong(kWorld);
            ranks.run([&](int rank, gpu::DeviceGroup& group) {
                for (int t = 0; t < kernels::kDTypeCount; ++t) {
                    // The last is more than half of a stage holds, of every type.
                    for (const std::uint64_t count : {0, 1, 37, 300}) {
                        wrong[static_cast<std::size_t>(rank)] +=
                            wrong_elements(ranks, group, rank, static_cast<DType>(t), count);
                    }
                }
            });
            for (const std::uint64_t all : wrong) CHECK(all == 0);
        }
    }

    TEST_CASE("an operation of a CPU's rank has ended when it returns, with its failure") {
        Ranks ranks(2, std::chrono::milliseconds(20), 0b01);
        const auto late =
            ranks.groups[0]->run(call_of(CollectiveKind::kBarrier, nullptr, nullptr, 0), nullptr);
        CHECK(late.error().code == Errc::kTimeout);
        CHECK(late.error().detail == 1);
        // The rank on the device hears that this one has failed.
        const Error other = barrier(*ranks.groups[1]);
        CHECK(other.code == Errc::kPeer);
        CHECK(other.detail == 0);
    }

    TEST_CASE("a CPU's rank has no streams") {
        Ranks ranks(1, std::chrono::seconds(60), 0b1);
        const auto stream = reinterpret_cast<gpu::Handle>(0x77);
        const auto call = call_of(CollectiveKind::kBarrier, nullptr, nullptr, 0);
        CHECK(ranks.groups[0]->run(call, stream).error().code == Errc::kInvalid);
        CHECK(ranks.groups[0]->step({}, stream).error().code == Errc::kInvalid);
        CHECK(ranks.groups[0]->wait(stream, Clock::now()).error().code == Errc::kInvalid);
        // Nothing was begun.
        CHECK(ranks.groups[0]->run(call, nullptr).ok());
        CHECK(ranks.groups[0]->wait(nullptr, Clock::now()).ok());
    }

    TEST_CASE("a CPU's rank that waits hears of a death, and ends the others' waits") {
        // The timeout would be a minute; the test's own is the proof that it is not waited for.
        Ranks ranks(3, std::chrono::seconds(60), 0b001);
        std::vector<Error> seen(3);
        ranks.run([&](int rank, gpu::DeviceGroup& group) {
            if (rank == 2) {  // dead: the rank on the CPU alone is notified
                ranks.deaths[0] = 2;
                return;
            }
            seen[static_cast<std::size_t>(rank)] = barrier(group);
        });
        CHECK(seen[0].code == Errc::kPeer);
        CHECK(seen[0].detail == 2);
        CHECK(seen[1].code == Errc::kPeer);
        CHECK((seen[1].detail == 2 || seen[1].detail == 0));
    }

    TEST_CASE("another thread's abort ends the wait of a CPU's rank") {
        Ranks ranks(2, std::chrono::seconds(60), 0b11);
        Error seen;
        ranks.run([&](int rank, gpu::DeviceGroup& group) {
            if (rank == 0) {
                seen = barrier(group);
            } else {
                group.abort(1);
            }
        });
        CHECK(seen.code == Errc::kPeer);
        CHECK(seen.detail == 1);
    }

    TEST_CASE("a fused step gives CPUs and GPUs the same parameters") {
        constexpr std::uint64_t kTotal = 1000;
        constexpr double kRate = 0.5;
        Ranks ranks(2, std::chrono::seconds(60), 0b01);
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
        CHECK(good[0] == 1);
        CHECK(good[1] == 1);
    }

    TEST_CASE("a lost page is an error of the operation, on all ranks, and no crash") {
        constexpr Bytes kPage = 4096;
        for (const bool in_input : {true, false}) {
            const auto file = std::make_shared<const Fd>(::memfd_create("arena", MFD_CLOEXEC));
            REQUIRE(::ftruncate(file->get(), kArenaBytes) == 0);
            const Mapping mapping = std::move(Mapping::map(*file, 0, kArenaBytes, {})).value();
            const PoisonWatch watch(mapping.data(), kArenaBytes, {file, 0, kPage, true});
            gpu::format_device_group(mapping.data(), 2, 1);
            std::atomic<int> reports{0};
            std::vector<std::unique_ptr<gpu::DeviceGroup>> groups;
            for (int rank = 0; rank < 2; ++rank) {
                gpu::DevicePlace place;
                place.rank = rank;
                place.world = 2;
                place.stage = kStagesAt + static_cast<Bytes>(rank) * kStageBytes;
                place.stage_bytes = kStageBytes;
                // As a group of the hosts has it: what one rank reports all can hear.
                const auto check = [&]() -> Result<void> {
                    return reports.load() == 0 ? Result<void>() : Error{Errc::kPoisoned, 77, "at"};
                };
                const auto report = [&](const PoisonGuard& guard) -> Result<void> {
                    if (!guard.hit()) return {};
                    ++reports;
                    return Error{Errc::kPoisoned, 77, "at"};
                };
                groups.push_back(gpu::DeviceGroup::make_on_host(mapping.data(), kArenaBytes, place,
                                                                check, report)
                                     .value());
            }
            std::byte* const buffers = mapping.data() + kBuffersAt;
            std::vector<std::byte> heap(kPage);
            lose_page(in_input ? buffers + kPage : mapping.data() + kStagesAt + kStageBytes);
            std::vector<Error> seen(2);
            std::vector<std::thread> threads;
            for (int rank = 0; rank < 2; ++rank) {
                threads.emplace_back([&, rank] {
                    // Rank 1's input is lost, or its stage, through which its heap goes.
                    const auto index = static_cast<std::size_t>(rank);
                    std::byte* own = buffers + index * kPage;
                    if (rank == 1 && !in_input) own = heap.data();
                    gpu::DeviceGroup& group = *groups[index];
                    const auto put =
                        group.run(call_of(CollectiveKind::kAllReduce, own, own, 256), nullptr);
                    seen[index] = put.error();
                    const auto later =
                        group.run(call_of(CollectiveKind::kBarrier, nullptr, nullptr, 0), nullptr);
                    if (later.error().code != Errc::kPoisoned) seen[index] = later.error();
                });
            }
            for (std::thread& thread : threads) thread.join();
            for (const Error& error : seen) {
                CHECK(error.code == Errc::kPoisoned);
                CHECK(error.detail == 77);
            }
            CHECK(reports.load() >= 1);
            // The rank did not say that it had done its part.
            const auto* words = reinterpret_cast<const kernels::cuda::DeviceRankWords*>(
                mapping.data() + sizeof(kernels::cuda::DeviceGroupHeader));
            CHECK(words[1].done == 0);
        }
    }
}
