// Fills: chunks that are on their way into memory, and the requests that wait for them.

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "fabricd/data/blocks/chunk_cache.hpp"
#include "fabricd/data/serve/file_table.hpp"
#include "fabricd/data/serve/silo_worker.hpp"

namespace fabricd {

/// How a request ends: kOk, or a code with a text for people.
struct RequestOutcome {
    fabricshm::Errc code = fabricshm::Errc::kOk;
    std::int32_t detail = 0;
    std::string text;
};
using Answer = std::function<void(const RequestOutcome&)>;

RequestOutcome outcome_of(const Error& error);
/// Never of a file that is not there: a root that is gone is a silo that does not answer, as a disk
/// that is not mounted.
RequestOutcome outcome_of(const SiloAway& away);

/// What was measured of a silo.
struct SiloMeter {
    std::uint64_t fetches = 0;
    std::uint64_t failures = 0;
    Bytes bytes = 0;
    double latency_s = 0;        // of one chunk, smoothed
    double least_latency_s = 0;  // of late: with little else under way
    double bytes_per_s = 0;      // while something was under way, smoothed
    TimePoint failing_since{};   // kNoWait: the last one was answered
    std::string last_failure;
};

/// The control thread's. Requests for a line that is on its way are joined.
class Fills {
  public:
    struct Parts {
        ChunkCache& cache;
        FileTable& files;
        std::vector<std::unique_ptr<SiloWorker>>& silos;
        const std::vector<SiloSpec>& specs;
        Duration silo_timeout;
    };
    explicit Fills(Parts parts);

    /// Chunk `chunk` of the file is wanted; `answer`, where there is one, is called once: at once,
    /// or when the bytes are there, can't be had, or `silo_timeout` has passed. `kind` counts when
    /// it is not on its way yet.
    void want(const KnownFile& file, std::uint64_t chunk, FetchPriority priority, ChunkKind kind,
              Answer answer, TimePoint now);

    /// A worker's result, and the like.
    void done(const FillDone& done, TimePoint now);
    /// Deadlines, and those that wait for room. Call some times in a second.
    void tick(TimePoint now);
    /// The version is no more: requests that wait for it are answered.
    void gone(std::uint64_t file);

    bool is_under_way(std::uint64_t line) const { return fills_.count(line) != 0; }
    std::size_t size() const noexcept { return fills_.size(); }
    /// How long the readers have waited that wait now, all of them together.
    Duration waiting(TimePoint now) const;
    const SiloMeter& meter(std::uint32_t silo) const { return meters_[silo]; }
    void note_silo(std::uint32_t silo, const RequestOutcome& outcome, TimePoint now);
    /// It has answered, but about `count` files what can't be right.
    void note_wrong(std::uint32_t silo, std::size_t count, const std::string& text);

  private:
    struct Waiter {
        Answer answer;
        TimePoint deadline;
        bool is_reader = false;
    };
    struct Fill {
        std::uint64_t file = 0;
        std::uint32_t silo = 0;
        FetchPriority priority = FetchPriority::kAhead;
        ChunkKind kind = ChunkKind::kTried;
        bool is_begun = false;  // it has memory, which is the silo's
        std::vector<Waiter> waiters;
    };

    // What a silo gave in a stretch without a pause.
    struct Window {
        TimePoint began{};
        TimePoint last{};
        Bytes bytes = 0;
        bool is_first = true;
    };

    bool begin(std::uint64_t line, Fill& fill, const KnownFile& file);
    void begin_waiting();
    void end(std::uint64_t line, const RequestOutcome& outcome);
    void measure(std::uint32_t silo, const FillDone& done, TimePoint now);

    Parts parts_;
    std::unordered_map<std::uint64_t, Fill> fills_;  // by line
    std::deque<std::uint64_t> for_room_;             // lines of fills that have no memory yet
    std::vector<SiloMeter> meters_;
    std::vector<Window> windows_;
};

}  // namespace fabricd
