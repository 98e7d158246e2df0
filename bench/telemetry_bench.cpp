// What does a look at the telemetry pages of many sessions cost the daemon?
//
// Each session's page is a memory file with a mapping of its own, as in the daemon. Before each
// look a thread on another processor writes the pages of the sessions that have ended a step since
// the last one, so that the sampler finds them in another processor's cache or in memory. The
// counter core_share_at_10Hz is what ten such looks per second take of one processor; the target is
// 0.01.

#include <benchmark/benchmark.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <thread>
#include <vector>

#include "fabricd/telemetry/sampler.hpp"
#include "libfabricshm/os/mapping.hpp"

namespace {

using namespace fabricd;
using fabricshm::Mapping;
using fabricshm::TelemetryImage;

constexpr int kWorld = 8;

void pin(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    // Best effort: without it the figures are only less steady.
    (void)::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);
}

std::int64_t now_ns() {
    return fabricshm::Clock::now().time_since_epoch().count();
}

// The sessions' ends of their pages.
class Sessions {
  public:
    Sessions(SessionPages& pages, int count) {
        for (int id = 1; id <= count; ++id) {
            // Of no process: a page does not depend on the writer.
            const PageOwner owner{static_cast<std::uint64_t>(id), id, 0, "bench", ""};
            auto file = pages.open_telemetry(owner);
            if (!file.ok()) return;
            auto page = Mapping::map(*file, 0, fabricshm::kTelemetryFileBytes, {});
            if (!page.ok()) return;
            pages_.push_back(std::move(page).value());
        }
    }
    std::size_t count() const { return pages_.size(); }

    // A step of every `every`-th session.
    void step(int every) {
        ++image_.steps;
        // All pages carry the same counters; the sampler looks only at what changed.
        image_.samples += 32;
        image_.written_ns = now_ns();
        for (std::size_t i = image_.steps % static_cast<std::size_t>(every); i < pages_.size();
             i += static_cast<std::size_t>(every)) {
            fabricshm::write_telemetry_head(pages_[i].data(), image_);
            fabricshm::write_telemetry_peers(pages_[i].data(), image_);
        }
    }

  private:
    static TelemetryImage first_image() {
        TelemetryImage image = fabricshm::empty_telemetry();
        image.group_id = 1;
        image.rank = 0;
        image.world = kWorld;
        image.peers.resize(kWorld);
        return image;
    }

    TelemetryImage image_ = first_image();
    std::vector<Mapping> pages_;
};

// Runs Sessions::step() on the last processor, on demand.
class Writer {
  public:
    Writer(Sessions& sessions, int every)
        : thread_([this, &sessions, every] {
              pin(static_cast<int>(std::thread::hardware_concurrency()) - 1);
              for (int done = 0; !stop_.load(); ++done) {
                  // Yields, so that it leaves the processor where there is only one.
                  while (wanted_.load() == done && !stop_.load()) std::this_thread::yield();
                  if (!stop_.load()) sessions.step(every);
                  done_.store(done + 1);
              }
          }) {}
    ~Writer() {
        stop_.store(true);
        thread_.join();
    }
    void write() {
        // Writes and waits: what the sampler looks at is complete and in another processor's cache.
        const int number = wanted_.fetch_add(1) + 1;
        while (done_.load() < number) std::this_thread::yield();
    }

  private:
    std::atomic<int> wanted_{0};
    std::atomic<int> done_{0};
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

void look(benchmark::State& state) {
    pin(0);
    SessionPages pages;
    Sessions sessions(pages, static_cast<int>(state.range(0)));
    if (sessions.count() != static_cast<std::size_t>(state.range(0))) {
        state.SkipWithError("no room for so many pages (vm.max_map_count, ulimit -n)");
        return;
    }
    DeviceWatch devices({});
    // No registry to ask and no devices: what is measured is the pages alone.
    Sampler sampler(pages, devices, {}, {});
    Writer writer(sessions, static_cast<int>(state.range(1)));
    // The first look makes the entries; the daemon makes each once, when a session comes.
    writer.write();
    sampler.take(now_ns());
    double seconds = 0;
    for (auto _ : state) {
        writer.write();
        const auto start = fabricshm::Clock::now();
        sampler.take(now_ns());
        const std::chrono::duration<double> length = fabricshm::Clock::now() - start;
        // Manual time: the writer's turn is not part of a look.
        state.SetIterationTime(length.count());
        seconds += length.count();
    }
    const auto looks = static_cast<double>(state.iterations());
    state.counters["core_share_at_10Hz"] = seconds / looks * 10;
    state.counters["ns_per_session"] = seconds / looks / static_cast<double>(state.range(0)) * 1e9;
}

// Sessions, and one in how many of them has ended a step since the last look.
BENCHMARK(look)
    ->ArgNames({"sessions", "one_active_in"})
    ->ArgsProduct({{100, 1000, 10000}, {1, 10}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
