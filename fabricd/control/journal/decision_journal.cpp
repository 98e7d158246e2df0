#include "fabricd/control/journal/decision_journal.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <utility>

#include "fabricd/control/journal/decision_record.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/crc32c.hpp"

namespace fabricd {

using fabricshm::Bytes;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Fd;
using fabricshm::Result;

namespace {

constexpr const char* kLastId = "last_decision=";
constexpr std::size_t kUnchecked = offsetof(FrameHeader, bytes);

// One buffer, so that a frame is one write(): a killed daemon leaves it whole or torn, never in
// two places.
RecordBytes frame_of(FrameType type, std::span<const std::byte> payload) {
    FABRIC_CHECK(payload.size() <= kFrameBytesMax);  // parse_frames() stops at a longer one
    FrameHeader header{kFrameMagic, 0, static_cast<std::uint32_t>(payload.size()),
                       static_cast<std::uint16_t>(type), 0};
    RecordBytes frame(sizeof header + payload.size());
    std::memcpy(frame.data(), &header, sizeof header);
    if (!payload.empty()) std::memcpy(frame.data() + sizeof header, payload.data(), payload.size());
    header.crc = fabricshm::crc32c(frame.data() + kUnchecked, frame.size() - kUnchecked);
    std::memcpy(frame.data(), &header, sizeof header);
    return frame;
}

// The whole file: control.journal_bytes bounds it, and it is read at starts and by fabricctl only.
Result<RecordBytes> read_all(const Fd& file) {
    RecordBytes bytes;
    std::byte piece[65536];
    for (;;) {
        const ssize_t got =
            ::pread(file.get(), piece, sizeof piece, static_cast<off_t>(bytes.size()));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fabricshm::error_from_errno(errno, "read decision journal");
        if (got == 0) return bytes;
        bytes.insert(bytes.end(), piece, piece + got);
    }
}

Result<RecordBytes> read_file(const std::string& path) {
    const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) return fabricshm::error_from_errno(errno, "open decision journal");
    return read_all(file);
}

/// Cuts the last line off. 0 when the settings are of a daemon that did not say it.
std::uint64_t take_last_id(std::string& settings) {
    const auto at = settings.rfind(kLastId);
    if (at == std::string::npos) return 0;
    std::uint64_t id = 0;
    const char* begin = settings.data() + at + std::char_traits<char>::length(kLastId);
    std::from_chars(begin, settings.data() + settings.size(), id);
    settings.erase(at);
    return id;
}

/// Puts frames into a story; outcomes into the decisions they are about.
class Teller {
  public:
    explicit Teller(JournalStory& story) : story_(story) {}

    void take(FrameType type, std::span<const std::byte> payload) {
        if (type == FrameType::kSettings || type == FrameType::kStart) {
            const auto* text = reinterpret_cast<const char*>(payload.data());
            std::string settings(text, payload.size());
            story_.last_id = std::max(story_.last_id, take_last_id(settings));
            story_.starts.push_back(
                {std::move(settings), story_.windows.size(), type == FrameType::kStart});
        } else if (type == FrameType::kWindow) {
            if (auto window = window_from(payload)) story_.windows.push_back(std::move(*window));
        } else if (type == FrameType::kDecision) {
            if (auto decision = decision_from(payload)) {
                decisions_.insert_or_assign(decision->id, std::move(*decision));
            }
        } else if (type == FrameType::kOutcome) {
            if (auto outcome = outcome_from(payload)) end(*outcome);
        }  // others are of a newer daemon
    }

    void finish() {
        for (auto& [id, decision] : decisions_) {
            story_.last_id = std::max(story_.last_id, id);
            story_.decisions.push_back(std::move(decision));
        }
    }

  private:
    void end(const DecisionOutcome& outcome) {
        const auto found = decisions_.find(outcome.id);
        if (found == decisions_.end()) return;  // it was in a file that has been replaced
        found->second.outcome = outcome.outcome;
        found->second.measured = outcome.measured;
        found->second.outcome_reason = outcome.reason;
        // In its own window: the actuators refused. Later on it is the loop that saw it fail, which
        // a replay sees as well.
        const bool was_refused =
            outcome.outcome == Outcome::kFailed && outcome.window == found->second.window &&
            !story_.windows.empty() && story_.windows.back().number == outcome.window;
        if (!was_refused) return;
        story_.failures.push_back({story_.windows.size() - 1, outcome.id, outcome.reason});
    }

    JournalStory& story_;
    std::map<std::uint64_t, Decision> decisions_;
};

// A file that begins with something else is not a journal; one that ends with something else is
// one whose daemon was killed. Whether the file is there.
bool tell_file(const std::string& path, Teller& teller, JournalStory& story) {
    const auto bytes = read_file(path);
    if (!bytes.ok() && bytes.error().code == Errc::kNotFound) return false;
    if (!bytes.ok()) {
        story.bad.push_back({path, bytes.error()});
        return true;
    }
    const std::size_t whole = parse_frames(
        *bytes, [&](FrameType type, std::span<const std::byte> p) { teller.take(type, p); });
    if (whole == 0 && !bytes->empty()) {
        story.bad.push_back({path, Error{Errc::kCorrupt, 0, "read decision journal"}});
    } else {
        // Said, not hidden: a reader may wonder why the last decision is missing.
        story.torn = story.torn || whole != bytes->size();
    }
    return true;
}

}  // namespace

