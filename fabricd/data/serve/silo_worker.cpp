#include "fabricd/data/serve/silo_worker.hpp"

#include <algorithm>
#include <chrono>

#include "fabricd/data/silo/open_silo.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Errc;

namespace {

constexpr std::size_t kPage = 1000;
// While something is under way the silo alone can wait for it; so often the thread looks for more.
constexpr Duration kLook = 2ms;
// A tree that leads back to itself would have no end.
constexpr std::size_t kMaxListed = 50'000'000;

ListDone failed_list(const Error& error) {
    ListDone done;
    done.error = error;
    done.reason = fabricshm::explanation_of(error);
    return done;
}

}  // namespace

Result<std::unique_ptr<SiloWorker>> SiloWorker::start(const SiloSpec& spec, Options options) {
    if (!options.open) options.open = open_silo;
    FABRIC_TRY(auto fetching, options.open(spec, options.memory));
    FABRIC_TRY(auto listing, options.open(spec, {}));
    return std::unique_ptr<SiloWorker>(
        new SiloWorker(std::move(fetching), std::move(listing), std::move(options)));
}

SiloWorker::SiloWorker(std::unique_ptr<Silo> fetching, std::unique_ptr<Silo> listing,
                       Options options)
    : options_(std::move(options)),
      fetching_(std::move(fetching)),
      listing_(std::move(listing)),
      away_at_start_(listing_->away()) {
    fetcher_ = std::thread([this] { run_fetches(); });
    lister_ = std::thread([this] { run_lists(); });
}

SiloWorker::~SiloWorker() {
    {
        const std::lock_guard lock(mutex_);
        ends_ = true;
    }
    has_fetch_.notify_all();
    has_list_.notify_all();
    fetcher_.join();
    lister_.join();
}

void SiloWorker::fetch(const Fetch& fetch, FetchPriority priority) {
    {
        const std::lock_guard lock(mutex_);
        waiting_[static_cast<std::size_t>(priority)].push_back(fetch);
    }
    has_fetch_.notify_one();
}

void SiloWorker::promote(std::uint64_t tag) {
    {
        const std::lock_guard lock(mutex_);
        auto& ahead = waiting_[static_cast<std::size_t>(FetchPriority::kAhead)];
        const auto found = std::find_if(ahead.begin(), ahead.end(),
                                        [&](const Fetch& one) { return one.tag == tag; });
        if (found == ahead.end()) return;
        waiting_[static_cast<std::size_t>(FetchPriority::kOnDemand)].push_back(std::move(*found));
        ahead.erase(found);
    }
    has_fetch_.notify_one();
}

SiloWorker::Load SiloWorker::load() const {
    const std::lock_guard lock(mutex_);
    return {{waiting_[0].size(), waiting_[1].size()}, under_way_.size()};
}

// One fetch, if any may begin. What is fetched ahead has half of the silo's places at most: the
// others are free for a reader that waits.
bool SiloWorker::start_next(std::unique_lock<std::mutex>& lock) {
    if (!fetching_->has_room()) {
        room_ = std::max<std::size_t>(1, under_way_.size());
        return false;
    }
    for (const auto priority : {FetchPriority::kOnDemand, FetchPriority::kAhead}) {
        auto& waiting = waiting_[static_cast<std::size_t>(priority)];
        const bool is_ahead = priority == FetchPriority::kAhead;
        if (waiting.empty() || (is_ahead && ahead_ >= std::max<std::size_t>(1, room_ / 2)))
            continue;
        const Fetch fetch = std::move(waiting.front());
        waiting.pop_front();
        under_way_[fetch.tag] = {fetch, priority, Clock::now()};
        if (is_ahead) ++ahead_;
        // It may open a file, which on a network takes as long as that likes.
        lock.unlock();
        fetching_->start(fetch);
        lock.lock();
        return true;
    }
    return false;
}

void SiloWorker::end(const Fetched& fetched) {
    UnderWay work;
    {
        const std::lock_guard lock(mutex_);
        const auto found = under_way_.find(fetched.tag);
        FABRIC_CHECK(found != under_way_.end());
        work = std::move(found->second);
        if (work.priority == FetchPriority::kAhead) --ahead_;
        under_way_.erase(found);
    }
    FillDone done;
    done.fetched = fetched;
    done.bytes = work.fetch.bytes;
    done.seconds = std::chrono::duration<double>(Clock::now() - work.began).count();
    if (fetched.outcome == FetchOutcome::kWhole) {
        done.checksum = fabricshm::crc32c(work.fetch.into, work.fetch.bytes);
    }
    options_.on_fill(std::move(done));
}

