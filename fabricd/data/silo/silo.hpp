// Silo: where data come from: a folder, a web server, an object store. Paths are relative to its
// root, with '/' between names; "" is the root.

#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Bytes;
using fabricshm::Error;
using fabricshm::Result;
using fabricshm::TimePoint;

/// How two contents of a file differ: of a folder's file its size, times and inode, of an
/// object its ETag.
struct FileVersion {
    std::array<std::uint64_t, 4> words{};

    auto operator<=>(const FileVersion&) const = default;
};

struct FileFacts {
    Bytes bytes = 0;
    FileVersion version;

    bool operator==(const FileFacts&) const = default;
};

struct SiloEntry {
    std::string name;
    bool is_folder = false;
    FileFacts facts;  // of files
};

/// A part of a folder's listing, by the bytes of the names.
struct SiloPage {
    std::vector<SiloEntry> entries;
    bool is_last = true;
    // What is neither a file nor a folder, leads out of the silo, or has a name that no path can
    // have: how many, and the first with its reason.
    std::size_t left_out = 0;
    std::string first_left_out;
    // Of these, what is left out since the silo's answer about it can't be right; likewise.
    std::size_t wrong = 0;
    std::string first_wrong;
};

/// A part of one version of a file, and where it goes.
struct Fetch {
    std::string path;
    FileFacts facts;   // as they were listed
    Bytes offset = 0;  // with `bytes` inside the file
    Bytes bytes = 0;
    std::byte* into = nullptr;
    Bytes room = 0;            // that may be written there, `bytes` at least
    std::uint64_t tag = 0;     // the caller's
    bool from_source = false;  // not from a copy that a silo before it has, as a comparison wants
};

enum class FetchOutcome {
    kWhole,    // all bytes are there, of that version
    kChanged,  // the file has another version by now, or none; what was written is no content
    kFailed,
};

struct Fetched {
    std::uint64_t tag = 0;
    FetchOutcome outcome = FetchOutcome::kFailed;
    Error error{fabricshm::Errc::kOk, 0, ""};  // of kFailed
    std::string reason;                        // for people
    bool is_copy = false;                      // not from the silo itself: it says nothing of it
    bool is_of_file = false;                   // kFailed: of this file alone, the silo has answered
};

/// That a silo does not answer, and why.
struct SiloAway {
    Error error{fabricshm::Errc::kOk, 0, ""};
    std::string reason;  // for people
};

/// One thread at a time.
class Silo {
  public:
    Silo() = default;
    virtual ~Silo() = default;
    Silo(const Silo&) = delete;
    Silo& operator=(const Silo&) = delete;

    /// The entries of `folder` whose names come after `after` ("": all), `most` at most. kNotFound:
    /// there is no such folder. A silo that does not answer is another error: never an empty page.
    virtual Result<SiloPage> list(const std::string& folder, const std::string& after,
                                  std::size_t most, TimePoint deadline) = 0;

    /// Of one file. kNotFound: there is none.
    virtual Result<FileFacts> look(const std::string& path, TimePoint deadline) = 0;

    /// Of one that answers from what it knew before while the silo itself is away: whether the last
    /// open(), list() or look() was so.
    virtual std::optional<SiloAway> away() const { return std::nullopt; }

    /// Whether start() may be called now.
    virtual bool has_room() const noexcept = 0;
    /// Starts one; the memory is the silo's until wait() gives its tag.
    virtual void start(const Fetch& fetch) = 0;
    /// What has ended. Waits for the first while any is under way, until `deadline`.
    virtual std::vector<Fetched> wait(TimePoint deadline) = 0;
};

inline constexpr std::size_t kSiloPathBytes = 1024;
inline constexpr std::size_t kSiloNameBytes = 255;

/// Whether it names a place below the root: no empty name, no "." or "..", no zero byte, and not
/// too long.
bool is_silo_path(std::string_view path) noexcept;

/// The path of `name` in `folder`; either may be "".
std::string joined_path(const std::string& folder, const std::string& name);

/// A path or name for people: bytes that are not printable ASCII as \xNN.
std::string printable(std::string_view path);

}  // namespace fabricd
