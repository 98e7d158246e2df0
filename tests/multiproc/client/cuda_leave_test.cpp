// Groups that are left, arenas that are closed and sessions that end while kernels of theirs are on
// a stream: through fabricd and the C ABI, on the mock driver, whose streams have threads of their
// own here. Nothing of it ran on a GPU.

#include <doctest/doctest.h>

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fabricshm/cuda.h>

#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/mock_gpu/job_ranks.hpp"

using mock_gpu::device_memory;
using mock_gpu::has_kernels;
using mock_gpu::join;
using mock_gpu::join_on_device;
using mock_gpu::kJobBytes;
using test_support::Child;
using test_support::Daemon;
using test_support::failed;
using test_support::Gate;
using test_support::Job;
using test_support::run_children;

namespace {

constexpr std::uint64_t kCount = 700;  // less than half of a stage holds
constexpr std::int64_t kShortMs = 500;
constexpr std::int64_t kLongMs = 60'000;

enum class Way { kCudaLeave, kGroupLeave, kDetach, kArenaClose, kSessionClose, kExit, kCount };
enum class Peer { kAbsent, kDead, kLate };

template <typename Function>
Function* function_of(const char* name) {
    void* const library = ::dlopen(mock_gpu::mock_library().c_str(), RTLD_NOW | RTLD_NOLOAD);
    return reinterpret_cast<Function*>(::dlsym(library, name));
}

void* stream_of(int rank) {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(0x100 + rank));
}

// Streams that go on by themselves.
void with_own_time() {
    mock_gpu::HostState& host = mock_gpu::with_gpu();
    host.argument_size = mock_gpu::argument_size;
    host.own_time = true;
}

// Until all that was put on the stream is done, whatever has become of its memory.
void drain(int rank) {
    while (mock_gpu::mock_driver().stream_query(stream_of(rank)) != 0) std::this_thread::yield();
}

// A stream that does nothing more until it is released.
struct Blocked {
    std::atomic<bool> released{false};

    void block(int rank) {
        function_of<int(void*, void (*)(void*), void*)>("cuLaunchHostFunc")(
            stream_of(rank),
            [](void* at) {
                const auto& self = *static_cast<Blocked*>(at);
                while (!self.released.load()) std::this_thread::yield();
            },
            this);
    }
};

int all_reduce(fabricshm_group* group, float* buffer, int rank) {
    return fabricshm_allreduce_on_stream(group, buffer, buffer, kCount, FABRICSHM_F32,
                                         FABRICSHM_SUM, stream_of(rank));
}

// 0, or the step that went wrong. `code`: what the call that says something has said.
int leave_by(Way way, Job& job, fabricshm_group* group, int* code) {
    *code = 0;
    switch (way) {
        case Way::kCudaLeave:
            *code = fabricshm_cuda_leave(group);
            break;
        case Way::kDetach:
            fabricshm_group_leave(group);
            if (fabricshm_cuda_detach(job.arena) != 0) return failed(50);
            break;
        case Way::kArenaClose:
            fabricshm_group_leave(group);
            fabricshm_arena_close(job.arena);
            break;
        case Way::kGroupLeave:
            fabricshm_group_leave(group);
            break;
        case Way::kSessionClose:
            fabricshm_session_close(std::exchange(job.session, nullptr));
            break;
        case Way::kExit:
        case Way::kCount:
            break;
    }
    return 0;
}

struct Story {
    Way way;
    Peer peer;
    bool on_device;  // buffers, which are copied through the stage
    Gate joined, launched, left;
};

fabricshm_group* come(Job& job, int rank, std::int64_t timeout_ms) {
    with_own_time();
    // A short timeout is that of the join, too, for which the other one may be late on a busy
    // machine, even after a barrier: then it has failed for both, and both try again.
    for (int attempt = 0; job.ok && attempt < 10; ++attempt) {
        fabricshm_group* group = join(job, rank, 2);
        if (group == nullptr || fabricshm_cuda_attach(job.arena, 0) != 0) return nullptr;
        if (fabricshm_barrier(group) != 0) return nullptr;
        if (join_on_device(group, timeout_ms) == 0) return group;
        fabricshm_group_leave(group);
    }
    return nullptr;
}

