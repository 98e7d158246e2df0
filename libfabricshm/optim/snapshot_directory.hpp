// SnapshotDirectory: where snapshots of one parameter set are kept: `step-000123` is whole, and
// `.step-000123.partial-<id>` is being written, or was left by a process that was killed.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/optim/snapshot_plan.hpp"

namespace fabricshm {

struct KeptSnapshot {
    std::uint64_t step = 0;
    std::string path;
};

/// Any thread. Errors of the disk are kSystem with the errno; the texts name the path.
class SnapshotDirectory {
  public:
    explicit SnapshotDirectory(std::string path) : path_(std::move(path)) {}

    /// Those that are whole, by step. kNotFound: there is no such directory.
    Result<std::vector<KeptSnapshot>> snapshots() const;
    /// The last of them; kNotFound: there is none.
    Result<KeptSnapshot> latest() const;

    std::string partial_path(const SnapshotStamp& stamp) const;
    std::string final_path(const SnapshotStamp& stamp) const;

    /// Makes the directory (its parent is there) and that of a snapshot that is to be written. By
    /// any rank first.
    Result<void> prepare(const SnapshotStamp& stamp) const;
    /// Removes what others have left half written; all but that of `stamp`.
    void remove_partials(const SnapshotStamp& stamp) const;

    /// The one that was written takes its place, also of an older one of the same step. What it
    /// consists of is on the disk before, and its name on return.
    Result<void> commit(const SnapshotStamp& stamp) const;
    /// Removes the oldest, so that `keep` are left (0: all); never that of `stamp`.
    void prune(const SnapshotStamp& stamp, std::uint32_t keep) const;
    /// One that is not going to be finished.
    void abandon(const SnapshotStamp& stamp) const;

  private:
    std::string path_;
};

/// What is said of a file or directory that failed; keeps the errno.
Error explain_disk(const Error& error, const std::string& path);

/// The entries of a directory are on the disk.
Result<void> sync_directory(const std::string& path);

/// A file of `text`, on the disk on return.
Result<void> write_text(const std::string& path, const std::string& text);

}  // namespace fabricshm
