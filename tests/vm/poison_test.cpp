// What the kernel does when memory of a device-DAX is found broken, and what survives it. Runs in a
// guest as root, on the device of FABRIC_TEST_POOL.

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstring>

#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/job.hpp"

using test_support::Child;
using test_support::Daemon;
using test_support::failed;
using test_support::Gate;
using test_support::Job;

namespace {

constexpr std::uint64_t kBlock = 2 << 20;
constexpr std::uint64_t kArenaBytes = 64 << 20;
constexpr int kBlockShift = 21;

// The exit code says what the signal was: 40 when it is what a broken block gives.
std::uintptr_t g_poisoned = 0;

void on_sigbus(int, siginfo_t* info, void*) {
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    if (info->si_code != BUS_MCEERR_AR) ::_exit(41);
    if (info->si_addr_lsb != kBlockShift) ::_exit(42);
    ::_exit(address / kBlock == g_poisoned / kBlock ? 40 : 43);
}

void catch_sigbus() {
    struct sigaction action {};
    action.sa_sigaction = on_sigbus;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGBUS, &action, nullptr);
}

/// A whole block of the job's arena, filled with `value`; nullptr when there is none.
unsigned char* block_of(const Job& job, int value) {
    fabricshm_region region{};
    if (fabricshm_region_create(job.arena, 2 * kBlock, &region) != 0) return nullptr;
    const auto start = reinterpret_cast<std::uintptr_t>(region.base);
    auto* block = reinterpret_cast<unsigned char*>((start + kBlock - 1) / kBlock * kBlock);
    std::memset(block, value, kBlock);
    return block;
}

}  // namespace

TEST_SUITE("vm.poison") {
    TEST_CASE(
        "a broken block is a SIGBUS for the process that touches it; daemon and neighbours go on") {
        Daemon daemon;
        Gate ready, poisoned, done;
        Child neighbour([&]() -> int {
            const Job job(daemon.socket(), kArenaBytes);
            unsigned char* block = job.ok ? block_of(job, 7) : nullptr;
            if (block == nullptr) return failed(1);
            ready.open();
            if (!poisoned.wait()) return 2;
            for (std::uint64_t i = 0; i < kBlock; ++i) {
                if (block[i] != 7) return 3;
            }
            std::memset(block, 8, kBlock);
            // The daemon goes on serving, in this arena and in others.
            fabricshm_group* group = nullptr;
            if (fabricshm_group_join(job.arena, "alone", 0, 1, 60'000, &group) != 0)
                return failed(4);
            const Job other(daemon.socket(), kArenaBytes, "other");
            return other.ok ? 0 : failed(5);
        });
        Child victim([&]() -> int {
            const Job job(daemon.socket(), kArenaBytes);
            unsigned char* block = job.ok ? block_of(job, 9) : nullptr;
            if (block == nullptr || !ready.wait()) return failed(1);
            catch_sigbus();
            g_poisoned = reinterpret_cast<std::uintptr_t>(block);
            // The kernel delivers the signal from within the call, as for a load that hits the
            // line.
            if (::madvise(block, 4096, MADV_HWPOISON) != 0) return 2;
            return *static_cast<volatile unsigned char*>(block) == 9 ? 3 : 4;
        });
        CHECK(victim.wait() == 40);
        poisoned.open();
        CHECK(neighbour.wait() == 0);
        // Neither was the daemon hit, which has the arena mapped: it ends as usual.
        CHECK(daemon.stop() == 0);
    }
}