float* buffer_of(const Job& job, bool on_device) {
    auto* made = on_device ? device_memory(kCount)
                           : static_cast<float*>(fabricshm_alloc(job.arena, kCount * 4));
    for (std::uint64_t i = 0; made != nullptr && i < kCount; ++i) made[i] = 1;
    return made;
}

// Rank 0, which leaves while its kernels wait for rank 1.
int leaver(const std::string& socket, Story& story) {
    Job job(socket, kJobBytes);
    fabricshm_group* group = come(job, 0, story.peer == Peer::kAbsent ? kShortMs : kLongMs);
    if (group == nullptr) return failed(1);
    float* buffer = buffer_of(job, story.on_device);
    if (buffer == nullptr) return failed(2);
    for (int i = 0; i < 3; ++i) {
        if (all_reduce(group, buffer, 0) != 0) return failed(3);
    }
    story.launched.open();
    int code = 0;
    if (const int wrong = leave_by(story.way, job, group, &code); wrong != 0) return wrong;
    story.left.open();
    if (story.way == Way::kExit) ::_exit(0);  // streams at work, and nothing was closed
    drain(0);
    const bool named = fabricshm_error_rank() == 1;
    if (story.way != Way::kCudaLeave) return 0;
    if (story.peer == Peer::kLate) return code == 0 ? 0 : failed(4);
    if (story.peer == Peer::kDead) return code == FABRICSHM_EPEER && named ? 0 : failed(5);
    // The other may have left before: then the kernels have ended, and there was nothing to wait
    // for.
    return code == 0 || (code == FABRICSHM_EPEER && named) ? 0 : failed(6);
}

int peer(const std::string& socket, Story& story) {
    Job job(socket, kJobBytes);
    fabricshm_group* group = come(job, 1, story.peer == Peer::kAbsent ? kShortMs : kLongMs);
    if (group == nullptr) return failed(11);
    float* buffer = buffer_of(job, false);
    story.joined.open();
    if (story.peer == Peer::kDead) {
        for (;;) ::pause();
    }
    if (!story.launched.wait()) return 12;
    if (story.peer == Peer::kAbsent) {
        // It comes when rank 0 is gone, which fabricshm_cuda_leave() is not without it.
        if (story.way == Way::kCudaLeave) return fabricshm_cuda_leave(group) == 0 ? 0 : failed(13);
        if (!story.left.wait()) return 14;
    }
    int code = 0;
    for (int i = 0; i < 3 && code == 0; ++i) {
        code = all_reduce(group, buffer, 1);
        if (code == 0) code = fabricshm_cuda_wait(group, stream_of(1), kLongMs);
    }
    if (story.peer == Peer::kLate && story.way != Way::kExit) {
        if (code != 0 || buffer[kCount - 1] != 8) return failed(15);
        return story.way != Way::kCudaLeave || fabricshm_cuda_leave(group) == 0 ? 0 : failed(16);
    }
    if (code == 0 && story.peer == Peer::kLate) return 0;  // before the other's process had ended
    const bool named =
        fabricshm_error_rank() == 0 || std::strstr(fabricshm_error_text(), "rank 0") != nullptr;
    const bool is_due = code == FABRICSHM_EPEER || code == FABRICSHM_ETIMEOUT;
    return is_due && named ? 0 : failed(17);
}

void tell(Way way, Peer how, bool on_device) {
    CAPTURE(static_cast<int>(way));
    CAPTURE(static_cast<int>(how));
    CAPTURE(on_device);
    const Daemon daemon;
    Story story{way, how, on_device, {}, {}, {}};
    Child other([&] { return peer(daemon.socket(), story); });
    Child first([&] { return leaver(daemon.socket(), story); });
    if (how == Peer::kDead) {
        CHECK(story.launched.wait());
        CHECK(story.joined.wait());
        other.kill();
    }
    CHECK(first.wait() == 0);
    if (how != Peer::kDead) CHECK(other.wait() == 0);
}

void tell_all(Peer how) {
    if (!has_kernels()) return;
    for (int way = 0; way < static_cast<int>(Way::kCount); ++way) {
        tell(static_cast<Way>(way), how, way % 2 == 0);
    }
    tell(Way::kSessionClose, how, true);
}

