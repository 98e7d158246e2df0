// How long does a cache line take from one core to the other, now?
//
// Two threads, pinned to the first two cores that this process may use. For each line on the
// standard input they play ping-pong for a few hundred microseconds, and the time of one way is
// printed in nanoseconds; in between both sleep. On virtual machines two cores are near at one time
// and far apart at another: compare.py asks before and after every sample.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "bench/driver.hpp"

namespace {

constexpr std::uint64_t kTrips = 100;  // of a batch: 10 to 60 microseconds
constexpr std::size_t kBatches = 5;    // the median of them counts: one may be interrupted

// Two cache lines: adjacent ones are fetched together.
struct alignas(128) Line {
    std::atomic<std::uint64_t> value{0};
};

Line ping, pong;
std::atomic<std::uint64_t> wanted{0};  // trips that pong has to return; it sleeps at them

void wait_for(const std::atomic<std::uint64_t>& word, std::uint64_t value) {
    // acquire: pairs with the release of the other's store, so that the trips follow one another.
    while (word.load(std::memory_order_acquire) < value) {
    }
}

void return_trips() {
    bench::pin_to_core(1);
    for (std::uint64_t trip = 0;;) {
        wanted.wait(trip, std::memory_order_acquire);
        const std::uint64_t last = wanted.load(std::memory_order_acquire);
        while (trip < last) {
            wait_for(ping.value, ++trip);
            // release: the trip is seen after what led to it.
            pong.value.store(trip, std::memory_order_release);
        }
    }
}

double one_way_ns(std::uint64_t& trip) {
    using Clock = std::chrono::steady_clock;
    // One batch more, in which the other thread wakes up.
    wanted.store(trip + kTrips * (kBatches + 1), std::memory_order_release);
    wanted.notify_one();
    std::array<double, kBatches> times{};
    for (std::size_t batch = 0; batch <= kBatches; ++batch) {
        const auto start = Clock::now();
        for (std::uint64_t i = 0; i < kTrips; ++i) {
            // release and acquire as in the other thread.
            ping.value.store(++trip, std::memory_order_release);
            wait_for(pong.value, trip);
        }
        const std::chrono::duration<double, std::nano> length = Clock::now() - start;
        if (batch > 0) times[batch - 1] = length.count() / static_cast<double>(2 * kTrips);
    }
    std::nth_element(times.begin(), times.begin() + kBatches / 2, times.end());
    return times[kBatches / 2];
}

}  // namespace

int main() {
    // Made before this thread is pinned: it could not choose its own core any more.
    std::thread(return_trips).detach();
    bench::pin_to_core(0);
    std::uint64_t trip = 0;
    for (int letter = 0; (letter = std::getchar()) != EOF;) {
        if (letter != '\n') continue;
        std::printf("%.1f\n", one_way_ns(trip));
        std::fflush(stdout);
    }
    // The other thread never ends, and what it uses must not be destroyed under it.
    std::_Exit(0);
}
