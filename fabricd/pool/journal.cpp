#include "fabricd/pool/journal.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/fault_point.hpp"

namespace fabricd {

using fabricshm::Bytes;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Fd;
using fabricshm::Result;

namespace {

constexpr std::uint64_t kHeadMagic = 0x4441454843424146;  // "FABCHEAD"
constexpr std::size_t kCrcBytes = sizeof(RecordHeader::crc);

// What is set aside is more than needed by less than this: one system call for some thousand
// records.
constexpr Bytes kReserveStep = 256 * fabricshm::kKiB;

// Of a file that is read or written as a whole: large against a system call, small against memory.
constexpr Bytes kPiece = 256 * fabricshm::kKiB;
static_assert(kPiece >= sizeof(RecordHeader) + kRecordBytesMax);
static_assert(kRecordBytesMax <= UINT16_MAX, "RecordHeader::bytes holds every length");

std::uint32_t crc_of(JournalHead head) {
    head.crc = 0;
    return fabricshm::crc32c(&head, sizeof head);
}

// Zero when it can't be read: then nothing is said about boots.
std::array<std::uint64_t, 2> boot_of_host() {
    std::array<std::uint64_t, 2> boot{};
    const Fd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
    char text[64] = {};
    const ssize_t got = file ? ::read(file.get(), text, sizeof text - 1) : 0;
    int digits = 0;
    for (ssize_t i = 0; i < got && digits < 32; ++i) {
        const char c = text[i];
        const bool is_digit = c >= '0' && c <= '9';
        if (!is_digit && (c < 'a' || c > 'f')) continue;
        std::uint64_t& half = boot[static_cast<std::size_t>(digits++ / 16)];
        half = half << 4 | static_cast<std::uint64_t>(is_digit ? c - '0' : c - 'a' + 10);
    }
    return digits == 32 ? boot : std::array<std::uint64_t, 2>{};
}

// Behind `records`, so that several records cost one system call. Header, then payload.
void encode(RecordType type, std::span<const std::byte> payload, JournalHead* head,
            std::vector<std::byte>* records) {
    FABRIC_CHECK(payload.size() <= kRecordBytesMax);  // or a reader would call it damage
    RecordHeader header{0, static_cast<std::uint16_t>(type),
                        static_cast<std::uint16_t>(payload.size()), head->records};
    const std::size_t begin = records->size();
    records->resize(begin + sizeof header + payload.size());
    std::byte* record = records->data() + begin;
    std::memcpy(record, &header, sizeof header);
    if (!payload.empty()) std::memcpy(record + sizeof header, payload.data(), payload.size());
    header.crc =
        fabricshm::crc32c(record + kCrcBytes, records->size() - begin - kCrcBytes, head->last);
    std::memcpy(record, &header.crc, kCrcBytes);
    head->last = header.crc;
    head->bytes += records->size() - begin;
    ++head->records;
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
        if (got < 0) return fabricshm::error_of_disk(errno, "read journal");
        if (got == 0) return bytes;
        bytes.insert(bytes.end(), piece, piece + got);
    }
}

// Until all of it is there: a signal may cut a write short.
Result<void> write_at(const Fd& file, Bytes place, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t put =
            ::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(place));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return fabricshm::error_of_disk(errno, "write journal");
        bytes = bytes.subspan(static_cast<std::size_t>(put));
        place += static_cast<Bytes>(put);
    }
    return {};
}

// All of `bytes`; a file that ends before has been cut by others.
Result<void> read_at(const Fd& file, Bytes place, std::span<std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t got =
            ::pread(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(place));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fabricshm::error_of_disk(errno, "read journal");
        if (got == 0) return Error{Errc::kCorrupt, 0, "read journal"};
        bytes = bytes.subspan(static_cast<std::size_t>(got));
        place += static_cast<Bytes>(got);
    }
    return {};
}

// A journal of before the head begins with its start record.
bool is_old_layout(std::span<const std::byte> bytes) {
    if (bytes.size() < sizeof(RecordHeader) + sizeof(StartRecord)) return false;
    StartRecord start;
    std::memcpy(&start, bytes.data() + sizeof(RecordHeader), sizeof start);
    return start.magic == kJournalMagic;
}