// What was put behind something that goes on for longer than any timeout runs when all is gone.
int leave_blocked(const std::string& socket, Way way) {
    Job job(socket, kJobBytes);
    with_own_time();
    fabricshm_group* group = join(job, 0, 1);
    if (group == nullptr || fabricshm_cuda_attach(job.arena, 0) != 0) return failed(1);
    if (join_on_device(group, kShortMs) != 0) return failed(2);
    float* buffer = device_memory(kCount);
    if (buffer == nullptr) return failed(3);
    for (std::uint64_t i = 0; i < kCount; ++i) buffer[i] = 5;
    Blocked blocked;
    blocked.block(0);
    if (all_reduce(group, buffer, 0) != 0) return failed(4);
    int code = 0;
    if (const int wrong = leave_by(way, job, group, &code); wrong != 0) return wrong;
    if (way == Way::kCudaLeave && code != FABRICSHM_ETIMEOUT) return failed(5);
    blocked.released.store(true);
    drain(0);
    for (std::uint64_t i = 0; i < kCount; ++i) {
        if (buffer[i] != 5) return failed(6);  // it did nothing any more
    }
    return 0;
}

// A graph of a group that is left.
int replay_after(const std::string& socket, Way way) {
    Job job(socket, kJobBytes);
    with_own_time();
    fabricshm_group* group = join(job, 0, 1);
    if (group == nullptr || fabricshm_cuda_attach(job.arena, 0) != 0) return failed(1);
    if (join_on_device(group, kShortMs) != 0) return failed(2);
    auto* buffer = static_cast<float*>(fabricshm_alloc(job.arena, kCount * 4));
    float* outside = device_memory(kCount);
    if (buffer == nullptr || outside == nullptr) return failed(3);
    void* graph = nullptr;
    void* executable = nullptr;
    function_of<int(void*, int)>("cuStreamBeginCapture_v2")(stream_of(0), 0);
    const int put = all_reduce(group, buffer, 0) + all_reduce(group, outside, 0);
    function_of<int(void*, void**)>("cuStreamEndCapture")(stream_of(0), &graph);
    function_of<int(void**, void*, unsigned long long)>("cuGraphInstantiateWithFlags")(&executable,
                                                                                       graph, 0);
    if (put != 0) return failed(4);
    auto* const launch = function_of<int(void*, void*)>("cuGraphLaunch");
    if (launch(executable, stream_of(0)) != 0) return 5;
    int code = 0;
    if (const int wrong = leave_by(way, job, group, &code); wrong != 0) return wrong;
    if (code != 0) return failed(6);
    for (int i = 0; i < 3; ++i) {
        if (launch(executable, stream_of(0)) != 0) return 7;
    }
    drain(0);
    return 0;
}

}  // namespace

TEST_SUITE("multiproc.client.cuda_leave") {
    TEST_CASE("a rank leaves with kernels on a stream whose peer does not come") {
        tell_all(Peer::kAbsent);
    }

    TEST_CASE("a rank leaves with kernels on a stream whose peer is killed") {
        tell_all(Peer::kDead);
    }

    TEST_CASE("a rank that leaves waits for its kernels, whose peer comes late") {
        tell_all(Peer::kLate);
    }

    TEST_CASE("what has not begun when its group is left does nothing when it begins") {
        if (!has_kernels()) return;
        for (int way = 0; way < static_cast<int>(Way::kExit); ++way) {
            CAPTURE(way);
            const Daemon daemon;
            const auto codes = run_children(1, [&](int) -> int {
                return leave_blocked(daemon.socket(), static_cast<Way>(way));
            });
            CHECK(codes[0] == 0);
        }
    }

    TEST_CASE("a graph that is launched after its group was left does nothing") {
        if (!has_kernels()) return;
        for (int way = 0; way < static_cast<int>(Way::kExit); ++way) {
            CAPTURE(way);
            const Daemon daemon;
            const auto codes = run_children(1, [&](int) -> int {
                return replay_after(daemon.socket(), static_cast<Way>(way));
            });
            CHECK(codes[0] == 0);
        }
    }
}