std::size_t parse_frames(std::span<const std::byte> bytes,
                         const std::function<void(FrameType, std::span<const std::byte>)>& take) {
    std::size_t at = 0;
    while (bytes.size() - at >= sizeof(FrameHeader)) {
        FrameHeader header;
        std::memcpy(&header, bytes.data() + at, sizeof header);
        const std::size_t whole = sizeof header + header.bytes;
        // Every reason to stop means the same: the daemon was killed here, and wrote nothing behind
        // it.
        if (header.magic != kFrameMagic || header.bytes > kFrameBytesMax) break;
        if (whole > bytes.size() - at) break;
        const auto* checked = bytes.data() + at + kUnchecked;
        if (header.crc != fabricshm::crc32c(checked, whole - kUnchecked)) break;
        take(static_cast<FrameType>(header.type), bytes.subspan(at + sizeof header, header.bytes));
        at += whole;
    }
    return at;
}

Result<JournalStory> read_decision_journal(const std::string& path) {
    JournalStory story;
    Teller teller(story);
    const bool has_older = tell_file(path + ".1", teller, story);
    const bool has_newer = tell_file(path, teller, story);
    if (!has_older && !has_newer) return Error{Errc::kNotFound, 0, "open decision journal"};
    teller.finish();
    return story;
}

Result<DecisionJournal> DecisionJournal::open(std::string path, Bytes bytes_max,
                                              std::string settings, std::uint64_t last_id) {
    // Whole lines: the last decision's number is a line of its own behind them.
    FABRIC_CHECK(settings.empty() || settings.back() == '\n');
    DecisionJournal journal(std::move(path), bytes_max, std::move(settings), last_id);
    journal.file_ =
        Fd(::open(journal.path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!journal.file_) return fabricshm::error_from_errno(errno, "open decision journal");
    FABRIC_TRY(const RecordBytes bytes, read_all(journal.file_));
    // A torn end is cut off, or frames written behind it could never be found.
    journal.size_ = parse_frames(bytes, [](FrameType, std::span<const std::byte>) {});
    FABRIC_CHECK(journal.size_ <= bytes.size());  // ftruncate() must cut, and not fill with zeros
    if (::ftruncate(journal.file_.get(), static_cast<off_t>(journal.size_)) != 0) {
        return fabricshm::error_from_errno(errno, "cut decision journal");
    }
    FABRIC_TRY_VOID(journal.append_settings(FrameType::kStart));
    return journal;
}

Result<void> DecisionJournal::add(const Window& window) {
    return append_record(FrameType::kWindow, to_record(window));
}

Result<void> DecisionJournal::append_settings(FrameType type) {
    const std::string text = settings_ + kLastId + std::to_string(last_id_) + "\n";
    return append(type, std::as_bytes(std::span(text)));
}

Result<void> DecisionJournal::add(const Decision& decision) {
    last_id_ = std::max(last_id_, decision.id);
    return append_record(FrameType::kDecision, to_record(decision));
}

Result<void> DecisionJournal::add(const DecisionOutcome& outcome) {
    return append_record(FrameType::kOutcome, to_record(outcome));
}

// A kill between the two steps leaves PATH.1 and no PATH, which the next daemon makes again.
Result<void> DecisionJournal::begin_file() {
    if (::rename(path_.c_str(), (path_ + ".1").c_str()) != 0) {
        return fabricshm::error_from_errno(errno, "rotate decision journal");
    }
    Fd fresh(::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fresh) return fabricshm::error_from_errno(errno, "make decision journal");
    file_ = std::move(fresh);
    size_ = 0;
    return append_settings(FrameType::kSettings);
}

Result<void> DecisionJournal::append_record(FrameType type, std::span<const std::byte> payload) {
    const Bytes most = std::min<Bytes>(kFrameBytesMax, bytes_max_ / 8);
    if (payload.size() > most) return Error{Errc::kInvalid, 0, "write decision journal"};
    // Half each, since the file before is kept: together they are what the key allows.
    const Bytes full = size_ + sizeof(FrameHeader) + payload.size();
    if (full > bytes_max_ / 2) FABRIC_TRY_VOID(begin_file());
    return append(type, payload);
}

Result<void> DecisionJournal::append(FrameType type, std::span<const std::byte> payload) {
    FABRIC_CHECK(file_);  // open() and begin_file() end with one, or with an error
    const RecordBytes frame = frame_of(type, payload);
    FABRIC_DCHECK(parse_frames(frame, [](FrameType, std::span<const std::byte>) {}) ==
                  frame.size());
    std::size_t done = 0;
    while (done < frame.size()) {
        const ssize_t put = ::pwrite(file_.get(), frame.data() + done, frame.size() - done,
                                     static_cast<off_t>(size_ + done));
        if (put < 0 && errno == EINTR) continue;
        // What was written of it lies behind size_ and is overwritten by the next frame.
        if (put < 0) return fabricshm::error_from_errno(errno, "write decision journal");
        done += static_cast<std::size_t>(put);
    }
    size_ += frame.size();
    return {};
}

}  // namespace fabricd
