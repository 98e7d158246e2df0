#include "libfabricshm/cuda/device_group.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "libfabricshm/base/reason.hpp"
#include "tests/support/mock_gpu/mock_driver.hpp"

using namespace fabricshm;
namespace device = kernels::cuda;
using device::CollectiveArgs;
using device::CollectiveKind;
using device::CopyArgs;
using kernels::DType;

namespace {

constexpr Bytes kArenaBytes = 1 << 20;
constexpr Bytes kBlockAt = 0;
constexpr Bytes kStageAt = 64 * kKiB;
constexpr Bytes kStageBytes = 64 * kKiB;
constexpr Bytes kHalf = kStageBytes / 2;
constexpr Bytes kBuffersAt = 256 * kKiB;
constexpr Bytes kApart = 0x100000000;  // the device's addresses of the arena: so much higher
const char kImage[] = "code";

// An arena in ordinary memory, on the mock's device, with rank 1 of a group of 4. What is launched
// is recorded, nothing runs.
struct Fixture {
    mock_gpu::HostState& host = mock_gpu::fresh_host();
    const gpu::Driver& driver = mock_gpu::mock_driver();
    std::vector<std::byte> memory = std::vector<std::byte>(kArenaBytes + 4096);
    std::byte* arena_base = reinterpret_cast<std::byte*>(
        round_up(reinterpret_cast<std::uintptr_t>(memory.data()), 4096));
    Result<void> peers;  // what the check of the peers says
    int checks = 0;
    std::shared_ptr<gpu::DeviceArena> arena;
    std::unique_ptr<gpu::DeviceGroup> group;
    gpu::Pointer on_device_only = 0;
    gpu::Handle stream = reinterpret_cast<gpu::Handle>(0x77);

    Fixture() {
        host.real_memory = true;
        host.device_offset = kApart;
        host.argument_bytes = 8;
        auto context = gpu::DeviceContext::open(driver, 0, {kImage, kImage}).value();
        {
            const gpu::CurrentContext current(driver, context->context());
            driver.alloc(&on_device_only, 512 * kKiB);
        }
        arena = gpu::DeviceArena::make(std::move(context), arena_base, kArenaBytes).value();
        sit(4);
    }
    ~Fixture() {
        group.reset();
        driver.free(on_device_only);
    }

    void sit(int world) {
        gpu::DevicePlace place;
        place.rank = world == 1 ? 0 : 1;
        place.world = world;
        place.block = kBlockAt;
        place.stage = kStageAt;
        place.stage_bytes = kStageBytes;
        place.ranks_here = world;
        place.timeout = std::chrono::milliseconds(7);
        gpu::format_device_group(arena_base + kBlockAt, world, place.epoch);
        group = gpu::DeviceGroup::make(arena, place, [this] {
                    ++checks;
                    return peers;
                }).value();
        host.launches.clear();
    }

    device::DeviceGroupHeader& header() {
        return *reinterpret_cast<device::DeviceGroupHeader*>(arena_base + kBlockAt);
    }
    // Where the kernels of this rank report.
    device::StatusWords& status_words() {
        host.argument_bytes = sizeof(CollectiveArgs);
        const std::size_t before = host.launches.size();
        REQUIRE(group->run({}, stream).ok());
        const Bytes at = argument<CollectiveArgs>(before).group.status;
        return *reinterpret_cast<device::StatusWords*>(at);
    }
    template <typename Args>
    Args argument(std::size_t launch) {
        Args args{};
        REQUIRE(launch < host.launches.size());
        REQUIRE(host.launches[launch].argument.size() >= sizeof args);
        std::memcpy(&args, host.launches[launch].argument.data(), sizeof args);
        return args;
    }
    device::Address device_address(Bytes offset) const {
        return reinterpret_cast<device::Address>(arena_base) + kApart + offset;
    }
    gpu::DeviceCall call(CollectiveKind kind, const void* input, void* output,
                         std::uint64_t count) const {
        gpu::DeviceCall made;
        made.kind = kind;
        made.input = input;
        made.output = output;
        made.count = count;
        return made;
    }
    void* private_memory(Bytes offset = 0) const {
        return reinterpret_cast<void*>(on_device_only + offset);
    }
    // The copies read 24 bytes, the collective more: a launch has as many of its argument as asked.
    void record(Bytes bytes) { host.argument_bytes = bytes; }
};

}  // namespace

