// ListingMaker: listings out of what silos answered, also of millions of names, without a thread
// that readers wait for being busy for long.

#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fabricd/data/serve/fills.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/shm/data_listing.hpp"

namespace fabricd {

/// One listing, of one moment.
struct Listing {
    std::uint64_t id = 0;
    std::uint32_t silo = 0;
    std::string path;  // in the silo
    bool is_recursive = false;
    bool is_file = false;              // `path` is one, and all that it lists
    bool is_virtual = false;           // of folders above the silos
    std::vector<std::uint64_t> files;  // ids, as the entries; 0: a folder
    std::uint32_t names = 0;           // CRC-32C of the names: of equal ones numbers mean the same
    std::size_t left_out = 0;
    std::string first_left_out;
    fabricshm::Fd descriptor;
    TimePoint made{};
};

/// Names, sizes and lines as a listing; takes what is in `listed`. Any thread.
Result<void> seal_listing(Listing& listing, std::uint64_t generation,
                          std::vector<fabricshm::ListedFile> listed);

/// The control thread's. Files are taken into the table there, a slice of some milliseconds at a
/// time; sorting and writing are done on a thread of its own.
class ListingMaker {
  public:
    struct Parts {
        FileTable& files;
        std::uint64_t generation;                         // of the tables
        std::function<bool(std::function<void()>)> post;  // to the control thread
    };
    explicit ListingMaker(Parts parts);
    ~ListingMaker();
    ListingMaker(const ListingMaker&) = delete;
    ListingMaker& operator=(const ListingMaker&) = delete;

    using Done = std::function<void(const RequestOutcome&, std::shared_ptr<Listing>)>;
    /// Makes `listing`, whose id, silo and path are set, of `entries`; what `before` (or nullptr)
    /// has and it has not is forgotten. A small one is done when this returns.
    void make(std::shared_ptr<Listing> listing, std::vector<ListedPath> entries,
              std::shared_ptr<const Listing> before, Done done);
    /// Of a folder that is gone.
    void forget(const Listing& before);

    /// A slice of the work: call in each turn while it is not idle.
    void tick();
    bool is_idle() const noexcept { return makings_.empty() && gone_.empty(); }

  private:
    struct Making {
        std::shared_ptr<Listing> listing;
        std::vector<ListedPath> entries;
        std::size_t next = 0;  // of these
        std::vector<fabricshm::ListedFile> listed;
        std::shared_ptr<const Listing> before;
        std::vector<std::uint64_t> gone;
        RequestOutcome outcome;
        Done done;
    };
    struct Gone {
        std::uint64_t file;
        TimePoint at;
    };

    Result<void> see(Making& making, const ListedPath& entry, std::size_t prefix);
    bool see_some(Making& making, TimePoint until);
    void seal(Making& making) const;
    void end(const std::shared_ptr<Making>& making);
    void forget_some(TimePoint until);
    void run();

    const Parts parts_;
    std::deque<std::shared_ptr<Making>> makings_;  // whose files are being seen
    std::deque<Gone> gone_;

    std::mutex mutex_;
    std::condition_variable has_task_;
    std::deque<std::shared_ptr<Making>> to_seal_;
    bool ends_ = false;
    std::thread sealer_;
};

}  // namespace fabricd
