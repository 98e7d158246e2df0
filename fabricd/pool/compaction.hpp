// Compaction: a journal is written again from what its own file says, while the daemon serves.
//
// - begin(), control thread: notes how long the journal is; appends go on from here.
// - write(), another thread: what the file says up to there, as the shortest journal that says it,
//   and behind it what was appended meanwhile, as long as that is much.
// - finish(), control thread: copies the little that is left, and renames.
//
// A file up to one of its records is the state of one moment, so the daemon serves on. Until the
// rename the old journal is the journal, and has every record; a daemon that is killed before it
// leaves a file that counts for nothing, and one that is killed after it a journal that lacks
// nothing.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "fabricd/pool/journal.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// Of a journal that has been rewritten once. Each call by one thread at a time; each says by
/// which.
class Compaction {
  public:
    static constexpr const char* kSuffix = ".compact";
    /// What finish() may have to copy: about a millisecond.
    static constexpr fabricshm::Bytes kMaxRest = 256 * fabricshm::kKiB;

    /// Control thread.
    static fabricshm::Result<std::unique_ptr<Compaction>> begin(const Journal& journal);

    /// The file goes, unless it has become the journal. On the thread of write(), since its space
    /// is given back.
    ~Compaction();
    Compaction(const Compaction&) = delete;
    Compaction& operator=(const Compaction&) = delete;

    /// Any thread. Takes as long as reading, playing and writing the journal takes, and waits for
    /// the disk. kCorrupt: the file does not say what was appended to it, and the state in memory
    /// has to be written instead. kClosed: cancelled. Else errors of the disk.
    fabricshm::Result<void> write();

    /// Control thread, after write(). False when so much was appended that write() is to be called
    /// once more.
    bool is_near(const Journal& journal) noexcept;

    /// Control thread, in the end. Returns the old file: closing it gives its space back, which may
    /// take long. kBusy: the journal was rewritten meanwhile. After an error the journal is as it
    /// was.
    fabricshm::Result<fabricshm::Fd> finish(Journal& journal);

    /// Any thread: write() ends soon.
    void cancel() noexcept { cancelled_.store(true, std::memory_order_relaxed); }

  private:
    explicit Compaction(const Journal& journal)
        : path_(journal.path()), end_(journal.head()), incarnation_(journal.incarnation()) {}
    fabricshm::Result<void> write_whole();
    fabricshm::Result<void> copy_rest(const fabricshm::Fd& from, const JournalHead& end);

    const std::string path_;
    fabricshm::Fd old_;      // a descriptor of our own
    JournalHead written_{};  // up to here the file is in the new one
    JournalHead end_;        // up to here write() goes
    const std::uint64_t incarnation_;
    Journal fresh_{""};
    int rounds_ = 0;
    // Relaxed: it carries nothing else.
    std::atomic<bool> cancelled_{false};
};

}  // namespace fabricd
