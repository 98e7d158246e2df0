// PictureKeeper: asks the daemon once a second, so that any number of pages cost it no more.

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "fabricd/ctl/admin_client.hpp"
#include "fabricd/ctl/dashboard/dashboard_picture.hpp"
#include "fabricd/ctl/dashboard/history.hpp"

namespace fabricd {

struct PictureKeeperOptions {
    std::string admin_socket;  // as find_admin_socket() gave it
    std::chrono::milliseconds interval{1000};
    std::chrono::milliseconds timeout{5000};  // of each request to the daemon
    /// So long after the last page asked, only what the curves need is asked for.
    std::chrono::milliseconds idle_after{10'000};
};

/// A thread of its own that asks, and keeps the newest picture. When the daemon is away, the last
/// picture stays and says since when; it is asked again each interval.
class PictureKeeper {
  public:
    explicit PictureKeeper(PictureKeeperOptions options);
    /// Waits for the request under way, at most options.timeout.
    ~PictureKeeper();
    PictureKeeper(const PictureKeeper&) = delete;
    PictureKeeper& operator=(const PictureKeeper&) = delete;

    struct Newest {
        std::uint64_t number = 0;  // rises with each picture; 0: the daemon was not asked yet
        std::shared_ptr<const std::string> json;
    };
    /// For a page: {"number", "unix_ms", "daemon": {"answers", "since_unix_ms", "socket", "error"},
    /// and the keys of DashboardPicture}. `with_history` adds "history". Thread-safe.
    Newest newest(bool with_history);

  private:
    void run();
    void ask();
    fabricshm::Result<DashboardPicture> fetch(bool all);
    void keep(fabricshm::Result<DashboardPicture> fetched);

    const PictureKeeperOptions options_;
    std::unique_ptr<AdminClient> client_;  // of the thread

    std::mutex mutex_;
    std::condition_variable changed_;
    bool stopping_ = false;
    std::chrono::steady_clock::time_point asked_;  // when a page last asked
    std::uint64_t number_ = 0;
    Json last_ = Json::object();
    bool answers_ = false;
    std::int64_t since_unix_ms_;
    std::shared_ptr<const std::string> text_;
    History history_;

    std::thread thread_;  // last: it uses all of the above
};

}  // namespace fabricd
