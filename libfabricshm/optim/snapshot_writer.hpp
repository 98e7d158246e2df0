// SnapshotWriter: one rank's part of a snapshot on its way to the disk, on a thread of its own. The
// rank whose part is complete last gives the snapshot its name.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/optim/snapshot_directory.hpp"
#include "libfabricshm/optim/snapshot_plan.hpp"
#include "libfabricshm/optim/snapshot_stage.hpp"
#include "libfabricshm/os/disk_writer.hpp"

namespace fabricshm {

struct SnapshotJob {
    ParameterSpec spec;
    SnapshotPlan plan;
    std::string directory;
    std::uint32_t keep = 0;  // 0: all
    int rank = 0;
    int world = 1;
    bool uring = true;
    std::shared_ptr<SnapshotStage> stage;
};

/// What a rank did for a snapshot.
struct SnapshotReport {
    std::uint64_t step = 0;
    Bytes bytes = 0;    // written by this rank
    Duration staged{};  // until all was saved: from then on steps are as fast as ever
    Duration total{};   // until this rank's part was on the disk, and perhaps named
    DiskPath path;
    bool named = false;  // by this rank
};

/// Begun by the constructor; by any thread. The destructor gives up what is not written yet.
class SnapshotWriter {
  public:
    explicit SnapshotWriter(SnapshotJob job);
    ~SnapshotWriter();
    SnapshotWriter(const SnapshotWriter&) = delete;
    SnapshotWriter& operator=(const SnapshotWriter&) = delete;

    const SnapshotJob& job() const noexcept { return job_; }
    /// False: it is not over at `deadline`.
    bool wait_until(TimePoint deadline);

    // Once wait_until() has returned true.
    const Error& error() const noexcept { return error_; }  // kOk: none
    const std::string& reason() const noexcept { return reason_; }
    const SnapshotReport& report() const noexcept { return report_; }

  private:
    void run() noexcept;
    Result<void> write();
    Result<void> write_extents(DiskWriter& writer, std::vector<DiskFile>& files);
    Result<void> record_parts();
    Result<void> name_if_last();
    Result<void> finish_files(const std::string& at);
    Result<std::vector<std::vector<std::uint32_t>>> read_checksums(const std::string& at);
    void add_checksums(const std::byte* end);
    std::string part_path(int rank) const;
    std::string claimed_path(int rank) const;

    SnapshotJob job_;
    SnapshotDirectory directory_;
    std::vector<std::uint32_t> checksums_;  // of the stage's parts
    std::size_t next_part_ = 0;             // whose checksum is being worked out
    Bytes part_bytes_ = 0;                  // of it that are in the checksum
    SnapshotReport report_;
    TimePoint begun_ = Clock::now();
    Error error_{Errc::kOk, 0, ""};
    std::string reason_;
    std::atomic<bool> gives_up_{false};
    std::mutex mutex_;
    std::condition_variable changed_;
    bool over_ = false;
    std::thread thread_;
};

}  // namespace fabricshm
