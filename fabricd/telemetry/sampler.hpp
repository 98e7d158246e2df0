// Sampler: samples every session, device and path, ten times per second. docs/telemetry.md.

#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fabricd/telemetry/device_watch.hpp"
#include "fabricd/telemetry/path_book.hpp"
#include "fabricd/telemetry/sample.hpp"
#include "fabricd/telemetry/session_pages.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

struct SamplerOptions {
    fabricshm::Duration period = std::chrono::milliseconds(100);
    /// A session that wrote nothing for so long has no current figures. Longer than a step.
    fabricshm::Duration stale_after = std::chrono::seconds(10);
    /// In every sample one session in so many also gets its arrays read, its records consulted and
    /// its paths judged; all of them in turn. The head of its page is read every time.
    unsigned details_every = 10;
    /// Which device of the device file is which GPU: its name, and "GPU-..." or "0".
    std::vector<std::pair<std::string, std::string>> gpus;
};

/// What a session says of itself, and what the daemon's records say of that.
struct SessionClaim {
    std::size_t index = 0;  // the sampler's own
    std::uint64_t session_id = 0;
    std::uint64_t arena_id = 0;
    std::uint64_t group_id = 0;
    std::int32_t rank = -1;
    bool member = false;  // to be filled in, as the next two
    std::uint64_t memory_used = 0;
    std::uint64_t memory_denied = 0;
    /// The shards that it reports, kShardsTold of them, as long as the call lasts.
    const fabricshm::ShardReads* shards = nullptr;
    std::uint32_t shards_open = 0;  // to be filled in: bit i, that it has shards[i] open
};

/// A thread of its own, so that neither thousands of pages nor a reader of the figures holds up the
/// control thread. Thread-safe but for start() and stop().
class Sampler {
  public:
    /// Fills in what the daemon's records say of some sessions. Called on the sampler's thread,
    /// which holds no lock meanwhile.
    using Books = std::function<void(std::vector<SessionClaim>& claims)>;

    Sampler(const SessionPages& pages, DeviceWatch& devices, const SamplerOptions& options,
            Books books);
    ~Sampler();
    Sampler(const Sampler&) = delete;
    Sampler& operator=(const Sampler&) = delete;

    void start();
    void stop() noexcept;

    /// One sample on the calling thread: what the thread does, for tests and benchmarks.
    void take(std::int64_t now_ns);

    /// Shows the last sample without copying it; sampling waits meanwhile, so be brief. Its number
    /// is 0 before the first one.
    void look(const std::function<void(const Sample&)>& reader) const;

    /// A copy, for a caller that needs it longer.
    Sample latest() const;

  private:
    void run();
    void read_claims(unsigned turn);
    void look_closer(unsigned turn);

    const SessionPages& pages_;
    DeviceWatch& devices_;
    SamplerOptions options_;
    Books books_;
    PathBook paths_;
    std::thread thread_;
    std::vector<SessionClaim> claims_;  // of the sample under way

    mutable std::mutex mutex_;  // guards what follows
    std::condition_variable changed_;
    bool stopping_ = false;
    Sample sample_;
};

}  // namespace fabricd
