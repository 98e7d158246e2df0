#include "fabricd/server/shard_mover.hpp"

#include <pthread.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/machine/node_pages.hpp"

namespace fabricd {

using fabricshm::Clock;

namespace {

// A cancelled copy that sleeps is woken by nothing.
constexpr Duration kMaxSleep = std::chrono::milliseconds(20);

}  // namespace

void ShardMover::start(Done done) {
    FABRIC_CHECK(done && !thread_.joinable());
    done_ = std::move(done);
    thread_ = std::thread([this] { serve(); });
    ::pthread_setname_np(thread_.native_handle(), "fabric-mover");
}

void ShardMover::stop() noexcept {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void ShardMover::copy(CopyJob job) {
    {
        const std::lock_guard lock(mutex_);
        orders_.push_back(std::move(job));
    }
    changed_.notify_all();
}

bool ShardMover::knows_node(int node) const {
    return fabricshm::has_memory(node);
}

void ShardMover::serve() {
    while (take_orders()) {
        if (ShardCopier* copy = next_due(Clock::now())) advance(*copy);
    }
}

// Sleeps until there is something to do; false when the daemon ends.
bool ShardMover::take_orders() {
    TimePoint due = TimePoint::max();
    for (const ShardCopier& copy : copies_) {
        due = copy.cancelled() ? TimePoint::min() : std::min(due, copy.due());
    }
    std::unique_lock lock(mutex_);
    const auto wanted = [this] { return stopping_ || !orders_.empty(); };
    const TimePoint now = Clock::now();
    if (copies_.empty()) {
        changed_.wait(lock, wanted);
    } else if (due > now) {
        changed_.wait_until(lock, std::min(due, fabricshm::deadline_after(now, kMaxSleep)), wanted);
    }
    for (CopyJob& order : orders_) copies_.emplace_back(std::move(order), Clock::now());
    orders_.clear();
    return !stopping_;
}

// In turn: one that was served goes to the back of the line.
ShardCopier* ShardMover::next_due(TimePoint now) {
    for (std::size_t i = 0; i < copies_.size(); ++i) {
        copies_.push_back(std::move(copies_.front()));
        copies_.pop_front();
        if (copies_.back().cancelled() || copies_.back().due() <= now) return &copies_.back();
    }
    return nullptr;
}

void ShardMover::advance(ShardCopier& copy) {
    auto outcome = copy.step(bucket_, pages_, Clock::now());
    if (!outcome) return;
    auto seen = std::make_shared<ShardCopier::Outcome>(std::move(*outcome));
    const ShardId shard = copy.job().shard;
    FABRIC_CHECK(&copy == &copies_.back());  // see next_due()
    copies_.pop_back();
    // The mutex of the other thread's queue orders everything above before the swap.
    post_([this, shard, seen] { done_(shard, std::move(*seen)); });
}

}  // namespace fabricd
