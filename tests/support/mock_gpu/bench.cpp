// How much does the quota shim add to a call, how exactly does it keep shares, and how fast is
// memory of the dead free again? Prints one line of JSON. `--quick`: once, for a test that it still
// runs.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "tests/support/mock_gpu/stage.hpp"

namespace {

using fabricshm::kMiB;
using mock_gpu::slice;
using mock_gpu::Stage;
using Clock = std::chrono::steady_clock;

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values.at(values.size() / 2);
}

struct Added {
    double bare_p50, bare_p99, p50, p99;
};

// Rounds of both take turns, so that what else the machine does falls on both.
Added added_to(const std::string& call, int rounds, int calls) {
    Stage stage({slice("half", std::uint64_t{1} << 40)}, mock_gpu::kEndless);
    const auto bare = stage.player("bare");
    const auto held = stage.player("half");
    std::vector<double> times[4];
    const std::string command = "time " + call + " " + std::to_string(calls);
    for (int i = 0; i < rounds; ++i) {
        const auto without = bare->numbers(command);
        const auto with = held->numbers(command);
        times[0].push_back(static_cast<double>(without.at(0)));
        times[1].push_back(static_cast<double>(without.at(1)));
        times[2].push_back(static_cast<double>(with.at(0)));
        times[3].push_back(static_cast<double>(with.at(1)));
    }
    return {median(times[0]), median(times[1]), median(times[2]), median(times[3])};
}

// The share of the GPU's time that a process got, in per cent, after it settled.
double share_of(std::uint32_t percent, int settle_ms, int measure_ms) {
    Stage stage({slice("part", 64 * kMiB, percent)});
    const auto player = stage.player("part");
    const std::string threads = " 200000";  // 0.2 ms of the GPU
    player->ask("launch-for " + std::to_string(settle_ms) + threads);
    const auto busy = [&] {
        std::uint64_t sum = 0;
        for (auto& process : stage.gpu().processes) sum += process.busy_ns.load();
        return static_cast<double>(sum);
    };
    const double before = busy();
    const auto begin = Clock::now();
    player->ask("launch-for " + std::to_string(measure_ms) + threads);
    const std::chrono::duration<double, std::nano> passed = Clock::now() - begin;
    return (busy() - before) / passed.count() * 100.0;
}

double reclaim_ms(int rounds) {
    std::vector<double> times;
    Stage stage({slice("half", 64 * kMiB)});
    for (int i = 0; i < rounds; ++i) {
        auto player = stage.player("half");
        player->ask("alloc 8000000");
        const auto begin = Clock::now();
        player->kill();
        while (stage.view("half").used_bytes != 0) std::this_thread::yield();
        const std::chrono::duration<double, std::milli> passed = Clock::now() - begin;
        times.push_back(passed.count());
    }
    return *std::max_element(times.begin(), times.end());
}

}  // namespace

int main(int argc, char** argv) {
    const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
    const Added alloc = added_to("alloc", quick ? 1 : 31, quick ? 100 : 5000);
    const Added launch = added_to("launch", quick ? 1 : 31, quick ? 100 : 5000);
    std::printf("{\"alloc_ns\":{\"bare_p50\":%.0f,\"bare_p99\":%.0f,\"p50\":%.0f,\"p99\":%.0f},",
                alloc.bare_p50, alloc.bare_p99, alloc.p50, alloc.p99);
    std::printf("\"launch_ns\":{\"bare_p50\":%.0f,\"bare_p99\":%.0f,\"p50\":%.0f,\"p99\":%.0f},",
                launch.bare_p50, launch.bare_p99, launch.p50, launch.p99);
    std::printf("\"shares\":{");
    const std::vector<std::uint32_t> wanted =
        quick ? std::vector<std::uint32_t>{50} : std::vector<std::uint32_t>{10, 25, 50, 75};
    for (const auto percent : wanted) {
        std::printf("%s\"%u\":%.2f", percent == wanted.front() ? "" : ",", percent,
                    share_of(percent, quick ? 10 : 3000, quick ? 10 : 6000));
    }
    std::printf("},\"reclaim_ms_max\":%.2f}\n", reclaim_ms(quick ? 1 : 50));
    return 0;
}
