// What are this machine's own limits: memory bandwidth of two threads, and a cache line's round
// trip?
//
// Prints one JSON object. Bandwidths count the bytes the program asks for (a store that goes
// through the cache also reads its line; that is not counted).

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <new>
#include <thread>
#include <vector>

#include "bench/driver.hpp"
#include "bench/memory_moves.hpp"

namespace {

using Clock = std::chrono::steady_clock;

// Steady, since a pass takes milliseconds.
double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Three arrays of one thread, touched by it.
struct Arrays {
    float* a;
    float* b;
    float* c;
};

// Private memory: a limit of the machine and not of shared pages.
float* map_floats(std::size_t count) {
    void* block = mmap(nullptr, count * sizeof(float), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) bench::die("out of memory for the arrays: give --bytes less");
    madvise(block, count * sizeof(float), MADV_HUGEPAGE);
    return static_cast<float*>(block);
}

struct Query {
    const char* name;
    double arrays_moved;  // arrays' worth of bytes per pass
    std::function<void(const Arrays&, std::size_t)> pass;
};

// What collectives are made of: reading, writing, copying, adding up, with stores through the cache
// and past it.
std::vector<Query> queries() {
    const auto& moves = bench::memory_moves();
    const auto copy = [&moves](const Arrays& arrays, std::size_t count, bool streaming) {
        const float* source = arrays.b;
        moves.move({&source, 1, &arrays.a, 1, count,
                    streaming ? bench::Store::kStreaming : bench::Store::kCached});
    };
    return {
        {"read", 1,
         [&](const Arrays& x, std::size_t n) {
             volatile float keep = moves.read(x.a, n);
             (void)keep;
         }},
        {"write", 1, [&](const Arrays& x, std::size_t n) { moves.write(x.a, n, false); }},
        {"write_nt", 1, [&](const Arrays& x, std::size_t n) { moves.write(x.a, n, true); }},
        {"copy", 2, [copy](const Arrays& x, std::size_t n) { copy(x, n, false); }},
        {"copy_nt", 2, [copy](const Arrays& x, std::size_t n) { copy(x, n, true); }},
        {"accumulate", 3, [&](const Arrays& x, std::size_t n) { moves.accumulate(x.a, x.b, n); }},
        {"triad_nt", 3, [&](const Arrays& x, std::size_t n) { moves.triad(x.a, x.b, x.c, n); }},
    };
}

/// Best of `rounds` passes of all threads together, in GB/s.
/// Two threads share a memory: what one of them could do alone is no limit of theirs. The slowest
/// thread of a round ends it, and the best round is what the machine can do.
double bandwidth(const Query& query, int threads, std::size_t bytes, int rounds) {
    const std::size_t count = bytes / sizeof(float) / static_cast<std::size_t>(threads);
    std::atomic<int> ready{0};
    std::vector<std::vector<double>> times(static_cast<std::size_t>(threads));
    std::vector<std::thread> workers;
    for (int t = 0; t < threads; ++t)
        workers.emplace_back([&, t] {
            // Touched by the thread that uses it, so that it lies near to it.
            const Arrays x{map_floats(count), map_floats(count), map_floats(count)};
            bench::memory_moves().write(x.a, count, false);
            bench::memory_moves().write(x.b, count, false);
            bench::memory_moves().write(x.c, count, false);
            for (int round = 0; round < rounds; ++round) {
                // All start together; a thread that comes late would have the memory to itself at
                // the end.
                ready.fetch_add(1);
                while (ready.load() < threads * (round + 1)) sched_yield();
                const auto start = Clock::now();
                query.pass(x, count);
                times[static_cast<std::size_t>(t)].push_back(seconds_since(start));
            }
            for (float* array : {x.a, x.b, x.c}) munmap(array, count * sizeof(float));
        });
    for (auto& worker : workers) worker.join();
    double best = 1e9;
    for (std::size_t round = 0; round < static_cast<std::size_t>(rounds); ++round) {
        double longest = 0;
        for (const auto& own : times) longest = std::max(longest, own[round]);
        best = std::min(best, longest);
    }
    return query.arrays_moved * static_cast<double>(bytes) / best / 1e9;
}

struct alignas(128) Line {
    std::atomic<std::uint64_t> value{0};
};

/// Waits without giving up the core at once, but never starves a peer on a busy machine.
void wait_for(const std::atomic<std::uint64_t>& word, std::uint64_t value) {
    for (int spins = 0; word.load(std::memory_order_acquire) < value; ++spins)
        if (spins > 10'000) sched_yield();
}

/// Nanoseconds of a round trip of one cache line between two processes: the best batch, because
/// that is the machine's limit; the others had the core taken away.
double ping_pong_ns(int batches, std::uint64_t trips) {
    void* block = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) bench::die("cannot map the ping-pong page");
    Line* lines = new (block) Line[2];
    const std::uint64_t last = trips * static_cast<std::uint64_t>(batches);
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0) bench::die("cannot fork the ping-pong peer");
    // _exit() in the child: no destructor of the parent's objects may run twice.
    if (child == 0) {
        // It waits for a parent that may be killed, as an interrupted benchmark is: without this it
        // would spin for ever. The parent may have died before the first line took effect.
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        for (std::uint64_t trip = 1; trip <= last; ++trip) {
            wait_for(lines[0].value, trip);
            lines[1].value.store(trip, std::memory_order_release);
        }
        _exit(0);
    }
    std::vector<double> times;
    std::uint64_t trip = 0;
    for (int batch = 0; batch < batches; ++batch) {
        const auto start = Clock::now();
        for (std::uint64_t i = 0; i < trips; ++i) {
            lines[0].value.store(++trip, std::memory_order_release);
            wait_for(lines[1].value, trip);
        }
        times.push_back(seconds_since(start) * 1e9 / static_cast<double>(trips));
    }
    waitpid(child, nullptr, 0);
    munmap(block, 4096);
    return *std::min_element(times.begin(), times.end());
}

}  // namespace

int main(int argc, char** argv) {
    using bench::option;
    const std::size_t bytes = std::stoull(option(argc, argv, "--bytes", "268435456"));
    const int threads = std::stoi(option(argc, argv, "--threads", "2"));
    const int rounds = std::stoi(option(argc, argv, "--rounds", "7"));
    if (threads < 1 || rounds < 1 || bytes < 4096) bench::die("an option is out of range");
    std::printf("{\"isa\": \"%s\", \"threads\": %d, \"bytes\": %zu", bench::memory_moves().isa,
                threads, bytes);
    for (const Query& query : queries())
        std::printf(", \"%s_gb_per_s\": %.2f", query.name,
                    bandwidth(query, threads, bytes, rounds));
    std::printf(", \"ping_pong_ns\": %.1f}\n", ping_pong_ns(rounds, 20'000));
    return 0;
}
