// ParameterSnapshots: snapshots of a parameter set to disk and back, by all of its ranks together.
// docs/snapshots.md.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/optim/parameter_set.hpp"
#include "libfabricshm/optim/snapshot_writer.hpp"

namespace fabricshm {

struct SnapshotCall {
    std::string directory;
    std::uint32_t keep = 3;  // 0: all
    // What readers like; one tensor is never cut.
    Bytes file_bytes = 4 * kGiB;
    bool uring = true;  // false: as if the kernel had none
};

/// One rank's side. Threads: one call at a time, and none while the set is in another call. Borrows
/// the set.
class ParameterSnapshots {
  public:
    explicit ParameterSnapshots(ParameterSet& set) : set_(set) {}
    ~ParameterSnapshots();
    ParameterSnapshots(const ParameterSnapshots&) = delete;
    ParameterSnapshots& operator=(const ParameterSnapshots&) = delete;

    /// By all ranks, between two steps: what the set holds now is going to be written, while steps
    /// go on; until wait() values and states may be written by steps alone. Costs one exchange of a
    /// few numbers. All ranks get the same kind of result: kBusy: the snapshot before was not
    /// waited for. kMismatch: ranks called it with other values. kInvalid: a parameter's name.
    /// kBroken: a step failed.
    Result<void> begin(const SnapshotCall& call, TimePoint deadline);

    /// By all ranks: the snapshot is on the disk under its name. Any rank's failure is one of all:
    /// then what was written is removed, and snapshots of before are as they were. kTimeout: some
    /// rank still writes; call again. kPeer: a rank died before it had written its part.
    Result<SnapshotReport> wait(TimePoint deadline);

    /// Whether this rank's part is over; wait() then waits for other ranks only.
    bool is_over();
    bool is_running() const noexcept { return writer_ != nullptr; }

    /// By all ranks, between two steps: the set becomes what the snapshot in `path` holds, with its
    /// number of steps. As StoredSnapshot; all ranks fail alike. Failures before anything was read
    /// into the set (kMismatch, damaged headers) leave it as it was; later ones (kCorrupt: a
    /// checksum) leave it without a state, and steps are kBroken until a restore succeeds.
    Result<std::uint64_t> restore(const std::string& path, TimePoint deadline);

  private:
    Result<void> prepare(const SnapshotCall& call, const SnapshotStamp& stamp);
    Result<void> load(const class StoredSnapshot& stored);
    void end() noexcept;

    ParameterSet& set_;
    std::shared_ptr<SnapshotStage> stage_;  // kept for its memory
    std::unique_ptr<SnapshotWriter> writer_;
};

}  // namespace fabricshm
