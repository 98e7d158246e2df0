// Collectives on streams through fabricd and the C ABI. The driver is the mock, whose device runs
// our kernels' bodies on the CPU; ranks are processes, some of them without a driver.

#include <doctest/doctest.h>

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <fabricshm/cuda.h>

#include "tests/support/apart_sums.hpp"
#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/mock_gpu/job_ranks.hpp"

namespace apart = test_support::apart;
using mock_gpu::device_memory;
using mock_gpu::has_kernels;
using mock_gpu::join;
using mock_gpu::join_on;
using mock_gpu::join_on_device;
using mock_gpu::kJobBytes;
using mock_gpu::kTimeoutMs;
using mock_gpu::with_gpu;
using test_support::Child;
using test_support::Daemon;
using test_support::failed;
using test_support::Gate;
using test_support::Job;
using test_support::run_children;

namespace {

constexpr std::uint64_t kCount = 5000;  // more than half of a stage holds
constexpr int kNoKernels = 99;

float value_of(int rank, std::uint64_t i) {
    return static_cast<float>((static_cast<std::uint64_t>(rank) * 31 + i * 7) % 101) - 50;
}

int sums(fabricshm_group* group, const float* input, float* output) {
    const int world = fabricshm_group_world(group);
    if (fabricshm_allreduce_on_stream(group, input, output, kCount, FABRICSHM_F32, FABRICSHM_SUM,
                                      nullptr) != 0) {
        return failed(20);
    }
    if (fabricshm_cuda_wait(group, nullptr, kTimeoutMs) != 0) return failed(21);
    for (std::uint64_t i = 0; i < kCount; ++i) {
        float sum = 0;
        for (int rank = 0; rank < world; ++rank) sum += value_of(rank, i);
        if (output[i] != sum) return failed(22);
    }
    return 0;
}

// One rank from the first call to the last; even ranks have their buffers on the device.
int run_rank(const std::string& socket, int rank, int world) {
    mock_gpu::HostState& host = with_gpu();
    {
        const Job job(socket, kJobBytes);
        if (!job.ok) return 1;
        fabricshm_group* group = join(job, rank, world);
        if (group == nullptr) return 2;
        if (fabricshm_barrier_on_stream(group, nullptr) != FABRICSHM_ENOENT) return failed(3);
        const int attached = fabricshm_cuda_attach(job.arena, 0);
        if (attached == FABRICSHM_EUNSUPPORTED &&
            std::strstr(fabricshm_error_text(), "without nvcc") != nullptr) {
            return kNoKernels;
        }
        if (attached != 0) return failed(4);
        if (fabricshm_cuda_attach(job.arena, 0) != FABRICSHM_EEXIST) return failed(5);
        std::size_t registered = 0;
        for (const auto& [base, bytes] : host.registered) registered += bytes;
        if (registered != fabricshm_arena_bytes(job.arena)) return failed(6);
        if (join_on_device(group) != 0) return failed(7);
        if (join_on_device(group) != FABRICSHM_EEXIST) return failed(8);
        if (fabricshm_cuda_detach(job.arena) != FABRICSHM_EBUSY) return failed(9);

        const bool on_device = rank % 2 == 0;
        auto* input = on_device ? device_memory(kCount)
                                : static_cast<float*>(fabricshm_alloc(job.arena, kCount * 4));
        auto* output = on_device ? device_memory(kCount)
                                 : static_cast<float*>(fabricshm_alloc(job.arena, kCount * 4));
        if (input == nullptr || output == nullptr) return failed(10);
        for (std::uint64_t i = 0; i < kCount; ++i) input[i] = value_of(rank, i);
        if (const int code = sums(group, input, output); code != 0) return code;

        if (fabricshm_broadcast_on_stream(group, input, kCount, FABRICSHM_F32, world - 1,
                                          nullptr) != 0) {
            return failed(11);
        }
        if (fabricshm_barrier_on_stream(group, nullptr) != 0) return failed(12);
        for (std::uint64_t i = 0; i < kCount; ++i) {
            if (input[i] != value_of(world - 1, i)) return failed(13);
        }
        // Where the device sees the arena.
        void* at = nullptr;
        if (fabricshm_cuda_pointer(job.arena, 64, 64, &at) != 0 ||
            at != static_cast<std::byte*>(fabricshm_arena_base(job.arena)) + 64) {
            return failed(14);
        }
        if (fabricshm_cuda_pointer(job.arena, kJobBytes, 1, &at) != FABRICSHM_EINVAL) {
            return failed(15);
        }
        if (fabricshm_cuda_leave(group) != 0) return failed(16);
        if (fabricshm_cuda_status(group) != FABRICSHM_ENOENT) return failed(17);
        // Again, with another group's words; then the session takes all of it along.
        if (join_on_device(group) != 0) return failed(18);
        if (fabricshm_barrier_on_stream(group, nullptr) != 0) return failed(19);
    }
    // What was registered went before its mapping did.
    return host.registered.empty() ? 0 : failed(30);
}

// What a rank hears whose peer was killed while it waits for it on its stream.
int outlive(const std::string& socket, int rank, Gate& killed, Gate& joined) {
    with_gpu();
    const Job job(socket, kJobBytes);
    if (!job.ok) return 1;
    fabricshm_group* group = join(job, rank, 2);
    if (group == nullptr) return 2;
    const int attached = fabricshm_cuda_attach(job.arena, 0);
    if (attached == 0 && join_on_device(group) != 0) return failed(3);
    if (rank == 1) {
        joined.open();
        for (;;) ::pause();
    }
    if (!killed.wait()) return 6;
    if (attached == FABRICSHM_EUNSUPPORTED) return kNoKernels;
    // At most 50 ms after the death the next call says so.
    int code = 0;
    for (int tries = 0; code == 0 && tries < 100000; ++tries) code = fabricshm_cuda_status(group);
    if (code != FABRICSHM_EPEER || fabricshm_error_rank() != 1) return failed(4);
    code = fabricshm_barrier_on_stream(group, nullptr);
    return code == FABRICSHM_EPEER && fabricshm_error_rank() == 1 ? 0 : failed(5);
}

// All types in a group of which even ranks have no driver, against loops written apart.
int run_mixed(const std::string& socket, int rank, int world) {
    const bool is_cpu = rank % 2 == 0 || !has_kernels();
    const Job job(socket, kJobBytes);
    if (!job.ok) return 1;
    fabricshm_group* group = join(job, rank, world);
    if (group == nullptr) return 2;
    if (const int code = join_on(is_cpu, job, group); code != 0) return code;
    if (is_cpu && fabricshm_cuda_available() != FABRICSHM_EUNSUPPORTED) return failed(3);
    if (is_cpu && fabricshm_barrier_on_stream(group, &rank) != FABRICSHM_EINVAL) return failed(4);
    constexpr std::uint64_t kEach = 700;  // more than half of a stage holds, of most types
    constexpr std::size_t kRoom = kEach * 16;
    std::vector<std::byte> heap(2 * kRoom);
    // CPUs' buffers are in the heap and, where ranks are on the device, in the arena.
    auto* memory =
        is_cpu ? heap.data() : static_cast<std::byte*>(fabricshm_alloc(job.arena, 2 * kRoom));
    if (memory == nullptr) return failed(5);
    std::byte* output = memory + kRoom;
    for (int t = 0; t < kernels::kDTypeCount; ++t) {
        const auto type = static_cast<kernels::DType>(t);
        const auto dtype = static_cast<fabricshm_dtype>(t);
        const auto op = static_cast<fabricshm_op>(apart::op_of(type));
        apart::give_all(type, memory, rank, 0, kEach);
        if (fabricshm_allreduce_on_stream(group, memory, output, kEach, dtype, op, nullptr) != 0 ||
            fabricshm_cuda_wait(group, nullptr, kTimeoutMs) != 0) {
            return failed(6);
        }
        if (apart::wrong(type, output, kEach, [&](std::byte* at, std::uint64_t i) {
                apart::combine(type, at, world, i);
            }) != 0) {
            return failed(7);
        }
        if (fabricshm_broadcast_on_stream(group, memory, kEach, dtype, 0, nullptr) != 0 ||
            fabricshm_cuda_wait(group, nullptr, kTimeoutMs) != 0) {
            return failed(8);
        }
        if (apart::wrong(type, memory, kEach, [&](std::byte* at, std::uint64_t i) {
                apart::give(type, at, 0, i);
            }) != 0) {
            return failed(9);
        }
    }
    return fabricshm_cuda_leave(group) == 0 ? 0 : failed(10);
}

// Rank 0, and rank 1 that is killed: one of them without a driver.
int outlive_mixed(const std::string& socket, int rank, bool is_cpu, Gate& joined) {
    const Job job(socket, kJobBytes);
    if (!job.ok) return 1;
    fabricshm_group* group = join(job, rank, 2);
    if (group == nullptr) return 2;
    if (const int code = join_on(is_cpu, job, group); code != 0) {
        joined.open();
        return code;
    }
    if (rank == 1) {
        joined.open();
        for (;;) ::pause();
    }
    // A CPU's rank waits in the operation, and hears of the death there.
    int code = is_cpu ? fabricshm_barrier_on_stream(group, nullptr) : 0;
    for (int tries = 0; !is_cpu && code == 0 && tries < 10'000'000; ++tries) {
        code = fabricshm_cuda_status(group);
    }
    if (code != FABRICSHM_EPEER || fabricshm_error_rank() != 1) return failed(4);
    code = fabricshm_barrier_on_stream(group, nullptr);
    return code == FABRICSHM_EPEER && fabricshm_error_rank() == 1 ? 0 : failed(5);
}

// Ranks on CPUs, which need no kernels: rank 1 is in the group and does not come to the join.
int join_without_one(const std::string& socket, int rank, Gate& ended) {
    const Job job(socket, kJobBytes);
    if (!job.ok) return 1;
    fabricshm_group* group = join(job, rank, 3);
    if (group == nullptr) return 2;
    if (rank == 1) return ended.wait() ? 0 : 3;
    const fabricshm_cuda_options options = {sizeof options, mock_gpu::kJobStageBytes, 300};
    const int code = fabricshm_cuda_join_cpu(group, &options);
    // The one whose time is over first ends the wait of the other.
    if (code != FABRICSHM_ETIMEOUT && code != FABRICSHM_EBROKEN) return failed(4);
    const bool is_named =
        fabricshm_error_rank() == 1 && std::strstr(fabricshm_error_text(), "(rank 1)") != nullptr;
    return is_named ? 0 : failed(5);
}

}  // namespace

