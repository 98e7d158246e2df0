// DataClient: a program's way to the data of its host, also after fork() and after a restart of the
// service.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/client/data_channel.hpp"
#include "libfabricshm/client/data_page.hpp"
#include "libfabricshm/client/fork_guard.hpp"
#include "libfabricshm/client/turnstile.hpp"
#include "libfabricshm/shm/data_layout.hpp"

namespace fabricshm {

/// Maps a published arena for reading, with a pin page of this process.
using SubscribeArena = std::function<Result<DataArena>(const std::string& name, TimePoint)>;

struct DataOptions {
    std::vector<std::string> sockets;             // of the service, tried in this order
    Duration timeout = std::chrono::seconds(30);  // of calls that give none
    /// Called once in each process: in that which opens, and in each child that uses the handle.
    std::function<SubscribeArena()> make_subscriber;
};

/// The tables that the service had at one moment, and where they are mapped. Never changes.
struct DataWay {
    DataPage* page = nullptr;
    DataTables tables;
};

/// What a client has in one process: mappings, pins, connections. A child of fork() makes its own
/// and leaves the parent's alone, locks that no thread will release included.
class DataProcess {
  public:
    DataProcess(const DataOptions& options, std::atomic<std::uint32_t>& pages);
    DataProcess(const DataProcess&) = delete;
    DataProcess& operator=(const DataProcess&) = delete;

    std::uint32_t generation() const noexcept { return generation_; }

    /// The way to go; nullptr: none yet. One load.
    const DataWay* way() const noexcept {
        // Sequentially consistent: see DataPage::retire().
        return way_.load(std::memory_order_seq_cst);
    }

    /// Asks the service, and waits for it up to `deadline`, which arena and tables it has; the way
    /// there, which is `known` when nothing has changed. kDaemon, kTimeout, errors of mapping.
    Result<const DataWay*> renew(const DataWay* known, TimePoint deadline);

    /// Asks for a line; 0 when it was there a moment ago. kDaemon after `deadline` alone: a service
    /// that is away is waited for. A way that is not the service's any more is renewed.
    Result<void> fetch(const DataWay& way, const DataWant& want, TimePoint deadline);

    /// Ends a view of this process, never waits. False: it is not held here.
    bool release(std::uint64_t handle) noexcept;

    std::size_t held_by(const void* owner) const noexcept;
    std::size_t held() const noexcept;
    DataCounts counts() const noexcept;

    /// Announces a plan, which stands in for the one that `owner` had announced before.
    Result<void> announce(const void* owner, const std::string& plan, const char* step,
                          TimePoint deadline);
    /// What the owner had announced ends.
    void end_plan(const void* owner) noexcept;

    DataChannel& channel() noexcept { return channel_; }

    /// For those that build something once which several threads want.
    Turnstile& building() noexcept { return building_; }

    /// For a moment at a time: of those that end something which several threads use.
    std::mutex& closing() noexcept { return closing_; }

  private:
    Result<const DataWay*> find_way(const DataWay* known, TimePoint deadline);
    const DataWay* adopt(DataPage* page, const DataTables& tables);
    DataPage* page_of(std::uint64_t handle) noexcept;
    void sweep() noexcept;

    const std::uint32_t generation_;
    DataChannel channel_;
    const SubscribeArena subscribe_;
    std::atomic<std::uint32_t>& pages_made_;
    std::atomic<const DataWay*> way_{nullptr};
    std::atomic<std::uint64_t> breaks_seen_{0};  // of the channel, when the way was last compared

    Turnstile renewing_;  // over round trips
    Turnstile building_;  // likewise; never taken under the other one
    std::mutex closing_;
    mutable std::mutex mutex_;  // for moments; of what follows
    std::vector<std::unique_ptr<DataWay>> ways_;
    std::vector<std::unique_ptr<DataPage>> page_list_;
    std::unordered_map<const void*, DataChannel::Connection> plans_;  // by owner
};

/// Thread-safe.
class DataClient {
  public:
    /// Connects and maps. Waits for nothing that is not there.
    static Result<std::shared_ptr<DataClient>> open(DataOptions options);

    ~DataClient();
    DataClient(const DataClient&) = delete;
    DataClient& operator=(const DataClient&) = delete;

    /// What it has in this process. Two loads.
    DataProcess& process() {
        DataProcess* process = process_.load(std::memory_order_acquire);
        const bool is_ours = process->generation() == fork_guard::generation();
        return __builtin_expect(is_ours, true) ? *process : process_after_fork(process);
    }

    Duration timeout() const noexcept { return options_.timeout; }

  private:
    explicit DataClient(DataOptions options);
    DataProcess& process_after_fork(DataProcess* parents);

    const DataOptions options_;
    std::atomic<std::uint32_t> pages_made_{0};  // numbers of a child's pages follow the parent's
    std::atomic<DataProcess*> process_;
};

}  // namespace fabricshm
