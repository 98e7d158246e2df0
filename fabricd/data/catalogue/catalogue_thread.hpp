// CatalogueThread: the catalogue on a thread of its own, so that no reader ever waits for it.

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fabricd/data/catalogue/catalogue.hpp"

namespace fabricd {

/// What of a catalogue was read when it was opened.
struct CatalogueContent {
    std::vector<CataloguedFile> files;
    std::vector<CataloguedSlot> slots;
    std::vector<PutPlan> plans;
};

/// Any thread. Changes are written in the order in which they were added, many in one transaction.
/// After an error of the disk the catalogue is off, with one warning: changes are then dropped.
class CatalogueThread {
  public:
    /// Opens and reads it on the calling thread; Catalogue::open() says how it fails.
    static Result<std::unique_ptr<CatalogueThread>> start(const std::string& path,
                                                          CatalogueContent& content);
    /// Writes what was added.
    ~CatalogueThread();
    CatalogueThread(const CatalogueThread&) = delete;
    CatalogueThread& operator=(const CatalogueThread&) = delete;

    const CatalogueIdentity& identity() const noexcept { return identity_; }
    std::uint32_t opens() const noexcept { return opens_; }

    /// Never waits. False: too many are waiting, this one is dropped and counted; what is read
    /// later is then older, or not there.
    bool add(CatalogueChange change);
    /// Waits for room until `deadline`.
    bool add(CatalogueChange change, TimePoint deadline);
    /// Calls on its thread when all that was added before is written, or can't be (false). Dropped
    /// as a change is.
    void then(std::function<void(bool written)> call);
    /// All that was added before is written. False: not until `deadline`, or it is off.
    bool flush(TimePoint deadline);

    /// Catalogue::read_page() and look(), behind all that was added before. kTimeout, kClosed: off.
    Result<SiloPage> read_page(const std::string& folder, const std::string& after,
                               std::size_t most, TimePoint deadline);
    Result<FileFacts> look(const std::string& path, TimePoint deadline);

    bool is_off() const;
    std::uint64_t dropped() const;

  private:
    using Question = std::function<void(Catalogue* catalogue)>;  // nullptr: it is off
    using Work = std::variant<CatalogueChange, Question>;

    CatalogueThread(std::string path, std::unique_ptr<Catalogue> catalogue);

    void run();
    void write(const std::vector<CatalogueChange>& changes);
    void answer(const std::vector<Question>& questions);
    bool ask(Question question, TimePoint deadline);

    const std::string path_;
    CatalogueIdentity identity_;
    std::uint32_t opens_;
    std::unique_ptr<Catalogue> catalogue_;  // the thread's; empty: off
    mutable std::mutex mutex_;
    std::condition_variable has_work_, has_room_;
    std::deque<Work> work_;
    bool off_ = false;
    bool ends_ = false;
    std::uint64_t dropped_ = 0;
    std::thread thread_;
};

}  // namespace fabricd
