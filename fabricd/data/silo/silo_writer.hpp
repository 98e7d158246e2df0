// SiloWriter: how a new file gets into a silo. It is there whole after its commit, and not at all
// before it: nothing is written in place, and nothing replaces what is there.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fabricd/data/silo/silo.hpp"

namespace fabricd {

/// The most that one append() takes: two chunks of the cache.
inline constexpr Bytes kMaxAppend = 8 * fabricshm::kMiB;

/// What came of a step.
struct Written {
    std::uint64_t tag = 0;
    Error error{fabricshm::Errc::kOk, 0, ""};
    std::string reason;  // for people
    FileFacts facts;     // of a commit that went well: what look() says of the file from now on

    bool ok() const noexcept { return error.code == fabricshm::Errc::kOk; }
};

/// A file that was begun: its path, and a token of the caller's that no other write has. What a
/// crash leaves of it is found by both.
struct WriteName {
    std::string path;
    std::uint64_t token = 0;  // random

    bool operator==(const WriteName&) const = default;
};

/// One thread at a time. The steps of a file are done in their order, those of different files side
/// by side. After a step that failed those that follow fail with the same error, but for abort().
class SiloWriter {
  public:
    SiloWriter() = default;
    /// Files that are not committed are left to clear().
    virtual ~SiloWriter() = default;
    SiloWriter(const SiloWriter&) = delete;
    SiloWriter& operator=(const SiloWriter&) = delete;

    /// Whether append() and commit() may be called now; the other steps always may.
    virtual bool has_room() const noexcept = 0;

    /// `file` is the caller's number, until commit() went well or abort() ended. Fails with kExists
    /// when there is such a file or folder; kInvalid: no path of a file.
    virtual void begin(std::uint64_t file, const WriteName& name, std::uint64_t tag) = 0;
    /// Its next bytes, kMaxAppend at most; the memory is the writer's until wait() gives the tag.
    virtual void append(std::uint64_t file, const std::byte* bytes, Bytes count,
                        std::uint64_t tag) = 0;
    /// Ends when the file is in the silo, whole, and stays there through a crash. kExists: another
    /// file has taken the name meanwhile. After kTimeout and kSystem a web server may have it or
    /// not.
    virtual void commit(std::uint64_t file, std::uint64_t tag) = 0;
    /// Takes away what was written. It fails where something may be left of it in the silo.
    virtual void abort(std::uint64_t file, std::uint64_t tag) = 0;
    /// What has ended. Waits for the first while any is under way, until `deadline`.
    virtual std::vector<Written> wait(TimePoint deadline) = 0;

    /// Takes away what a crash has left of a write that was begun: before others are begun, and as
    /// often as one likes. A file that was committed stays.
    virtual Result<void> clear(const WriteName& name, TimePoint deadline) = 0;
};

/// How each writer begins. `shown` is the file for people. kInvalid: no file may have that path.
Result<void> check_write_path(const std::string& path, const std::string& shown);
/// kExists: the name is another file's.
Error error_of_taken(const std::string& shown, const char* step);
/// kExists: what is there where the path has a folder is none.
Error error_of_no_folder(const std::string& shown, const char* step);

/// A token as text: 16 hexadecimal digits.
std::string token_text(std::uint64_t token);

/// What a file is called in its folder until its commit, where the file system has no files without
/// a name. Listings leave such names out.
std::string temporary_name(std::uint64_t token);
bool is_temporary_name(std::string_view name) noexcept;

}  // namespace fabricd
