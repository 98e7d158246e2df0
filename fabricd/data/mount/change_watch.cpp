#include "fabricd/data/mount/change_watch.hpp"

#include <algorithm>
#include <chrono>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Duration;

namespace {

// At most a fiftieth of a core, however many folders there are.
constexpr int kShareOfTime = 50;
// However many readers hold a version that is no more.
constexpr auto kMinPause = std::chrono::milliseconds(20);

// Whether the name still leads to this node.
bool is_as_before(const MountListing& listing, const Node& child) {
    const auto index = listing.find(child.name);
    if (!index) return false;
    const auto entry = listing.entry(*index);
    if (!entry.ok() || entry->facts.is_folder != child.facts.is_folder) return false;
    return child.facts.is_folder || entry->facts.stamp == child.facts.stamp;
}

}  // namespace

ChangeWatch::ChangeWatch(NodeTable& nodes, MountListings& listings, const Notifier& notifier,
                         Duration refresh, Duration timeout)
    : nodes_(nodes),
      listings_(listings),
      notifier_(notifier),
      refresh_(refresh),
      timeout_(timeout) {}

ChangeWatch::~ChangeWatch() {
    {
        const std::scoped_lock hold(lock_);
        ends_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void ChangeWatch::start() {
    thread_ = std::thread([this] { run(); });
}

void ChangeWatch::prompt() noexcept {
    {
        const std::scoped_lock hold(lock_);
        prompted_ = true;
    }
    wake_.notify_all();
}

// The stamp is the last to be stored: a server that dies before it leaves the work to the next one,
// which says some of it once more.
void ChangeWatch::compare(const Node& folder) {
    const auto deadline = fabricshm::deadline_after(Clock::now(), timeout_);
    auto listing = listings_.read_again(folder.number, deadline);
    if (!listing.ok()) {
        // A source that does not answer has changed nothing. One that says there is no such folder
        // has a parent in which it is no more, which is where that is noticed.
        if (listing.error().code == fabricshm::Errc::kNotFound) listings_.forget(folder);
        return;
    }
    const std::uint64_t stamp = stamp_of(**listing);
    if (stamp == folder.facts.stamp) return;
    listings_.replace(folder, *listing);
    for (const Node& child : nodes_.children_of(folder.number)) {
        if (is_as_before(**listing, child)) continue;
        if (!notifier_.entry_changed(folder.number, child.name).ok()) return;
    }
    nodes_.set_listing(folder.number, folder.facts.stamp, wall_clock_ns());
    const bool told = notifier_.folder_changed(folder.number).ok() && notifier_.flush().ok();
    if (told) nodes_.set_listing(folder.number, stamp, 0);
}

void ChangeWatch::look() noexcept {
    for (const Node& folder : nodes_.listed_folders()) {
        {
            const std::scoped_lock hold(lock_);
            if (ends_) return;
        }
        compare(folder);
    }
}

void ChangeWatch::run() {
    Duration pause =
        std::chrono::milliseconds(1);  // the last server may have died before it looked
    for (;;) {
        {
            std::unique_lock hold(lock_);
            const auto until = Clock::now() + pause;
            wake_.wait_until(hold, until, [&] { return ends_ || prompted_; });
            if (ends_) return;
            prompted_ = false;
        }
        const auto began = Clock::now();
        look();
        const Duration cost = Clock::now() - began;
        pause = std::max<Duration>(refresh_, cost * kShareOfTime);
        std::unique_lock hold(lock_);
        wake_.wait_until(hold, Clock::now() + std::max<Duration>(kMinPause, cost),
                         [&] { return ends_; });
    }
}

}  // namespace fabricd