void SiloWorker::run_fetches() {
    std::unique_lock lock(mutex_);
    for (;;) {
        while (!ends_ && start_next(lock)) {
        }
        if (ends_) break;
        if (under_way_.empty()) {
            has_fetch_.wait(lock);
            continue;
        }
        lock.unlock();
        for (const Fetched& fetched : fetching_->wait(Clock::now() + kLook)) end(fetched);
        lock.lock();
    }
    lock.unlock();
    // The kernel writes into the memory until reads end; the silo's destructor waits for them.
    fetching_.reset();
}

// --- listing ---

ListDone SiloWorker::list_all(const std::string& folder, bool is_recursive) {
    ListDone done = list_folder(folder, is_recursive);
    const bool is_there = done.error.code == Errc::kOk;
    const bool is_perhaps_file =
        !folder.empty() && (done.error.code == Errc::kNotFound || listing_->away());
    if (!is_there && is_perhaps_file) {
        ListDone file = look_at(folder);
        if (file.error.code == Errc::kOk) return file;
    }
    done.away = listing_->away();
    return done;
}

ListDone SiloWorker::look_at(const std::string& path) {
    const auto facts = listing_->look(path, Clock::now() + options_.silo_timeout);
    ListDone done = facts.ok() ? ListDone{} : failed_list(facts.error());
    if (facts.ok()) done.entries.push_back({path, false, *facts});
    done.away = listing_->away();
    return done;
}

ListDone SiloWorker::list_folder(const std::string& folder, bool is_recursive) {
    ListDone done;
    std::deque<std::string> folders{folder};
    while (!folders.empty()) {
        const std::string here = std::move(folders.front());
        folders.pop_front();
        const std::string prefix = here.empty() ? "" : here + "/";
        std::string after;
        for (;;) {
            const auto page =
                listing_->list(here, after, kPage, Clock::now() + options_.silo_timeout);
            // A folder below that went meanwhile is no failure of the tree.
            const bool went = !page.ok() && page.error().code == Errc::kNotFound && here != folder;
            if (went) break;
            if (!page.ok()) return failed_list(page.error());
            for (const SiloEntry& entry : page->entries) {
                if (is_recursive && entry.is_folder) folders.push_back(prefix + entry.name);
                const bool is_wanted = !is_recursive || !entry.is_folder;
                if (is_wanted) {
                    done.entries.push_back({prefix + entry.name, entry.is_folder, entry.facts});
                }
            }
            if (page->left_out != 0 && done.left_out == 0) {
                done.first_left_out = page->first_left_out;
            }
            done.left_out += page->left_out;
            if (page->wrong != 0 && done.wrong == 0) done.first_wrong = page->first_wrong;
            done.wrong += page->wrong;
            {
                const std::lock_guard lock(mutex_);
                if (ends_) return failed_list({Errc::kClosed, 0, "list"});
            }
            if (page->is_last || page->entries.empty()) break;
            after = page->entries.back().name;
        }
        if (done.entries.size() > kMaxListed) {
            return failed_list(fabricshm::explain({Errc::kNoMemory, 0, "list"},
                                                  "more than 50 million files below it"));
        }
    }
    return done;
}

void SiloWorker::list(const std::string& folder, bool is_recursive,
                      std::function<void(ListDone)> done) {
    {
        const std::lock_guard lock(mutex_);
        lists_.push_back([this, folder, is_recursive, done = std::move(done)] {
            done(list_all(folder, is_recursive));
        });
    }
    has_list_.notify_one();
}

void SiloWorker::look(const std::string& path, std::function<void(ListDone)> done) {
    {
        const std::lock_guard lock(mutex_);
        lists_.push_back([this, path, done = std::move(done)] { done(look_at(path)); });
    }
    has_list_.notify_one();
}

void SiloWorker::run_lists() {
    std::unique_lock lock(mutex_);
    for (;;) {
        has_list_.wait(lock, [&] { return ends_ || !lists_.empty(); });
        if (ends_) return;
        const auto task = std::move(lists_.front());
        lists_.pop_front();
        lock.unlock();
        task();
        lock.lock();
    }
}

}  // namespace fabricd
