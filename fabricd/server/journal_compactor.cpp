#include "fabricd/server/journal_compactor.hpp"

#include <pthread.h>

#include <utility>

namespace fabricd {

using fabricshm::Fd;
using fabricshm::Result;

void JournalCompactor::start(Done done) {
    done_ = std::move(done);
    thread_ = std::thread([this] { serve(); });
    ::pthread_setname_np(thread_.native_handle(), "fabric-journal");
}

void JournalCompactor::stop() noexcept {
    if (compaction_) compaction_->cancel();
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
    orders_.clear();
    compaction_.reset();
}

Result<void> JournalCompactor::begin(Journal& journal) {
    if (is_busy()) return {};
    journal_ = &journal;
    FABRIC_TRY(compaction_, Compaction::begin(journal));
    write();
    return {};
}

void JournalCompactor::write() {
    order([this, compaction = compaction_] {
        const Result<void> outcome = compaction->write();
        // The mutex of the other thread's queue orders all that was written before what it does.
        post_([this, outcome] { written(outcome); });
    });
}

void JournalCompactor::written(const Result<void>& outcome) {
    if (outcome.ok() && !compaction_->is_near(*journal_)) return write();
    Result<Fd> old = outcome.ok() ? compaction_->finish(*journal_) : Result<Fd>(outcome.error());
    const Result<void> done = old.ok() ? Result<void>{} : old.error();
    // Files are closed and removed over there. std::function wants something that can be copied.
    const auto rest = std::make_shared<Fd>(old.ok() ? std::move(old).value() : Fd{});
    order([rest, compaction = std::move(compaction_)]() mutable {
        rest->reset();
        compaction.reset();
    });
    compaction_ = nullptr;
    done_(done);
}

void JournalCompactor::order(std::function<void()> work) {
    {
        const std::lock_guard lock(mutex_);
        orders_.push_back(std::move(work));
    }
    changed_.notify_one();
}

void JournalCompactor::serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return stopping_ || !orders_.empty(); });
        if (stopping_) return;
        auto work = std::move(orders_.front());
        orders_.pop_front();
        lock.unlock();
        work();
        work = nullptr;  // with what it holds, before the lock is waited for
        lock.lock();
    }
}

}  // namespace fabricd
