// How long do processes take that attach one arena to a GPU at the same time? Prints one line of
// JSON: for each size and number of processes the slowest of them, in ms, of the median round and
// of the slowest, and how many calls failed. `--quick`: once, for a test that it still runs.

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/children.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/mock_gpu/job_ranks.hpp"

namespace {

using test_support::Daemon;
using test_support::Gate;
using test_support::Job;
using SteadyClock = std::chrono::steady_clock;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr int kProcesses = 8;  // at most

double* shared_times() {
    void* const memory = ::mmap(nullptr, kProcesses * sizeof(double), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return static_cast<double*>(memory);
}

struct Round {
    double slowest_ms = 0;
    int failures = 0;
};

Round attach_together(const Daemon& daemon, std::uint64_t bytes, int processes) {
    static double* const times = shared_times();
    Gate ready;
    const auto codes = test_support::run_children(processes, [&](int rank) -> int {
        mock_gpu::with_gpu();
        const Job job(daemon.socket(), bytes);
        ready.open();
        if (!job.ok || !ready.wait(processes)) return 1;
        const auto began = SteadyClock::now();
        const int attached = fabricshm_cuda_attach(job.arena, 0);
        const std::chrono::duration<double, std::milli> took = SteadyClock::now() - began;
        times[rank] = took.count();
        return attached == 0 ? 0 : test_support::failed(2);
    });
    Round round;
    round.slowest_ms = *std::max_element(times, times + processes);
    round.failures = static_cast<int>(codes.size() - std::count(codes.begin(), codes.end(), 0));
    return round;
}

}  // namespace

int main(int argc, char** argv) {
    if (!mock_gpu::has_kernels()) return 77;
    const bool is_quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
    const int rounds = is_quick ? 1 : 5;
    const std::vector<std::uint64_t> sizes =
        is_quick ? std::vector<std::uint64_t>{64} : std::vector<std::uint64_t>{64, 256, 1024};
    std::string text;
    int failures = 0;
    for (const std::uint64_t size : sizes) {
        for (const int processes : {1, 4, kProcesses}) {
            std::vector<double> times;
            for (int i = 0; i < rounds; ++i) {
                const Daemon daemon(
                    {"--pool-capacity=" + std::to_string(2 * size) + "MiB", "--log-level=error"});
                const Round round = attach_together(daemon, size * kMiB, processes);
                times.push_back(round.slowest_ms);
                failures += round.failures;
            }
            std::sort(times.begin(), times.end());
            char row[128];
            std::snprintf(
                row, sizeof row,
                "%s{\"mib\": %d, \"processes\": %d, \"median_ms\": %.1f, \"max_ms\": %.1f}",
                text.empty() ? "" : ", ", static_cast<int>(size), processes,
                times[times.size() / 2], times.back());
            text += row;
        }
    }
    std::printf("{\"rounds\": %d, \"failures\": %d, \"attach\": [%s]}\n", rounds, failures,
                text.c_str());
    return failures == 0 ? 0 : 1;
}
