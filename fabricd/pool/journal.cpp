#include "fabricd/pool/journal.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/fault_point.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Fd;
using fabricshm::Result;

namespace {

constexpr std::size_t kCrcBytes = sizeof(RecordHeader::crc);

// One buffer, so that a record costs one system call. The checksum covers the header and the
// payload: whatever part of it reached the file, a torn record is not taken for one.
std::vector<std::byte> encode(RecordType type, std::uint64_t sequence,
                              std::span<const std::byte> payload) {
    RecordHeader header{0, static_cast<std::uint16_t>(type),
                        static_cast<std::uint16_t>(payload.size()), sequence};
    // Header, then payload: as read back.
    std::vector<std::byte> record(sizeof header + payload.size());
    std::memcpy(record.data(), &header, sizeof header);
    if (!payload.empty())
        std::memcpy(record.data() + sizeof header, payload.data(), payload.size());
    header.crc = fabricshm::crc32c(record.data() + kCrcBytes, record.size() - kCrcBytes);
    std::memcpy(record.data(), &header.crc, kCrcBytes);
    return record;
}

// The whole file at once. It is rewritten when it has grown to four times what is live, so it stays
// in the megabytes; reading in place would only save what is thrown away a moment later.
Result<std::vector<std::byte>> read_all(const Fd& file) {
    std::vector<std::byte> bytes;
    std::byte piece[65536];
    for (;;) {
        const ssize_t got =
            ::pread(file.get(), piece, sizeof piece, static_cast<off_t>(bytes.size()));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fabricshm::error_from_errno(errno, "read journal");
        if (got == 0) return bytes;
        bytes.insert(bytes.end(), piece, piece + got);
    }
}

// Until all of it is there: a signal may cut a write short.
Result<void> write_at(const Fd& file, fabricshm::Bytes place, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t put =
            ::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(place));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return fabricshm::error_from_errno(errno, "write journal");
        bytes = bytes.subspan(static_cast<std::size_t>(put));
        place += static_cast<fabricshm::Bytes>(put);
    }
    return {};
}

}  // namespace

JournalContents parse_journal(std::span<const std::byte> bytes) {
    JournalContents contents;
    // Every reason to stop means the same: the daemon was killed in this record, or before it had
    // written anything here. What follows cannot be younger, since records are only appended.
    while (bytes.size() >= sizeof(RecordHeader)) {
        RecordHeader header;
        std::memcpy(&header, bytes.data(), sizeof header);
        const std::size_t whole = sizeof header + header.bytes;
        // Against the rest of the file, so that a length which was damaged leads nowhere.
        if (header.bytes > kRecordBytesMax || whole > bytes.size()) break;
        // Remains of a failed write may lie behind a shorter record that took its place: they would
        // need the right number, too, to be taken for the next one.
        if (header.sequence != contents.entries.size()) break;
        if (header.crc != fabricshm::crc32c(bytes.data() + kCrcBytes, whole - kCrcBytes)) break;
        const auto payload = bytes.subspan(sizeof header, header.bytes);
        contents.entries.push_back({static_cast<RecordType>(header.type),
                                    std::vector<std::byte>(payload.begin(), payload.end())});
        bytes = bytes.subspan(whole);
    }
    contents.torn = !bytes.empty();
    return contents;
}

Result<Journal> Journal::open(const std::string& path, JournalContents* contents) {
    Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) return fabricshm::error_from_errno(errno, "open journal");
    FABRIC_TRY(const std::vector<std::byte> bytes, read_all(file));
    *contents = parse_journal(bytes);

    Journal journal(path, std::move(file));
    // Appending goes on behind the last whole record, over whatever a torn one left there.
    journal.sequence_ = contents->entries.size();
    for (const auto& entry : contents->entries) {
        journal.size_ += sizeof(RecordHeader) + entry.payload.size();
    }
    return journal;
}

Result<void> Journal::append(RecordType type, std::span<const std::byte> payload) {
    if (payload.size() > kRecordBytesMax) return Error{Errc::kInternal, 0, "append to journal"};
    const std::vector<std::byte> record = encode(type, sequence_, payload);
    FAULT_POINT("journal.append.before");
    // Under a fault plan the record goes out in two halves, so that a crash can fall between them.
    const std::size_t half = fabricshm::fault::g_armed ? record.size() / 2 : record.size();
    Result<void> written = write_at(file_, size_, std::span(record).first(half));
    FAULT_POINT("journal.append.torn");
    if (written.ok()) written = write_at(file_, size_ + half, std::span(record).subspan(half));
    // What a failed write left behind is overwritten by the next record: size_ has not moved.
    FABRIC_TRY_VOID(written);
    FAULT_POINT("journal.append.after");
    size_ += record.size();
    ++sequence_;
    return {};
}

Result<void> Journal::rewrite(const std::function<Result<void>(JournalSink&)>& write_all) {
    // A file left over from a rewrite that was killed is truncated: it never had the name that
    // counts.
    const std::string fresh_path = path_ + ".new";
    Fd file(::open(fresh_path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) return fabricshm::error_from_errno(errno, "make new journal");
    Journal fresh(path_, std::move(file));
    FABRIC_TRY_VOID(write_all(fresh));
    FAULT_POINT("journal.rewrite.before");
    // The old journal is complete until here and the new one from here on. No sync before it: see
    // the head of journal.hpp for what it has to survive.
    if (::rename(fresh_path.c_str(), path_.c_str()) != 0) {
        return fabricshm::error_from_errno(errno, "replace journal");
    }
    FAULT_POINT("journal.rewrite.after");
    *this = std::move(fresh);
    return {};
}

}  // namespace fabricd
