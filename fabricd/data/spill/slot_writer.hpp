// SlotWriter: writes pieces of slots to the spill's files, on a thread of its own.

#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "fabricd/data/catalogue/catalogue.hpp"
#include "fabricd/data/spill/slot_files.hpp"
#include "fabricd/data/spill/staging.hpp"
#include "libfabricshm/os/disk_writer.hpp"

namespace fabricd {

/// Whole blocks of a slot, and what the catalogue hears when they are written.
struct SlotPiece {
    std::shared_ptr<StagedSlot> staged;
    Bytes begin = 0;
    Bytes end = 0;
    CataloguedSlot row;
    std::vector<CataloguedFile> files;  // that the catalogue has not yet
    std::uint64_t chunks = 0;           // that are found again when it is written
    bool is_last = false;               // of its slot
};

/// Any thread.
class SlotWriter {
  public:
    /// On the writer's thread.
    struct Calls {
        std::function<void(SlotPiece& piece, const Result<void>& written)> done;
        std::function<void()> idle;  // about once in a second in which there is nothing to write
    };

    /// Writes out of `memory`. Borrows the files.
    SlotWriter(const SlotFiles& files, std::span<std::byte> memory, Calls calls);
    /// Writes what was added.
    ~SlotWriter();
    SlotWriter(const SlotWriter&) = delete;
    SlotWriter& operator=(const SlotWriter&) = delete;

    /// Never waits: each piece holds a place of the staging room, which bounds them.
    void add(SlotPiece piece);
    /// False: not all that was added is done until `deadline`.
    bool wait_done(TimePoint deadline);

  private:
    void run();
    Result<void> write(const std::vector<SlotPiece>& pieces);

    const SlotFiles& files_;
    Calls calls_;
    fabricshm::DiskWriter writer_;  // the thread's
    std::mutex mutex_;
    std::condition_variable has_work_, is_done_;
    std::deque<SlotPiece> pieces_;
    std::uint64_t added_ = 0;
    std::uint64_t done_ = 0;
    bool ends_ = false;
    std::thread thread_;
};

}  // namespace fabricd
