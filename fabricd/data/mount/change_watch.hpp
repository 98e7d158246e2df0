// ChangeWatch: reads the folders that the kernel knows again and again, and has the kernel drop the
// names that lead to other files by now.

#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "fabricd/data/mount/mount_listings.hpp"
#include "fabricd/data/mount/notifier.hpp"

namespace fabricd {

class ChangeWatch {
  public:
    ChangeWatch(NodeTable& nodes, MountListings& listings, const Notifier& notifier,
                fabricshm::Duration refresh, fabricshm::Duration timeout);
    ~ChangeWatch();

    /// Soon, and not at the next turn: a version was asked for that is no more. Any thread.
    void prompt() noexcept;

    /// One turn over all folders. For tests; otherwise the thread's.
    void look() noexcept;
    void start();

  private:
    void run();
    void compare(const Node& folder);

    NodeTable& nodes_;
    MountListings& listings_;
    const Notifier& notifier_;
    const fabricshm::Duration refresh_;
    const fabricshm::Duration timeout_;
    std::mutex lock_;
    std::condition_variable wake_;
    bool prompted_ = false;
    bool ends_ = false;
    std::thread thread_;
};

}  // namespace fabricd
