// Journal: what the daemon has to know again after it was killed. docs/failure_model.md.
//
//   file = record*      record = RecordHeader | payload
//
// Append-only, one write() per record. There is no fsync: the journal has to outlive the daemon,
// not the host, because neither do the arenas it speaks of (memfds; devdax has its own catalogue).
// A killed daemon leaves the page cache as it is, so at most the last record is torn.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "fabricd/pool/journal_records.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// What stands before each record, as it lies in memory: the file is read on the host that wrote
/// it, and the version in the start record refuses another layout.
struct RecordHeader {
    std::uint32_t crc;  // CRC-32C of the rest of the header and the payload
    std::uint16_t type;
    std::uint16_t bytes;     // of the payload
    std::uint64_t sequence;  // 0, 1, 2, ...: a record of an older file cannot be taken for the next
};
static_assert(sizeof(RecordHeader) == 16);

/// Where records go: the file, or a vector in tests. A grant is written before it is answered: who
/// reads the journal after a crash knows of everything that a client may have been told.
class JournalSink {
  public:
    virtual ~JournalSink() = default;

    /// All or nothing: after a failure the sink is as before.
    virtual fabricshm::Result<void> append(RecordType type, std::span<const std::byte> payload) = 0;

    template <typename Record>
    fabricshm::Result<void> add(const Record& record) {
        return append(Record::kType, std::as_bytes(std::span(&record, 1)));
    }
};

/// What the file held when it was opened.
struct JournalContents {
    struct Entry {
        RecordType type;
        std::vector<std::byte> payload;
    };
    std::vector<Entry> entries;
    bool torn = false;  // something after the last whole record was dropped
};

/// Cuts whole records off the front of `bytes`, stopping at the first that is not one: what is
/// behind it is of no use. Pure.
JournalContents parse_journal(std::span<const std::byte> bytes);

/// One file. Used by the control thread only.
/// Costs one write() into the page cache per record. Fails with the errno of the file system (a
/// full disk: ENOSPC), and then nothing was written as far as a reader can tell.
class Journal : public JournalSink {
  public:
    /// Opens or makes `path` (0600) and reads it. The caller holds the lock of its directory.
    static fabricshm::Result<Journal> open(const std::string& path, JournalContents* contents);

    fabricshm::Result<void> append(RecordType type, std::span<const std::byte> payload) override;

    /// Replaces the file by what `write_all` appends, in one step: a crash leaves the old or the
    /// new.
    fabricshm::Result<void> rewrite(
        const std::function<fabricshm::Result<void>(JournalSink&)>& write_all);

    fabricshm::Bytes size() const noexcept { return size_; }

  private:
    Journal(std::string path, fabricshm::Fd file)
        : path_(std::move(path)), file_(std::move(file)) {}

    std::string path_;
    fabricshm::Fd file_;
    fabricshm::Bytes size_ = 0;
    // Of the next record. Begins at 0 in each new file.
    std::uint64_t sequence_ = 0;
};

}  // namespace fabricd
