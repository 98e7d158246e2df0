// SiloWorker: one silo on two threads of its own: one fetches, many parts at a time; the other
// lists, so that a large folder holds up no fetch.

#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "fabricd/data/data_spec.hpp"
#include "fabricd/data/silo/silo.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Duration;

/// What is waited for is fetched first.
enum class FetchPriority : std::uint8_t { kOnDemand = 0, kAhead = 1 };

/// What has come of a fetch.
struct FillDone {
    Fetched fetched;
    std::uint32_t checksum = 0;  // CRC-32C of the bytes, of kWhole
    Bytes bytes = 0;
    double seconds = 0;  // from start() on
};

/// A file or folder that was listed, by its path in the silo.
struct ListedPath {
    std::string path;
    bool is_folder = false;
    FileFacts facts;
};

/// What has come of a listing or a look.
struct ListDone {
    Error error{fabricshm::Errc::kOk, 0, ""};
    std::string reason;  // for people
    std::vector<ListedPath> entries;
    std::size_t left_out = 0;
    std::string first_left_out;
    std::size_t wrong = 0;  // of these: the silo's answer about it can't be right
    std::string first_wrong;
    std::optional<SiloAway> away;  // the silo: this is what was known before
};

/// Any thread, but the constructor's and destructor's are one. Results are called on the worker's
/// threads; they hand over to another and return.
class SiloWorker {
  public:
    struct Options {
        Duration silo_timeout;  // of a page of a listing
        std::span<std::byte> memory;
        std::function<void(FillDone)> on_fill;
        // open_silo() where it is empty; or with more before the silo. The one that fetches gets
        // the memory, the one that lists gets none.
        std::function<Result<std::unique_ptr<Silo>>(const SiloSpec&, std::span<std::byte>)> open;
    };

    /// Opens the silo twice. Errors as open_silo().
    static Result<std::unique_ptr<SiloWorker>> start(const SiloSpec& spec, Options options);
    /// Over two of the same silo.
    SiloWorker(std::unique_ptr<Silo> fetching, std::unique_ptr<Silo> listing, Options options);
    /// What has not begun ends without a result. Waits for what a disk or server is doing.
    ~SiloWorker();
    SiloWorker(const SiloWorker&) = delete;
    SiloWorker& operator=(const SiloWorker&) = delete;

    /// The memory is the silo's until on_fill() gives its tag.
    void fetch(const Fetch& fetch, FetchPriority priority);
    /// A reader waits for it now. Nothing happens where it was begun.
    void promote(std::uint64_t tag);

    /// When it was opened.
    const std::optional<SiloAway>& away_at_start() const noexcept { return away_at_start_; }

    /// All entries of `folder`, or all files below it; of a file itself that one.
    void list(const std::string& folder, bool is_recursive, std::function<void(ListDone)> done);
    /// One file; kNotFound: `path` is no file, perhaps a folder.
    void look(const std::string& path, std::function<void(ListDone)> done);

    /// Fetches that wait for their turn, by priority; those under way.
    struct Load {
        std::array<std::size_t, 2> waiting{};
        std::size_t under_way = 0;
    };
    Load load() const;

  private:
    struct UnderWay {
        Fetch fetch;
        FetchPriority priority;
        TimePoint began;
    };

    void run_fetches();
    bool start_next(std::unique_lock<std::mutex>& lock);
    void end(const Fetched& fetched);
    void run_lists();
    ListDone list_all(const std::string& folder, bool is_recursive);
    ListDone list_folder(const std::string& folder, bool is_recursive);
    ListDone look_at(const std::string& path);

    const Options options_;
    std::unique_ptr<Silo> fetching_;  // of the thread of that name
    std::unique_ptr<Silo> listing_;
    const std::optional<SiloAway> away_at_start_;

    mutable std::mutex mutex_;
    std::condition_variable has_fetch_, has_list_;
    std::array<std::deque<Fetch>, 2> waiting_;  // by priority
    std::unordered_map<std::uint64_t, UnderWay> under_way_;
    std::size_t ahead_ = 0;  // of these
    std::size_t room_ = 16;  // how many the silo takes at a time, as far as is known
    std::deque<std::function<void()>> lists_;
    bool ends_ = false;
    std::thread fetcher_, lister_;
};

}  // namespace fabricd
