// Groups that end while kernels of theirs are on a stream, on the mock driver: the host waits for
// what it has launched, and what begins later does nothing. Nothing of it ran on a GPU.

#include <doctest/doctest.h>

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "libfabricshm/base/reason.hpp"
#include "tests/support/mock_gpu/stream_ranks.hpp"

using namespace fabricshm;
using namespace mock_gpu;
using kernels::cuda::CollectiveKind;

namespace {

constexpr std::uint64_t kCount = 300;
constexpr Duration kLong = std::chrono::seconds(60);

template <typename Function>
Function* function_of(const char* name) {
    static void* const library = ::dlopen(mock_library().c_str(), RTLD_NOW | RTLD_NOLOAD);
    return reinterpret_cast<Function*>(::dlsym(library, name));
}

// Another one for each rank and test: a stream of the mock has a thread to the end.
gpu::Handle new_stream() {
    static std::atomic<std::uintptr_t> next{0x1000};
    return reinterpret_cast<gpu::Handle>(next.fetch_add(1));
}

void drain(gpu::Handle stream) {
    while (mock_driver().stream_query(stream) != 0) std::this_thread::yield();
}

// Holds a stream up until it is released.
struct Blocked {
    explicit Blocked(gpu::Handle stream) {
        function_of<gpu::Status(gpu::Handle, void (*)(void*), void*)>("cuLaunchHostFunc")(
            stream,
            [](void* at) {
                while (!static_cast<Blocked*>(at)->released.load()) std::this_thread::yield();
            },
            this);
    }
    std::atomic<bool> released{false};
};

// Ranks whose kernels run in own time, each on a stream.
struct Scene : Ranks {
    explicit Scene(int count, Duration timeout = kLong) : Ranks(count, timeout) {
        host.argument_size = argument_size;
        host.own_time = true;
        for (int rank = 0; rank < count; ++rank) streams.push_back(new_stream());
    }
    gpu::DeviceGroup& group(int rank) { return *groups[static_cast<std::size_t>(rank)]; }
    gpu::Handle stream(int rank) const { return streams[static_cast<std::size_t>(rank)]; }
    Result<void> put(int rank, Where where) {
        std::byte* buffer = own(rank, where);
        return group(rank).run(call_of(CollectiveKind::kAllReduce, buffer, buffer, kCount),
                               stream(rank));
    }
    kernels::cuda::DeviceRankWords& words(int rank) const {
        return reinterpret_cast<kernels::cuda::DeviceRankWords*>(
            base + sizeof(kernels::cuda::DeviceGroupHeader))[rank];
    }
    // Until the rank's kernel shows itself to the peers.
    void await_arrival(int rank) const {
        const std::atomic_ref arrived(words(rank).arrived);
        while (arrived.load(std::memory_order_acquire) == 0) std::this_thread::yield();
    }
    // put() without copies, and where its kernel reports.
    kernels::cuda::StatusWords& put_in_pool(int rank) {
        host.argument_bytes = sizeof(kernels::cuda::CollectiveArgs);
        REQUIRE(put(rank, Where::kPool).ok());
        host.argument_bytes = 0;
        kernels::cuda::CollectiveArgs args;
        std::memcpy(&args, host.launches.back().argument.data(), sizeof args);
        return *reinterpret_cast<kernels::cuda::StatusWords*>(args.group.status);
    }
    std::vector<gpu::Handle> streams;
};

bool says(const Result<void>& result, const char* words) {
    return std::strstr(reason_of(result.error()), words) != nullptr;
}

TimePoint in(Duration length) {
    return Clock::now() + length;
}

}  // namespace

