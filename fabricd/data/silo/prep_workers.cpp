#include "fabricd/data/silo/prep_workers.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <new>
#include <utility>

#include "fabricd/data/prep/fingerprint.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::explain;

namespace {

// Files to prepare are samples, not archives: the memory of a thread is bounded by it.
constexpr Bytes kSourceMax = 256 * fabricshm::kMiB;
constexpr auto kTimeout = 30s;
// How long a thread waits for its silo before it looks whether it has to end.
constexpr auto kSlice = 100ms;
// A file that changes under each attempt is being written.
constexpr int kAttempts = 3;
constexpr std::size_t kPage = 4096;

// Memory that reads past the page cache can go to. Grows, and keeps nothing when it does.
class ReadBuffer {
  public:
    ~ReadBuffer() { std::free(bytes_); }
    ReadBuffer() = default;
    ReadBuffer(const ReadBuffer&) = delete;
    ReadBuffer& operator=(const ReadBuffer&) = delete;

    std::byte* reserve(Bytes bytes) {
        const Bytes wanted = fabricshm::round_up(std::max<Bytes>(bytes, 1), kPage);
        if (wanted <= room_) return bytes_;
        std::free(bytes_);
        bytes_ = static_cast<std::byte*>(std::aligned_alloc(kPage, wanted));
        room_ = bytes_ == nullptr ? 0 : wanted;
        return bytes_;
    }
    Bytes room() const noexcept { return room_; }

  private:
    std::byte* bytes_ = nullptr;
    Bytes room_ = 0;
};

// A worker's own: its silo, its buffers.
class Worker {
  public:
    Worker(const OpenSource& open, std::shared_ptr<const PrepRules> rules,
           const std::atomic<bool>& ends)
        : open_(open), rules_(std::move(rules)), preparation_(rules_), ends_(ends) {}

    Prepared prepare(const std::string& path) {
        Prepared prepared;
        for (int attempt = 0; attempt < kAttempts; ++attempt) {
            prepared = {};
            const auto outcome = try_once(path, prepared);
            if (outcome.ok() && *outcome == FetchOutcome::kWhole) return prepared;
            if (outcome.ok()) continue;
            prepared.error = outcome.error();
            prepared.is_gone = outcome.error().code == Errc::kNotFound;
            prepared.reason = printable(path) + ": " + fabricshm::explanation_of(outcome.error());
            return prepared;
        }
        prepared.error = {Errc::kBusy, 0, "prepare file"};
        prepared.reason = printable(path) + ": it changes while it is read";
        return prepared;
    }

  private:
    // kChanged: it may be tried again. An error of the file itself marks it as bad.
    Result<FetchOutcome> try_once(const std::string& path, Prepared& prepared) {
        if (silo_ == nullptr) {
            FABRIC_TRY(silo_, open_());
        }
        FABRIC_TRY(const FileFacts source, silo_->look(path, Clock::now() + kTimeout));
        prepared.version = version_of_prepared(source, *rules_);
        if (source.bytes > kSourceMax) {
            prepared.is_bad = true;
            return explain({Errc::kNoMemory, 0, "prepare file"}, "larger than 256 MiB");
        }
        FABRIC_TRY(const FetchOutcome outcome, fetch(path, source));
        if (outcome != FetchOutcome::kWhole) return outcome;
        auto bytes = std::make_shared<std::vector<std::byte>>();
        const auto run = preparation_.run({read_.reserve(0), source.bytes}, *bytes);
        if (!run.ok()) {
            prepared.is_bad = true;
            return run.error();
        }
        prepared.bytes = std::move(bytes);
        return FetchOutcome::kWhole;
    }

    Result<FetchOutcome> fetch(const std::string& path, const FileFacts& source) {
        std::byte* const into = read_.reserve(source.bytes);
        if (into == nullptr) return Error{Errc::kNoMemory, 0, "prepare file"};
        if (source.bytes == 0) return FetchOutcome::kWhole;
        silo_->start({path, source, 0, source.bytes, into, read_.room(), ++tag_});
        const auto deadline = Clock::now() + kTimeout;
        while (Clock::now() < deadline && !ends_.load(std::memory_order_relaxed)) {
            const auto ended = silo_->wait(std::min(deadline, Clock::now() + kSlice));
            if (ended.empty()) continue;
            FABRIC_CHECK(ended.size() == 1 && ended[0].tag == tag_);
            if (ended[0].outcome != FetchOutcome::kFailed) return ended[0].outcome;
            return explain(ended[0].error, "%s", ended[0].reason.c_str());
        }
        // The read may still write into the buffer: its silo goes first, and waits for it.
        silo_.reset();
        return Error{Errc::kTimeout, 0, "prepare file"};
    }

    const OpenSource& open_;
    const std::shared_ptr<const PrepRules> rules_;
    Preparation preparation_;
    const std::atomic<bool>& ends_;
    ReadBuffer read_;  // before the silo, which is destroyed first
    std::unique_ptr<Silo> silo_;
    std::uint64_t tag_ = 0;
};

}  // namespace

FileVersion version_of_prepared(const FileFacts& source, const PrepRules& rules) noexcept {
    std::string text = rules.text();
    text += '\0';
    for (const std::uint64_t word : source.version.words) text += std::to_string(word) + ' ';
    text += std::to_string(source.bytes);
    return {fingerprint_of(text)};
}

PrepWorkers::PrepWorkers(unsigned threads, OpenSource open, std::shared_ptr<const PrepRules> rules)
    : open_(std::move(open)), rules_(std::move(rules)) {
    FABRIC_CHECK(threads >= 1 && threads <= kThreadsMax);
    for (unsigned thread = 0; thread < threads; ++thread) threads_.emplace_back([this] { run(); });
}

PrepWorkers::~PrepWorkers() {
    {
        const std::lock_guard lock(mutex_);
        ends_.store(true, std::memory_order_relaxed);
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void PrepWorkers::ask(std::string path, bool urgent, Done done) {
    {
        const std::lock_guard lock(mutex_);
        (urgent ? urgent_ : others_).push_back({std::move(path), std::move(done)});
    }
    changed_.notify_one();
}

bool PrepWorkers::take(Task& task) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] {
        return ends_.load(std::memory_order_relaxed) || !urgent_.empty() || !others_.empty();
    });
    if (ends_.load(std::memory_order_relaxed)) return false;
    auto& queue = urgent_.empty() ? others_ : urgent_;
    task = std::move(queue.front());
    queue.pop_front();
    return true;
}

void PrepWorkers::run() {
    Worker worker(open_, rules_, ends_);
    Task task;
    while (take(task)) {
        const Prepared prepared = worker.prepare(task.path);
        task.done(prepared);
    }
}

}  // namespace fabricd
