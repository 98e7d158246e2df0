// DecisionJournal: what the loop saw, decided and got, in a file. docs/control_reference.md.
//
//   PATH, PATH.1 = frame*      frame = FrameHeader | payload
//
// Framed rather than lines of text: a killed daemon leaves at most one torn frame, which its
// checksum shows; NaN and the last bit of every double come back as they were, which a replay
// needs. Bounded: a full file becomes PATH.1, in place of the one before.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "fabricd/control/journal/decision.hpp"
#include "fabricd/control/journal/window.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

enum class FrameType : std::uint16_t {
    kSettings = 1,  // text: "key=value" lines, at the head of each file; the last one is
                    // last_decision=ID
    kWindow = 2,
    kDecision = 3,
    kOutcome = 4,
    // As kSettings, where a daemon begins. A type of its own, since the windows do not show it: one
    // that had nothing to say at first begins with a number above the last one of the daemon
    // before. Older daemons wrote kSettings in both places.
    kStart = 5,
};

struct FrameHeader {
    std::uint32_t magic;  // kFrameMagic, which also says the version
    std::uint32_t crc;    // CRC-32C of the rest of the header and the payload
    std::uint32_t bytes;  // of the payload
    std::uint16_t type;
    std::uint16_t reserved;
};
static_assert(sizeof(FrameHeader) == 16);
inline constexpr std::uint32_t kFrameMagic = 0x31'4a'44'46;  // "FDJ1"
inline constexpr std::uint32_t kFrameBytesMax = 16U << 20;

/// What a journal holds. Outcomes are already in their decisions.
struct JournalStory {
    struct Start {
        std::string settings;
        std::size_t window = 0;   // the first one after it, an index into `windows`
        bool is_daemons = false;  // a daemon begins, and with it a loop that knows nothing yet
    };
    /// A decision that was not carried out, in the window that it was made in.
    struct Failure {
        std::size_t window = 0;  // an index into `windows`
        std::uint64_t decision = 0;
        std::string reason;
    };
    /// A file of it that cannot be read, or does not begin with a frame.
    struct BadFile {
        std::string path;
        fabricshm::Error why;
    };
    std::vector<Start> starts;
    std::vector<Window> windows;
    std::vector<Decision> decisions;  // by id
    std::vector<Failure> failures;    // by window: the loop was notified, and so it is in a replay
    std::vector<BadFile> bad;
    std::uint64_t last_id = 0;  // of all that were ever made, also of those not here any more
    bool torn = false;          // the end of a file was no whole frame
};

/// Cuts whole frames off the front of `bytes` and calls `take` with each; how many bytes were
/// whole.
std::size_t parse_frames(std::span<const std::byte> bytes,
                         const std::function<void(FrameType, std::span<const std::byte>)>& take);

/// Reads PATH.1 and PATH: what there is of them, since a daemon that was killed between two files
/// leaves PATH.1 alone, and a power cut may corrupt one of them. What is corrupt is in `bad`.
/// kNotFound when neither is there.
fabricshm::Result<JournalStory> read_decision_journal(const std::string& path);

/// Appends; used by the control loop's thread only. Costs one write() into the page cache per
/// frame, no sync: it has to outlive the daemon, and a power cut may take the last decisions.
class DecisionJournal {
  public:
    /// Opens or makes `path` (0600), cuts a torn end off, and begins with `settings`. Files grow to
    /// half of `bytes_max` each. `last_id` is that of the last decision of all: windows push the
    /// decisions of a calm host out of the files, and their numbers must not come again.
    static fabricshm::Result<DecisionJournal> open(std::string path, fabricshm::Bytes bytes_max,
                                                   std::string settings, std::uint64_t last_id = 0);

    /// kInvalid: the record is larger than an eighth of `bytes_max`, and was not written. A few
    /// such windows would push out all decisions of the past; what comes next can be added.
    fabricshm::Result<void> add(const Window& window);
    fabricshm::Result<void> add(const Decision& decision);
    fabricshm::Result<void> add(const DecisionOutcome& outcome);

    fabricshm::Bytes size() const noexcept { return size_; }

  private:
    DecisionJournal(std::string path, fabricshm::Bytes bytes_max, std::string settings,
                    std::uint64_t last_id)
        : path_(std::move(path)),
          bytes_max_(bytes_max),
          settings_(std::move(settings)),
          last_id_(last_id) {}

    fabricshm::Result<void> begin_file();
    fabricshm::Result<void> append_settings(FrameType type);
    fabricshm::Result<void> append_record(FrameType type, std::span<const std::byte> payload);
    fabricshm::Result<void> append(FrameType type, std::span<const std::byte> payload);

    std::string path_;
    fabricshm::Bytes bytes_max_;
    std::string settings_;
    std::uint64_t last_id_;
    fabricshm::Fd file_;
    fabricshm::Bytes size_ = 0;
};

}  // namespace fabricd