TEST_SUITE("cuda.leave") {
    TEST_CASE("leaving waits for what was launched, whose peer comes late") {
        for (const Where where : {Where::kPool, Where::kDevice}) {
            Scene scene(2);
            for (int rank = 0; rank < 2; ++rank) fill(scene.own(rank, where), rank, kCount);
            REQUIRE(scene.put(0, where).ok());
            std::thread peer([&] { CHECK(scene.put(1, where).ok()); });
            CHECK(scene.group(0).finish(in(kLong)).ok());
            peer.join();
            CHECK(is_sum(scene.own(0, where), 2, 0, kCount));
            CHECK_FALSE(scene.group(0).is_stuck());
            CHECK(scene.group(1).finish(in(kLong)).ok());
            CHECK(is_sum(scene.own(1, where), 2, 0, kCount));
        }
    }

    TEST_CASE("a peer that does not come is named, and hears of it when it comes") {
        Scene scene(2, std::chrono::milliseconds(20));
        REQUIRE(scene.put(0, Where::kDevice).ok());
        const auto left = scene.group(0).finish(in(kLong));
        CHECK(left.error().code == Errc::kTimeout);
        CHECK(left.error().detail == 1);
        REQUIRE(scene.put(1, Where::kPool).ok());
        const auto late = scene.group(1).wait(scene.stream(1), in(kLong));
        CHECK(late.error().code == Errc::kPeer);
        CHECK(late.error().detail == 0);
    }

    TEST_CASE(
        "the failure of an operation that has ended is returned once, when it was asked for or by "
        "leaving") {
        for (const bool is_asked : {false, true}) {
            CAPTURE(is_asked);
            Scene scene(2, std::chrono::milliseconds(20));
            REQUIRE(scene.put(0, Where::kDevice).ok());
            drain(scene.stream(0));
            if (is_asked) CHECK(scene.group(0).status().error().code == Errc::kTimeout);
            const auto left = scene.group(0).finish(in(kLong));
            CHECK(left.ok() == is_asked);
            if (!is_asked) CHECK(left.error().code == Errc::kTimeout);
        }
    }

    TEST_CASE("a kernel that waits for a peer when the time is over is ended, and the peers'") {
        for (const bool has_begun : {false, true}) {
            CAPTURE(has_begun);
            Scene scene(3);
            Blocked blocked(scene.stream(0));
            REQUIRE(scene.put(0, Where::kPool).ok());
            REQUIRE(scene.put(1, Where::kPool).ok());
            if (has_begun) {
                blocked.released = true;
                scene.await_arrival(0);
            }
            const auto left = scene.group(0).finish(Clock::now());
            CHECK(left.error().code == Errc::kTimeout);
            CHECK(says(left, "does nothing any more"));
            CHECK_FALSE(scene.group(0).is_stuck());
            blocked.released = true;
            const auto peer = scene.group(1).wait(scene.stream(1), in(kLong));
            CHECK(peer.error().code == Errc::kPeer);
            CHECK(peer.error().detail == 0);
            drain(scene.stream(0));
        }
    }

    TEST_CASE("what failed before the waits are ended is what leaving returns") {
        Scene scene(2);
        auto& status = scene.put_in_pool(0);
        scene.await_arrival(0);
        // As an operation before this one: what a kernel reports first, stays.
        status.report = kernels::cuda::make_report(kernels::cuda::Outcome::kMismatch, 1);
        const auto left = scene.group(0).finish(Clock::now());
        CHECK(left.error().code == Errc::kMismatch);
        CHECK(left.error().detail == 1);
    }

    TEST_CASE("a kernel that begins behind the closed gate is no failure of an operation") {
        Scene scene(1);
        Blocked blocked(scene.stream(0));
        // As if it began between the closing and the host's look.
        scene.put_in_pool(0).report = kernels::cuda::make_report(kernels::cuda::Outcome::kLeft, 0);
        const auto left = scene.group(0).finish(Clock::now());
        CHECK(left.error().code == Errc::kTimeout);
        CHECK(says(left, "does nothing any more"));
        blocked.released = true;
        drain(scene.stream(0));
    }

    TEST_CASE("a death that the host hears of ends the wait of a rank that leaves") {
        Scene scene(2);
        REQUIRE(scene.put(0, Where::kPool).ok());
        scene.deaths[0] = 1;
        const auto left = scene.group(0).finish(in(kLong));
        CHECK(left.error().code == Errc::kPeer);
        CHECK(left.error().detail == 1);
    }

    TEST_CASE("what has not begun when the rank has left does nothing, in device memory too") {
        for (const Where where : {Where::kPool, Where::kDevice}) {
            Scene scene(1);
            fill(scene.own(0, where), 7, kCount);
            Blocked blocked(scene.stream(0));
            REQUIRE(scene.put(0, where).ok());
            const auto left = scene.group(0).finish(in(std::chrono::milliseconds(5)));
            CHECK(left.error().code == Errc::kTimeout);
            CHECK(says(left, "does nothing any more"));
            CHECK_FALSE(scene.group(0).is_stuck());
            scene.groups.clear();
            std::memset(scene.base, 0xff, kBuffersAt);  // the group's words and stages are others'
            blocked.released = true;
            drain(scene.stream(0));
            CHECK(std::all_of(scene.base, scene.base + kBuffersAt,
                              [](std::byte one) { return one == std::byte{0xff}; }));
        }
    }

    TEST_CASE("a rank that leaves is named to peers that need it, not to those that do not") {
        Scene scene(3);
        for (int rank = 0; rank < 3; ++rank) REQUIRE(scene.put(rank, Where::kPool).ok());
        CHECK(scene.group(0).finish(in(kLong)).ok());
        for (int rank = 1; rank < 3; ++rank) {
            CHECK(scene.group(rank).wait(scene.stream(rank), in(kLong)).ok());
        }
        for (int rank = 1; rank < 3; ++rank) {
            REQUIRE(scene.put(rank, Where::kPool).ok());
            const auto more = scene.group(rank).wait(scene.stream(rank), in(kLong));
            CHECK(more.error().code == Errc::kPeer);
            CHECK(more.error().detail == 0);
            CHECK(says(more, "left"));
        }
        CHECK(scene.put(0, Where::kPool).error().code == Errc::kBroken);
    }

    TEST_CASE("a kernel that does not end keeps the arena registered") {
        Scene scene(1);
        const std::size_t registered = scene.host.registered.size();
        auto& status = scene.put_in_pool(0);
        drain(scene.stream(0));
        std::atomic_ref(status.busy).store(1);  // as a kernel at work has it
        const auto left = scene.group(0).finish(Clock::now(), std::chrono::milliseconds(1));
        CHECK(left.error().code == Errc::kTimeout);
        CHECK(says(left, "stays until the process ends"));
        CHECK(scene.group(0).is_stuck());
        scene.groups.clear();
        scene.arena.reset();
        CHECK(scene.host.registered.size() == registered);
        CHECK(scene.words(0).failure == 0);  // the kernel may still write it
    }
}