TEST_SUITE("multiproc.client.cuda") {
    TEST_CASE("ranks in the pool and on devices add up, and leave nothing registered") {
        const Daemon daemon;
        for (const int world : {1, 2, 3}) {
            const auto codes = run_children(
                world, [&](int rank) -> int { return run_rank(daemon.socket(), rank, world); });
            for (const int code : codes) CHECK((code == 0 || code == kNoKernels));
        }
    }

    TEST_CASE("a rank whose peer is killed hears of it, with its number") {
        const Daemon daemon;
        Gate killed;
        Gate joined;
        Child victim([&] { return outlive(daemon.socket(), 1, killed, joined); });
        Child survivor([&] { return outlive(daemon.socket(), 0, killed, joined); });
        CHECK(joined.wait());
        victim.kill();
        victim.wait();
        killed.open();
        const int code = survivor.wait();
        CHECK((code == 0 || code == kNoKernels));
    }

    TEST_CASE("a rank that does not come to the join is named by all that do") {
        const Daemon daemon;
        Gate ended;
        Child absent([&] { return join_without_one(daemon.socket(), 1, ended); });
        const auto codes = run_children(2, [&](int child) -> int {
            return join_without_one(daemon.socket(), 2 * child, ended);
        });
        CHECK(codes == std::vector<int>(2, 0));
        ended.open();
        CHECK(absent.wait() == 0);
    }

    TEST_CASE("processes without a driver take part, and all types have the same bits") {
        const Daemon daemon;
        for (const int world : {1, 2, 4}) {
            const auto codes = run_children(
                world, [&](int rank) -> int { return run_mixed(daemon.socket(), rank, world); });
            for (const int code : codes) CHECK(code == 0);
        }
    }

    TEST_CASE("a rank hears of the death of a peer that is of the other kind") {
        for (const bool first : {true, false}) {
            const bool victim_is_cpu = first || !has_kernels();
            const bool survivor_is_cpu = !first || !has_kernels();
            const Daemon daemon;
            Gate joined;
            Child victim([&] { return outlive_mixed(daemon.socket(), 1, victim_is_cpu, joined); });
            Child survivor(
                [&] { return outlive_mixed(daemon.socket(), 0, survivor_is_cpu, joined); });
            CHECK(joined.wait());
            victim.kill();  // and waits for its end
            const int code = survivor.wait();
            CHECK(code == 0);
        }
    }

    TEST_CASE("without a driver all functions say so, and everything else works") {
        const Daemon daemon;
        const auto codes = run_children(1, [&](int) -> int {
            ::setenv("FABRIC_CUDA", "off", 1);
            const Job job(daemon.socket(), kJobBytes);
            if (!job.ok) return 1;
            if (fabricshm_cuda_available() != FABRICSHM_EUNSUPPORTED) return failed(2);
            if (fabricshm_cuda_attach(job.arena, 0) != FABRICSHM_EUNSUPPORTED) return failed(3);
            if (fabricshm_cuda_detach(job.arena) != FABRICSHM_ENOENT) return failed(4);
            fabricshm_group* group = join(job, 0, 1);
            if (join_on_device(group) != FABRICSHM_ENOENT) return failed(5);
            if (fabricshm_cuda_attach(nullptr, 0) != FABRICSHM_EINVAL) return failed(6);
            if (fabricshm_barrier_on_stream(nullptr, nullptr) != FABRICSHM_EINVAL) return failed(7);
            float value = 3;
            return fabricshm_allreduce(group, &value, &value, 1, FABRICSHM_F32, FABRICSHM_SUM) == 0
                       ? 0
                       : failed(8);
        });
        CHECK(codes[0] == 0);
    }
}