/// Where the next record has to begin, and what it goes on from.
struct Chain {
    std::uint64_t records = 0;
    std::uint32_t last = 0;
};

// Takes one record off the front of `rest`, or says why not. `tail_is_missing` when more of the
// file could help.
const char* take_record(std::span<const std::byte>* rest, Chain* chain, JournalEntry* entry,
                        bool* tail_is_missing) {
    *tail_is_missing = rest->size() < sizeof(RecordHeader);
    if (*tail_is_missing) return "the file ends too early";
    RecordHeader header;
    std::memcpy(&header, rest->data(), sizeof header);
    const std::size_t whole = sizeof header + header.bytes;
    // Against the rest of the file, so that a length which was damaged leads nowhere.
    if (header.bytes > kRecordBytesMax) return "a record is too long";
    *tail_is_missing = whole > rest->size();
    if (*tail_is_missing) return "the file ends too early";
    if (header.sequence != chain->records) return "a record is missing";
    const auto summed = rest->subspan(kCrcBytes, whole - kCrcBytes);
    if (header.crc != fabricshm::crc32c(summed.data(), summed.size(), chain->last)) {
        return "a record does not match its checksum";
    }
    const auto payload = rest->subspan(sizeof header, header.bytes);
    entry->type = static_cast<RecordType>(header.type);
    entry->payload.assign(payload.begin(), payload.end());
    *chain = {chain->records + 1, header.crc};
    *rest = rest->subspan(whole);
    return nullptr;
}

/// Reads the records that the head speaks of. Says where it had to stop, if not at their end.
class Reader {
  public:
    Reader(std::span<const std::byte> bytes, const JournalHead& head)
        : bytes_(bytes), rest_(bytes.subspan(sizeof head)), head_(head) {}

    const char* read(std::vector<JournalEntry>* entries) {
        while (chain_.records < head_.records) {
            JournalEntry entry;
            bool tail_is_missing = false;
            if (const char* wrong = take_record(&rest_, &chain_, &entry, &tail_is_missing)) {
                return wrong;
            }
            entries->push_back(std::move(entry));
        }
        const bool at_end = at() == sizeof(JournalHead) + head_.bytes && chain_.last == head_.last;
        return at_end ? nullptr : "its head speaks of another end";
    }
    std::uint64_t at() const noexcept { return bytes_.size() - rest_.size(); }

  private:
    std::span<const std::byte> bytes_;
    std::span<const std::byte> rest_;
    JournalHead head_;
    Chain chain_;
};

}  // namespace

std::string describe(const JournalDamage& damage) {
    std::string line = std::string(damage.what) + " (byte " + std::to_string(damage.at) + " of " +
                       std::to_string(damage.bytes);
    if (damage.records != 0) {
        line += "; " + std::to_string(damage.records - damage.records_read) + " of " +
                std::to_string(damage.records) + " records can't be believed";
    }
    return line + ")";
}

JournalContents parse_journal(std::span<const std::byte> bytes,
                              std::span<const std::uint64_t, 2> boot) {
    JournalContents contents;
    const auto damaged = [&](const char* what, std::uint64_t at) {
        contents.damage = JournalDamage{what, at, contents.entries.size(), 0, bytes.size(), false};
    };
    JournalHead head{};
    if (bytes.size() >= sizeof head) std::memcpy(&head, bytes.data(), sizeof head);
    if (head.magic != kHeadMagic || head.crc != crc_of(head)) {
        contents.old_layout = is_old_layout(bytes);
        if (!contents.old_layout) damaged("its head is damaged", 0);
        return contents;
    }
    const bool known = boot[0] != 0 && head.boot[0] != 0;
    contents.other_boot = known && (head.boot[0] != boot[0] || head.boot[1] != boot[1]);
    Reader reader(bytes, head);
    if (const char* wrong = reader.read(&contents.entries)) {
        damaged(wrong, reader.at());
        contents.damage->other_boot = contents.other_boot;
        contents.damage->records = head.records;
        return contents;
    }
    contents.unfinished_bytes = bytes.size() - reader.at();
    return contents;
}

JournalContents parse_journal(std::span<const std::byte> bytes) {
    const auto boot = boot_of_host();
    return parse_journal(bytes, boot);
}