TEST_SUITE("cuda.device_group") {
    TEST_CASE_FIXTURE(Fixture,
                      "an allreduce in the arena is one kernel with the device's addresses") {
        record(sizeof(CollectiveArgs));
        auto wanted = call(CollectiveKind::kAllReduce, arena_base + kBuffersAt,
                           arena_base + kBuffersAt + 4096, 1000);
        wanted.op = kernels::ReduceOp::kAvg;
        REQUIRE(group->run(wanted, stream).ok());
        REQUIRE(host.launches.size() == 1);
        const mock_gpu::Launch& launch = host.launches[0];
        CHECK(launch.kernel == "fabric_collective");
        CHECK(launch.stream == stream);
        CHECK(launch.threads == device::kBlockThreads);
        const auto args = argument<CollectiveArgs>(0);
        CHECK(args.kind == CollectiveKind::kAllReduce);
        CHECK(args.algorithm == device::Algorithm::kAuto);
        CHECK(args.type == DType::kF32);
        CHECK(args.op == kernels::ReduceOp::kAvg);
        CHECK(args.divisor == 4);
        CHECK(args.count == 1000);
        CHECK(args.input == device_address(kBuffersAt));
        CHECK(args.output == device_address(kBuffersAt + 4096));
        CHECK(args.shown_input == device::make_place(device::Space::kPool, kBuffersAt));
        CHECK(args.shown_output == device::make_place(device::Space::kPool, kBuffersAt + 4096));
        CHECK(args.group.rank == 1);
        CHECK(args.group.world == 4);
        CHECK(args.group.epoch == header().epoch);
        CHECK(args.group.block == device_address(kBlockAt));
        CHECK(args.group.timeout_ns == 7'000'000);
        CHECK(args.group.pool.base == device_address(0));
        CHECK(args.group.pool.bytes == kArenaBytes);
    }

    TEST_CASE_FIXTURE(Fixture, "a buffer may be given by the device's address of the arena") {
        record(sizeof(CollectiveArgs));
        auto* at = reinterpret_cast<void*>(device_address(kBuffersAt));
        REQUIRE(group->run(call(CollectiveKind::kAllReduce, at, at, 8), stream).ok());
        const auto args = argument<CollectiveArgs>(0);
        CHECK(args.input == device_address(kBuffersAt));
        CHECK(args.shown_input == device::make_place(device::Space::kPool, kBuffersAt));
    }

    TEST_CASE_FIXTURE(Fixture, "device memory goes through the two halves of the stage") {
        record(sizeof(CopyArgs));
        REQUIRE(group
                    ->run(call(CollectiveKind::kAllReduce, private_memory(), private_memory(), 256),
                          stream)
                    .ok());
        REQUIRE(host.launches.size() == 3);
        CHECK(host.launches[0].kernel == "fabric_copy");
        CHECK(host.launches[1].kernel == "fabric_collective");
        CHECK(host.launches[2].kernel == "fabric_copy");
        const auto in = argument<CopyArgs>(0);
        CHECK(in.source == on_device_only);
        CHECK(in.destination == device_address(kStageAt));
        CHECK(in.bytes == 1024);
        const auto out = argument<CopyArgs>(2);
        CHECK(out.source == device_address(kStageAt + kHalf));
        CHECK(out.destination == on_device_only);
        CHECK(out.bytes == 1024);
    }

    TEST_CASE_FIXTURE(
        Fixture, "peers store into outputs of an allreduce alone: others stay where they are") {
        host.execute = [](const char*, unsigned int, const void*) {};
        for (const auto kind : {CollectiveKind::kReduceScatter, CollectiveKind::kAllGather}) {
            host.launches.clear();
            REQUIRE(
                group->run(call(kind, arena_base + kBuffersAt, private_memory(), 64), stream).ok());
            REQUIRE(host.launches.size() == 1);
            CHECK(host.launches[0].kernel == "fabric_collective");
        }
    }

    TEST_CASE_FIXTURE(Fixture,
                      "this rank reads its own input where it is, its peers read the stage") {
        // What the collective is given, of the launches of an operation that also copies.
        static CollectiveArgs seen;
        host.execute = [](const char* kernel, unsigned int, const void* argument) {
            if (std::strcmp(kernel, "fabric_collective") == 0) {
                std::memcpy(&seen, argument, sizeof seen);
            }
        };
        REQUIRE(group
                    ->run(call(CollectiveKind::kAllReduce, private_memory(),
                               arena_base + kBuffersAt, 256),
                          stream)
                    .ok());
        CHECK(seen.input == on_device_only);
        CHECK(seen.shown_input == device::make_place(device::Space::kPool, kStageAt));
        CHECK(seen.output == device_address(kBuffersAt));
    }

    TEST_CASE_FIXTURE(Fixture,
                      "what is larger than half of the stage is cut, wherever the buffers are") {
        static std::vector<std::uint64_t> counts;
        counts.clear();
        host.execute = [](const char* kernel, unsigned int, const void* argument) {
            CollectiveArgs args;
            if (std::strcmp(kernel, "fabric_collective") != 0) return;
            std::memcpy(&args, argument, sizeof args);
            counts.push_back(args.count);
        };
        const std::uint64_t count = kHalf / 4 * 2 + 100;
        const std::vector<std::uint64_t> pieces = {kHalf / 4, kHalf / 4, 100};
        REQUIRE(
            group
                ->run(call(CollectiveKind::kAllReduce, private_memory(), private_memory(), count),
                      stream)
                .ok());
        CHECK(counts == pieces);
        counts.clear();
        host.launches.clear();
        REQUIRE(group
                    ->run(call(CollectiveKind::kAllReduce, arena_base + kBuffersAt,
                               arena_base + kBuffersAt, count),
                          stream)
                    .ok());
        CHECK(counts == pieces);
        CHECK(host.launches.size() == 3);  // and nothing is copied
    }

    TEST_CASE_FIXTURE(Fixture, "pieces of parts in the arena are taken where they are") {
        record(sizeof(CollectiveArgs));
        // Two pieces: a part has kHalf / 4 ranks' bytes of room.
        const std::uint64_t piece = kHalf / 4 / 4;
        const std::uint64_t count = piece + 16;
        const Bytes other = kBuffersAt + 256 * kKiB;
        REQUIRE(group
                    ->run(call(CollectiveKind::kAllGather, arena_base + kBuffersAt,
                               arena_base + other, count),
                          stream)
                    .ok());
        REQUIRE(host.launches.size() == 2);
        const auto gathered = argument<CollectiveArgs>(1);
        CHECK(gathered.count == 16);
        CHECK(gathered.stride == count * 4);
        CHECK(gathered.output == device_address(other + piece * 4));
        CHECK(gathered.shown_input ==
              device::make_place(device::Space::kPool, kBuffersAt + piece * 4));
        REQUIRE(group
                    ->run(call(CollectiveKind::kReduceScatter, arena_base + kBuffersAt,
                               arena_base + other, count),
                          stream)
                    .ok());
        REQUIRE(host.launches.size() == 4);
        const auto scattered = argument<CollectiveArgs>(3);
        CHECK(scattered.stride == count * 4);
        CHECK(scattered.input == device_address(kBuffersAt + piece * 4));
        CHECK(scattered.shown_input ==
              (device::make_place(device::Space::kPool, kBuffersAt + piece * 4) | device::kApart));
        // What fits into one piece has its parts next to each other.
        REQUIRE(group
                    ->run(call(CollectiveKind::kReduceScatter, arena_base + kBuffersAt,
                               arena_base + other, piece),
                          stream)
                    .ok());
        CHECK(argument<CollectiveArgs>(4).stride == 0);
    }

    TEST_CASE_FIXTURE(Fixture, "parts in device memory are gathered in the stage, piece by piece") {
        record(sizeof(CopyArgs));
        const std::uint64_t piece = kHalf / 4 / 4;
        REQUIRE(group
                    ->run(call(CollectiveKind::kReduceScatter, private_memory(),
                               arena_base + kBuffersAt, piece + 16),
                          stream)
                    .ok());
        REQUIRE(host.launches.size() == 2 * (4 + 1));
        const auto last = argument<CopyArgs>(8);  // the fourth part of the second piece
        CHECK(last.bytes == 64);
        CHECK(last.source == on_device_only + 3 * (piece + 16) * 4 + piece * 4);
        CHECK(last.destination == device_address(kStageAt + 3 * 64));
    }

    TEST_CASE("pieces are whole 16 bytes and never none") {
        const auto pieces = [](CollectiveKind kind, DType type, std::uint64_t count, Bytes half) {
            return gpu::elements_of_piece(kind, type, count, 4, half);
        };
        CHECK(pieces(CollectiveKind::kAllReduce, DType::kF32, 10, 64) == 10);
        CHECK(pieces(CollectiveKind::kAllReduce, DType::kF32, 17, 64) == 16);
        CHECK(pieces(CollectiveKind::kAllReduce, DType::kF32, 1000, 100) == 24);
        CHECK(pieces(CollectiveKind::kAllGather, DType::kF32, 1000, 256) == 16);
        CHECK(pieces(CollectiveKind::kReduceScatter, DType::kU8, 1000, 256) == 64);
        CHECK(pieces(CollectiveKind::kAllGather, DType::kF64, 1000, 16) == 1);
        CHECK(pieces(CollectiveKind::kBroadcast, DType::kF64, 0, 16) == 0);
    }

    TEST_CASE_FIXTURE(
        Fixture, "blocks are as many as the bytes pay for, and this rank's share of the device") {
        REQUIRE(group->run(call(CollectiveKind::kBarrier, nullptr, nullptr, 0), stream).ok());
        CHECK(host.launches[0].blocks == 1);
        // The mock has one multiprocessor: a fourth of it is one block as well.
        REQUIRE(group
                    ->run(call(CollectiveKind::kAllReduce, arena_base + kBuffersAt,
                               arena_base + kBuffersAt, kHalf / 4),
                          stream)
                    .ok());
        CHECK(host.launches[1].blocks == 1);
    }

    TEST_CASE_FIXTURE(
        Fixture, "memory that the device does not reach is refused before anything is launched") {
        int local[4] = {};
        for (const auto& wanted :
             {call(CollectiveKind::kAllReduce, local, arena_base + kBuffersAt, 4),
              call(CollectiveKind::kAllReduce, arena_base + kBuffersAt, local, 4),
              call(CollectiveKind::kAllReduce, nullptr, arena_base + kBuffersAt, 4),
              call(CollectiveKind::kAllReduce, arena_base + kBuffersAt + 2, arena_base + kBuffersAt,
                   4),
              // Half inside of the arena is not inside.
              call(CollectiveKind::kAllReduce, arena_base + kArenaBytes - 8,
                   arena_base + kBuffersAt, 1 << 20)}) {
            const auto refused = group->run(wanted, stream);
            REQUIRE_FALSE(refused.ok());
            CHECK(refused.error().code == Errc::kInvalid);
        }
        auto wrong = call(CollectiveKind::kBroadcast, arena_base, arena_base, 1);
        wrong.root = 4;
        CHECK(group->run(wrong, stream).error().code == Errc::kInvalid);
        auto mixed = call(CollectiveKind::kAllReduce, arena_base, arena_base, 1);
        mixed.op = kernels::ReduceOp::kBxor;
        CHECK(group->run(mixed, stream).error().code == Errc::kUnsupported);
        CHECK(host.launches.empty());
        CHECK(group->status().ok());  // the group goes on
    }

    TEST_CASE_FIXTURE(Fixture, "a buffer that ends outside of its allocation is refused by name") {
        const Bytes last = 512 * kKiB - 16;
        const auto fits =
            call(CollectiveKind::kAllReduce, private_memory(last), arena_base + kBuffersAt, 4);
        CHECK(group->run(fits, stream).ok());
        const std::size_t before = host.launches.size();
        for (const char* name : {"input", "output"}) {
            auto wanted = call(CollectiveKind::kAllReduce, arena_base + kBuffersAt,
                               arena_base + kBuffersAt, 5);
            if (*name == 'i') wanted.input = private_memory(last);
            if (*name == 'o') wanted.output = private_memory(last);
            const auto refused = group->run(wanted, stream);
            CHECK(refused.error().code == Errc::kInvalid);
            const std::string expected = std::string(name) + " ends outside of its allocation";
            CHECK(reason_of(refused.error()) == expected);
        }
        CHECK(host.launches.size() == before);
        // Where the driver does not know the end of what the caller has, as of cuMemCreate.
        host.has_ipc_handles = false;
        gpu::Pointer mapped = 0;
        const gpu::CurrentContext current(driver, arena->device().context());
        REQUIRE(driver.alloc(&mapped, 4096) == 0);
        auto* end = reinterpret_cast<void*>(mapped + 4096 - 16);
        CHECK(group->run(call(CollectiveKind::kAllReduce, end, arena_base + kBuffersAt, 5), stream)
                  .ok());
        driver.free(mapped);
    }

    TEST_CASE_FIXTURE(Fixture, "a launch that CUDA refuses ends the group for all ranks") {
        host.launch_status = 719;
        const auto refused =
            group->run(call(CollectiveKind::kBarrier, nullptr, nullptr, 0), stream);
        REQUIRE_FALSE(refused.ok());
        CHECK(refused.error().code == Errc::kBroken);
        CHECK(header().abort == device::make_report(device::Outcome::kAborted, 1));
        host.launch_status = 0;
        CHECK(
            group->run(call(CollectiveKind::kBarrier, nullptr, nullptr, 0), stream).error().code ==
            Errc::kBroken);
        CHECK(host.launches.empty());
    }

    TEST_CASE_FIXTURE(Fixture,
                      "a peer's death sets the abort word and names the rank, once and for good") {
        peers = Error{Errc::kPeer, 2, "died"};
        group.reset();
        sit(4);
        const auto dead = group->status();
        REQUIRE_FALSE(dead.ok());
        CHECK(dead.error().code == Errc::kPeer);
        CHECK(dead.error().detail == 2);
        CHECK(header().abort == device::make_report(device::Outcome::kAborted, 2));
        // From now on it is the word that says so, whatever the check says, and another reason does
        // not replace the first.
        peers = Error{Errc::kPeer, 3, "died"};
        group->abort(0);
        const auto later = group->run(call(CollectiveKind::kBarrier, nullptr, nullptr, 0), stream);
        CHECK(later.error().code == Errc::kPeer);
        CHECK(later.error().detail == 2);
        CHECK(host.launches.empty());
        CHECK(checks == 2);  // once more: it might have been lost memory
    }

    TEST_CASE_FIXTURE(Fixture, "peers are checked at most every 50 ms") {
        for (int i = 0; i < 1000; ++i) REQUIRE(group->status().ok());
        CHECK(checks >= 1);
        CHECK(checks < 100);
    }

    TEST_CASE_FIXTURE(Fixture, "what a kernel reports becomes the code of the group") {
        device::StatusWords& words = status_words();
        struct Row {
            device::Outcome outcome;
            int rank;
            Errc code;
        };
        for (const Row& row : {Row{device::Outcome::kAborted, 2, Errc::kPeer},
                               Row{device::Outcome::kAborted, 1, Errc::kBroken},
                               Row{device::Outcome::kTimeout, 3, Errc::kTimeout},
                               Row{device::Outcome::kMismatch, 0, Errc::kMismatch},
                               Row{device::Outcome::kPeerFailed, 0, Errc::kPeer},
                               Row{device::Outcome::kBadPlace, 0, Errc::kCorrupt},
                               Row{device::Outcome::kUnreachable, 0, Errc::kUnsupported},
                               Row{device::Outcome::kBroken, 1, Errc::kBroken},
                               Row{device::Outcome::kBadEpoch, 1, Errc::kCorrupt},
                               // No rank of four: a word that no rank writes.
                               Row{device::Outcome::kAborted, 4, Errc::kCorrupt},
                               Row{device::Outcome::kAborted, -1, Errc::kCorrupt},
                               Row{static_cast<device::Outcome>(99), 0, Errc::kCorrupt}}) {
            CAPTURE(static_cast<int>(row.outcome));
            CAPTURE(row.rank);
            words.report = device::make_report(row.outcome, row.rank);
            CHECK(group->status().error().code == row.code);
        }
        words.report = device::make_report(device::Outcome::kTimeout, 3);
        // That others waited in vain, too, says nothing more.
        peers = Error{Errc::kBroken, 3, "late"};
        CHECK(group->status().error().code == Errc::kTimeout);
        // The device knows that it waited in vain, the host that the rank has died.
        peers = Error{Errc::kPeer, 3, "died"};
        CHECK(group->status().error().code == Errc::kPeer);
        words.report = 0;
    }

    TEST_CASE_FIXTURE(Fixture, "a wait ends with the stream, or at its deadline") {
        CHECK(group->wait(stream, Clock::now() + std::chrono::seconds(10)).ok());
        host.stream_status = 600;  // not ready
        CHECK(group->wait(stream, Clock::now()).error().code == Errc::kTimeout);
        host.stream_status = 719;  // a kernel failed
        CHECK(group->wait(stream, Clock::now()).error().code == Errc::kBroken);
    }

    TEST_CASE_FIXTURE(Fixture,
                      "a step shows its gradient to the others and names its own elements") {
        record(sizeof(device::StepArgs));
        gpu::DeviceStep step;
        step.rule = kernels::Rule::kMaxAdaBelief;
        step.gradient_type = DType::kBF16;
        step.publish_type = DType::kBF16;
        step.scale = 0.25F;
        step.total = 4096;
        step.begin = 1024;
        step.count = 1024;
        step.factors = arena_base + kBuffersAt;
        step.parameters = static_cast<float*>(private_memory(0));
        step.first = static_cast<float*>(private_memory(4096));
        step.second = static_cast<float*>(private_memory(8192));
        step.gradient = arena_base + kBuffersAt + 4096;
        step.publish = arena_base + kBuffersAt + 16384;
        CHECK(group->step(step, stream).error().code == Errc::kInvalid);  // it has no maximum
        step.maximum = static_cast<float*>(private_memory(12288));
        REQUIRE(group->step(step, stream).ok());
        REQUIRE(host.launches.size() == 1);
        CHECK(host.launches[0].kernel == "fabric_step");
        const auto args = argument<device::StepArgs>(0);
        CHECK(args.rule == kernels::Rule::kMaxAdaBelief);
        CHECK(args.gradient_count == 4);
        CHECK(args.scale == 0.25F);
        CHECK(args.begin == 1024);
        CHECK(args.parameters == on_device_only);
        CHECK(args.maximum == on_device_only + 12288);
        CHECK(args.factors == device_address(kBuffersAt));
        CHECK(args.weights == 0);
        CHECK(args.shown_gradient == device::make_place(device::Space::kPool, kBuffersAt + 4096));
        CHECK(args.shown_publish == device::make_place(device::Space::kPool, kBuffersAt + 16384));
        step.begin = 4000;
        CHECK(group->step(step, stream).error().code == Errc::kInvalid);  // past the end
    }

    TEST_CASE_FIXTURE(Fixture, "factors are whole, also those that no rule needs") {
        gpu::DeviceStep step;
        step.rule = kernels::Rule::kSgd;
        step.total = step.count = 4;
        step.parameters = static_cast<float*>(private_memory(0));
        step.gradient = arena_base + kBuffersAt;
        step.factors = private_memory(512 * kKiB - 60);
        const auto refused = group->step(step, stream);
        CHECK(refused.error().code == Errc::kInvalid);
        CHECK(reason_of(refused.error()) == std::string("factors ends outside of its allocation"));
        step.factors = private_memory(512 * kKiB - 64);
        CHECK(group->step(step, stream).ok());
    }

    TEST_CASE_FIXTURE(Fixture,
                      "a gradient in device memory fits into half of the stage or is refused") {
        gpu::DeviceStep step;
        step.rule = kernels::Rule::kSgd;
        step.total = step.count = kHalf / 4;
        step.factors = arena_base + kBuffersAt;
        step.parameters = static_cast<float*>(private_memory(0));
        step.gradient = private_memory(kHalf);
        REQUIRE(group->step(step, stream).ok());
        CHECK(host.launches.size() == 2);
        step.total = step.count = kHalf / 4 + 1;
        CHECK(group->step(step, stream).error().code == Errc::kInvalid);
        CHECK(host.launches.size() == 2);
    }

    TEST_CASE_FIXTURE(Fixture,
                      "the end of a group keeps its words and kernels, which graphs may use") {
        const std::size_t before = host.pinned.size();
        const int modules = host.modules;
        group.reset();
        CHECK(host.pinned.size() == before);
        CHECK(host.contexts == 0);
        arena.reset();
        CHECK(host.registered.empty());
        CHECK(host.modules == modules);
        // The next arena uses the same context.
        const auto again = gpu::DeviceContext::open(driver, 0, {kImage, kImage});
        REQUIRE(again.ok());
        CHECK(host.modules == modules);
    }

    TEST_CASE("a context in which there was no group is given back, with its kernels") {
        mock_gpu::HostState& host = mock_gpu::fresh_host();
        {
            const auto made =
                gpu::DeviceContext::open(mock_gpu::mock_driver(), 0, {kImage, kImage});
            REQUIRE(made.ok());
            CHECK(host.modules == 2);
        }
        CHECK(host.modules == 0);
        CHECK(host.contexts == 0);
    }
}
