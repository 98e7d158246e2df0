// Journal: what the daemon has to know again after it was killed. docs/failure_model.md.
//
//   file = JournalHead | record*      record = RecordHeader | payload
//
// Append-only: a record is written behind the last one, then the head says that it counts. There is
// no fsync: the journal has to outlive the daemon, not the host, because neither do the arenas it
// speaks of (memfds; devdax has its own catalogue). A killed daemon leaves the page cache as it is.
//
// So what a kill leaves unfinished lies behind the end that the head names, and no answer
// was sent for it: it is dropped. Whatever is wrong before that end is damage, and then nothing of
// the file is believed: with a record missing the same bytes could be granted to two owners. Each
// checksum goes on from that of the record before, so that none can be left out, added or
// exchanged.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fabricd/pool/journal_records.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// At the start of the file. As it lies in memory: the file is read on the host that wrote it, and
/// the version in the start record refuses another layout.
struct JournalHead {
    std::uint64_t magic;
    std::uint32_t crc;   // CRC-32C of the head with 0 here
    std::uint32_t last;  // the checksum of the last record that counts; 0: there is none
    std::uint64_t records;
    std::uint64_t bytes;    // of the records that count
    std::uint64_t boot[2];  // of the host that wrote it; 0: unknown
    std::uint64_t reserved[2];
};
static_assert(sizeof(JournalHead) == 64);

/// What stands before each record.
struct RecordHeader {
    std::uint32_t crc;  // CRC-32C, going on from the record before, of the rest and the payload
    std::uint16_t type;
    std::uint16_t bytes;     // of the payload
    std::uint64_t sequence;  // 0, 1, 2, ...
};
static_assert(sizeof(RecordHeader) == 16);

struct JournalEntry {
    RecordType type;
    std::vector<std::byte> payload;
    bool operator==(const JournalEntry&) const = default;
};

/// Where records go: the file, or a vector in tests. A grant is written before it is answered: a
/// daemon that reads the journal after a crash knows of everything that a client may have heard.
class JournalSink {
  public:
    virtual ~JournalSink() = default;

    /// All or nothing: after a failure the sink is as before.
    virtual fabricshm::Result<void> append(RecordType type, std::span<const std::byte> payload) = 0;

    /// Records that give something back, in this order; likewise all or nothing. A sink may have
    /// room for them where it has none for append(): a full disk must not keep memory from being
    /// free.
    virtual fabricshm::Result<void> append_releases(const std::vector<JournalEntry>& records) {
        for (const JournalEntry& record : records) {
            FABRIC_TRY_VOID(append(record.type, record.payload));
        }
        return {};
    }

    template <typename Record>
    fabricshm::Result<void> add(const Record& record) {
        return append(Record::kType, std::as_bytes(std::span(&record, 1)));
    }
};

/// Keeps nothing: for state that is about to be written again as a whole.
class NoJournal final : public JournalSink {
  public:
    fabricshm::Result<void> append(RecordType, std::span<const std::byte>) override { return {}; }
};

/// Why a journal is not believed, and how much of it could have been.
struct JournalDamage {
    const char* what = "";
    std::uint64_t at = 0;            // byte of the file
    std::uint64_t records_read = 0;  // before it
    std::uint64_t records = 0;       // that the head speaks of; 0: the head itself is damaged
    std::uint64_t bytes = 0;         // of the file
    bool other_boot = false;         // written before the host started: no process of then is alive
};

/// One line for a person.
std::string describe(const JournalDamage& damage);

/// What a file held.
struct JournalContents {
    using Entry = JournalEntry;
    std::vector<Entry> entries;
    std::uint64_t unfinished_bytes = 0;  // behind the end: of a record that a kill cut off
    std::optional<JournalDamage> damage;
    bool old_layout = false;  // of a version without a head
    bool other_boot = false;  // written before the host started; false also where that is unknown
};

/// Pure. `boot`: of this host, to find out whether the file is of another boot.
JournalContents parse_journal(std::span<const std::byte> bytes,
                              std::span<const std::uint64_t, 2> boot);
JournalContents parse_journal(std::span<const std::byte> bytes);

/// The file at `path`, which no process is writing. One that is not there is an empty journal; an
/// empty file is a damaged one. Fails with the errno of the file system.
fabricshm::Result<JournalContents> read_journal(const std::string& path);

/// Writes one file. Used by the control thread only, but for a successor, which is of one thread at
/// a time. Costs two write() into the page cache per call of append() or append_releases(). Fails
/// with kSystem and the errno of the file system (a full disk: ENOSPC), and then nothing was
/// written as far as a reader can see.
class Journal final : public JournalSink {
  public:
    /// Disk space that is kept for releases: for some ten thousand of them, when there is room for
    /// nothing else.
    static constexpr fabricshm::Bytes kReserve = fabricshm::kMiB;

    /// Touches nothing: what is at `path` stays as it is until the first rewrite(), and append()
    /// fails with kClosed.
    explicit Journal(std::string path) : path_(std::move(path)) {}

    fabricshm::Result<void> append(RecordType type, std::span<const std::byte> payload) override;
    fabricshm::Result<void> append_releases(const std::vector<JournalEntry>& records) override;

    /// Replaces the file by what `write_all` appends, in one step: a crash leaves the old or the
    /// new.
    fabricshm::Result<void> rewrite(
        const std::function<fabricshm::Result<void>(JournalSink&)>& write_all);

    fabricshm::Bytes size() const noexcept { return sizeof(JournalHead) + head_.bytes; }

    // The steps of a rewrite, for Compaction.

    /// An empty journal in a file next to the one at `path`. Until it replaces that one its records
    /// are collected and written in large pieces; after a failure it is good for discard() alone.
    static fabricshm::Result<Journal> make_successor(const std::string& path, const char* suffix);
    /// Of a successor: all that was appended, and the head that makes it count.
    fabricshm::Result<void> write_out();
    /// Of a successor: its file goes.
    void discard() noexcept;
    /// `successor` has been written out. Returns the file of before, whose close() may take long.
    fabricshm::Result<fabricshm::Fd> replace_by(Journal successor);

    const std::string& path() const noexcept { return path_; }
    const JournalHead& head() const noexcept { return head_; }
    const fabricshm::Fd& file() const noexcept { return file_; }
    /// How often it was replaced.
    std::uint64_t incarnation() const noexcept { return incarnation_; }

  private:
    bool is_successor() const noexcept { return !own_path_.empty(); }
    fabricshm::Result<void> flush();
    fabricshm::Result<void> write_behind(const std::vector<std::byte>& records, JournalHead next);
    fabricshm::Result<void> write_head(JournalHead next);
    fabricshm::Result<void> make_room(fabricshm::Bytes end);

    std::string path_;
    std::string own_path_;  // of a successor, which is not read yet
    fabricshm::Fd file_;
    JournalHead head_{};                // as in the file
    fabricshm::Bytes reserved_to_ = 0;  // the file system keeps space up to here
    std::vector<std::byte> unwritten_;  // of a successor: its last records
    std::uint64_t incarnation_ = 0;
};

/// Plays the records of a journal's file between two of its heads, while others may be appended.
/// kCorrupt when they are not what was written.
fabricshm::Result<void> read_records(
    const fabricshm::Fd& file, const JournalHead& from, const JournalHead& to,
    const std::function<fabricshm::Result<void>(const JournalEntry&)>& play);

}  // namespace fabricd