Result<JournalContents> read_journal(const std::string& path) {
    // Not for writing: on a disk that is read-only by now it can be read all the same.
    const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!file && errno == ENOENT) return JournalContents{};
    if (!file) return fabricshm::error_of_disk(errno, "open journal");
    FABRIC_TRY(const std::vector<std::byte> bytes, read_all(file));
    return parse_journal(bytes);
}

// The record that was being written when the daemon was killed, or when the disk was full, lies
// behind the end that the head names; the next one overwrites it.
Result<void> Journal::append(RecordType type, std::span<const std::byte> payload) {
    if (!file_) return Error{Errc::kClosed, 0, "write journal"};
    if (payload.size() > kRecordBytesMax) return Error{Errc::kInternal, 0, "append to journal"};
    if (is_successor()) {
        encode(type, payload, &head_, &unwritten_);
        return unwritten_.size() < kPiece ? Result<void>{} : flush();
    }
    std::vector<std::byte> record;
    JournalHead next = head_;
    encode(type, payload, &next, &record);
    // What releases are to have room in is not for grants.
    FABRIC_TRY_VOID(make_room(sizeof(JournalHead) + next.bytes + kReserve));
    return write_behind(record, next);
}

Result<void> Journal::append_releases(const std::vector<JournalEntry>& records) {
    if (!file_) return Error{Errc::kClosed, 0, "write journal"};
    if (is_successor()) return JournalSink::append_releases(records);
    std::vector<std::byte> bytes;
    JournalHead next = head_;
    for (const JournalEntry& record : records) {
        if (record.payload.size() > kRecordBytesMax) {
            return Error{Errc::kInternal, 0, "append to journal"};
        }
        encode(record.type, record.payload, &next, &bytes);
    }
    return write_behind(bytes, next);
}

Result<void> Journal::write_behind(const std::vector<std::byte>& records, JournalHead next) {
    // Behind the end that counts, and the next head counts these records and no others.
    FABRIC_CHECK(!is_successor());
    FABRIC_CHECK(next.bytes == head_.bytes + records.size());
    FABRIC_CHECK(next.records >= head_.records);
    const Bytes end = sizeof(JournalHead) + head_.bytes;
    FAULT_POINT("journal.append.before");
    // Under a fault plan the record goes out in two halves, so that a crash can fall between them.
    const std::size_t half = fabricshm::fault::g_armed ? records.size() / 2 : records.size();
    FABRIC_TRY_VOID(write_at(file_, end, std::span(records).first(half)));
    FAULT_POINT("journal.append.torn");
    FABRIC_TRY_VOID(write_at(file_, end + half, std::span(records).subspan(half)));
    FAULT_POINT("journal.append.after");
    FABRIC_TRY_VOID(write_head(next));
    FAULT_POINT("journal.append.counts");
    return {};
}

// Sixty-four bytes in one page: a kill leaves the old head or the new one.
Result<void> Journal::write_head(JournalHead next) {
    // All that it counts is in the file already: with one record missing none is believed.
    FABRIC_CHECK(unwritten_.empty());
    FABRIC_CHECK(next.magic == kHeadMagic);
    next.crc = crc_of(next);
    FABRIC_TRY_VOID(write_at(file_, 0, std::as_bytes(std::span(&next, 1))));
    head_ = next;
    return {};
}

Result<void> Journal::make_room(Bytes end) {
    if (end <= reserved_to_) return {};
    const Bytes to = fabricshm::round_up(end, kReserveStep);
    FABRIC_CHECK(to >= end && to > reserved_to_);
    // The file's size stays: it ends with its last record.
    const auto from = static_cast<off_t>(reserved_to_);
    const auto length = static_cast<off_t>(to - reserved_to_);
    int failed = ::fallocate(file_.get(), FALLOC_FL_KEEP_SIZE, from, length) == 0 ? 0 : errno;
    // Some file systems can't set space aside; then releases may find the disk full, too.
    if (failed == EOPNOTSUPP || failed == ENOSYS) failed = 0;
    if (failed != 0) return fabricshm::error_of_disk(failed, "write journal");
    reserved_to_ = to;
    return {};
}

