// PictureKeeper: asks the daemon once a second, so that any number of pages cost it no more.

#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

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
    /// Asking takes one in so many parts of the time, of the daemon's as of this process's: where
    /// there is much to fetch, the daemon is asked less often, but once in `max_interval`.
    int share_of_time = 20;
    int idle_share_of_time = 100;
    std::chrono::milliseconds max_interval{4000};
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
        std::shared_ptr<const std::string> json;  // nullptr: the page has it already
    };
    /// picture_text() of the newest picture, with the history for a page that has none.
    /// Thread-safe; pages that want the same get the same text. Waits for the first picture, and
    /// for the first after a while without pages, at most options.timeout.
    Newest newest(const PictureQuery& query);

  private:
    using Kept = std::shared_ptr<const DashboardPicture>;

    void run();
    fabricshm::Result<DashboardPicture> fetch(bool all);
    void keep(fabricshm::Result<DashboardPicture> fetched);
    std::vector<PictureQuery> asked_lately();

    const PictureKeeperOptions options_;
    std::unique_ptr<AdminClient> client_;  // of the thread

    std::mutex mutex_;
    std::condition_variable changed_;
    bool stopping_ = false;
    std::chrono::steady_clock::time_point asked_;  // when a page last asked
    PictureStamp stamp_;
    Kept picture_;  // nullptr: no daemon has answered so far
    History history_;
    /// What was made of it so far, by PictureQuery::key().
    struct Text {
        PictureQuery query;
        std::shared_ptr<const std::string> json;
        bool is_asked = false;  // a page has it: the next picture is made for it before it asks
    };
    using Texts = std::map<std::string, Text>;
    Texts texts_;

    std::thread thread_;  // last: it uses all of the above
};

}  // namespace fabricd
