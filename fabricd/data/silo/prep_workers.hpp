// PrepWorkers: threads that fetch files of a silo and prepare them. Each has a silo of its own, so
// that reads of one overlap with the steps of another and no lock is held while either runs.

#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "fabricd/data/prep/preparation.hpp"
#include "fabricd/data/silo/silo.hpp"

namespace fabricd {

using OpenSource = std::function<Result<std::unique_ptr<Silo>>()>;
using PreparedBytes = std::shared_ptr<const std::vector<std::byte>>;

/// Of a prepared file, as of any: what it is made of decides its version.
FileVersion version_of_prepared(const FileFacts& source, const PrepRules& rules) noexcept;

/// What came of one file.
struct Prepared {
    FileVersion version;  // of what was prepared, or could not be
    PreparedBytes bytes;  // nullptr: it failed
    /// Whether the file itself is what is wrong; otherwise trying again may help.
    bool is_bad = false;
    bool is_gone = false;
    Error error{fabricshm::Errc::kOk, 0, ""};
    std::string reason;  // for people, with the file's path
};

/// All threads may call.
class PrepWorkers {
  public:
    using Done = std::function<void(const Prepared&)>;

    /// `threads` are 1 to kThreadsMax; each opens the source for itself, and says so of each file
    /// when it can't.
    PrepWorkers(unsigned threads, OpenSource open, std::shared_ptr<const PrepRules> rules);
    /// Ends what is under way at the next look; what waits is not done and `done` not called.
    ~PrepWorkers();
    PrepWorkers(const PrepWorkers&) = delete;
    PrepWorkers& operator=(const PrepWorkers&) = delete;

    /// Prepares the present version of the source's file; `done` is called by a worker's thread.
    /// What is `urgent` goes before what is not.
    void ask(std::string path, bool urgent, Done done);

    static constexpr unsigned kThreadsMax = 64;

  private:
    struct Task {
        std::string path;
        Done done;
    };

    void run();
    bool take(Task& task);

    const OpenSource open_;
    const std::shared_ptr<const PrepRules> rules_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Task> urgent_, others_;
    std::atomic<bool> ends_ = false;  // relaxed: each thread has to see it at some time
    std::vector<std::thread> threads_;
};

}  // namespace fabricd