Result<Journal> Journal::make_successor(const std::string& path, const char* suffix) {
    Journal fresh(path);
    fresh.own_path_ = path + suffix;
    // A file left over from one that was killed is truncated: it never had the name that counts.
    constexpr int kFlags = O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW;
    fresh.file_ = Fd(::open(fresh.own_path_.c_str(), kFlags, 0600));
    if (!fresh.file_) return fabricshm::error_of_disk(errno, "make new journal");
    fresh.head_.magic = kHeadMagic;
    const auto boot = boot_of_host();
    std::copy(boot.begin(), boot.end(), fresh.head_.boot);
    return fresh;
}

Result<void> Journal::flush() {
    FABRIC_CHECK(is_successor());
    FABRIC_CHECK(unwritten_.size() <= head_.bytes);  // the head counts them already
    const Bytes begin = sizeof(JournalHead) + head_.bytes - unwritten_.size();
    FABRIC_TRY_VOID(write_at(file_, begin, unwritten_));
    unwritten_.clear();
    return {};
}

Result<void> Journal::write_out() {
    FABRIC_TRY_VOID(flush());
    FABRIC_TRY_VOID(write_head(head_));
    // Without it grants are refused, but what it says is true: better than the old one.
    (void)make_room(size() + kReserve);
    return {};
}

void Journal::discard() noexcept {
    // On a full disk its space is missing elsewhere.
    if (is_successor()) ::unlink(own_path_.c_str());
    file_.reset();
}

Result<Fd> Journal::replace_by(Journal successor) {
    // Written out, and nothing appended since: write_head() left its checksum.
    FABRIC_CHECK(successor.is_successor() && successor.unwritten_.empty());
    FABRIC_CHECK(successor.head_.crc == crc_of(successor.head_));
    FABRIC_CHECK(successor.path_ == path_);
    // The old journal is complete until here and the new one from here on. What it has to survive
    // needs no sync: see the head of journal.hpp.
    if (::rename(successor.own_path_.c_str(), path_.c_str()) != 0) {
        const int failed = errno;
        successor.discard();
        return fabricshm::error_of_disk(failed, "replace journal");
    }
    successor.own_path_.clear();
    successor.incarnation_ = incarnation_ + 1;
    Fd old = std::move(file_);
    *this = std::move(successor);
    FABRIC_CHECK(!is_successor());  // from here on each append counts at once
    return old;
}

Result<void> Journal::rewrite(const std::function<Result<void>(JournalSink&)>& write_all) {
    FABRIC_TRY(Journal fresh, make_successor(path_, ".new"));
    Result<void> written = write_all(fresh);
    if (written.ok()) written = fresh.write_out();
    if (!written.ok()) {
        fresh.discard();
        return written;
    }
    FAULT_POINT("journal.rewrite.before");
    FABRIC_TRY(const Fd old, replace_by(std::move(fresh)));
    FAULT_POINT("journal.rewrite.after");
    return {};
}

Result<void> read_records(const Fd& file, const JournalHead& from, const JournalHead& to,
                          const std::function<Result<void>(const JournalEntry&)>& play) {
    // Both are heads of this process, and a journal grows.
    FABRIC_CHECK(from.bytes <= to.bytes && from.records <= to.records);
    const Error corrupt{Errc::kCorrupt, 0, "read journal"};
    Chain chain{from.records, from.last};
    JournalEntry entry;
    std::vector<std::byte> piece(kPiece);
    Bytes at = from.bytes;
    while (at < to.bytes) {
        const std::span wanted = std::span(piece).first(std::min<Bytes>(kPiece, to.bytes - at));
        FABRIC_TRY_VOID(read_at(file, sizeof(JournalHead) + at, wanted));
        std::span<const std::byte> rest = wanted;
        bool tail_is_missing = false;
        while (!rest.empty()) {
            if (take_record(&rest, &chain, &entry, &tail_is_missing) != nullptr) break;
            FABRIC_TRY_VOID(play(entry));
        }
        // A record may lie across two pieces, but none is as long as one.
        const bool stuck = rest.size() == wanted.size();
        if (!rest.empty() && (!tail_is_missing || stuck)) return corrupt;
        at += wanted.size() - rest.size();
    }
    if (chain.records != to.records || chain.last != to.last) return corrupt;
    return {};
}

}  // namespace fabricd
