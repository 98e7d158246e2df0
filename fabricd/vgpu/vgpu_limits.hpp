// The vGPUs of this host: what each may use of its GPU, and what its processes hold. docs/vgpu.md.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fabricd/vgpu/vgpu_view.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/shm/limits_page.hpp"
#include "libfabricshm/shm/usage_ledger.hpp"

namespace fabricd {

using fabricshm::Result;

/// Writes the pages of limits, reads the ledgers. Thread-safe. Everything in a ledger is input: the
/// processes of a vGPU can write what they like there, and harm nothing but that vGPU.
class VgpuLimits {
  public:
    /// Opens or makes `folder`/NAME.limits and NAME.usage, of mode 0600, for every vGPU. What a
    /// daemon of this boot left there goes on: the processes that hold memory, and its quota and
    /// share, unless the configuration has others since, or no room for what was set live. A quota
    /// above the new one shrinks as after resize(); one below it grows as room comes. A vGPU that
    /// is no longer configured grants nothing more. kInvalid: the configured quotas do not fit
    /// their GPU.
    static Result<std::unique_ptr<VgpuLimits>> open(const std::string& folder,
                                                    const std::vector<VgpuSpec>& specs);

    /// No vGPUs, and no folder for them.
    static std::unique_ptr<VgpuLimits> none();

    std::vector<VgpuView> list() const;

    /// A larger quota is in force at once: a process that was refused gets memory on its next call.
    /// A smaller one is announced at once: nothing is granted above it, processes give their unused
    /// pools back on their next call, and the quota follows their use down to `bytes`, never below
    /// what is in use. kNotFound, kInvalid (0 bytes), kNoMemory (the GPU's quotas would pass its
    /// memory less the reserve).
    Result<void> resize(const std::string& name, Bytes bytes);

    /// Several quotas at once. Where one grows it is all of it or nothing: a vGPU that gives has to
    /// have given in full, so that the quotas together never pass the larger of what they were and
    /// what they become. Where none grows each follows its use, as after resize(). kBusy: a quota
    /// is not what it was, or one that gives uses more than it is to keep. kTimeout, kCorrupt: what
    /// it uses can't be read. Else as resize().
    Result<void> shift(const std::vector<VgpuShift>& shifts);

    /// 1 to 100 per cent of the GPU's time. kNotFound, kInvalid.
    Result<void> set_share(const std::string& name, std::uint32_t percent);

    /// Both at once, as the admin API asks. Nothing is changed when one of them is refused.
    Result<void> set(const VgpuOrder& order);

    /// Lets shrinking quotas follow their use, and what waits for room grow. Returns whether any is
    /// still shrinking.
    bool step();

    /// Frees what dead processes of this pid namespace held, of all vGPUs.
    void reclaim_dead();

    /// Frees what `process` held; it is known to be dead. False: try again, another process has the
    /// lock.
    bool tenant_died(const std::string& name, const fabricshm::ProcessIdentity& process);

    /// Whether a process of that user may have the vGPU. kNotFound, kDenied.
    Result<void> check_user(const std::string& name, std::uint32_t uid) const;

    /// The descriptors for a process of the vGPU: limits (read-only), ledger. kNotFound; kCorrupt
    /// once a process has cut the ledger short.
    struct Files {
        std::string gpu;
        fabricshm::Fd limits;
        fabricshm::Fd ledger;
    };
    Result<Files> files_of(const std::string& name) const;

    /// Takes away what processes have added to the files of their ledgers. Any thread.
    void trim_ledgers();
    /// Has the inotify descriptor report when that is due. False: the kernel has no watch left.
    bool report_ledgers_to(int inotify) const;

    /// The processes that hold slots now, to be watched after a restart.
    std::vector<std::pair<std::string, fabricshm::LedgerUse>> processes() const;

    /// Called after every change, on the thread that made it. Set before other threads call.
    void on_change(std::function<void()> wake) { wake_ = std::move(wake); }

  private:
    struct Vgpu;
    VgpuLimits() = default;
    Vgpu* find(const std::string& name) const;
    Bytes taken_by_others(const Vgpu& vgpu) const;
    Result<void> check_sums(const Vgpu& vgpu);
    void retire_others(const std::string& folder);
    struct Change;
    using Changes = std::vector<Change>;
    Result<Changes> changes_of(const std::vector<VgpuShift>& shifts) const;
    Result<void> carry_out(const Changes& changes);
    Result<void> take(const Change& change, bool in_full);
    bool has_room_for(const Change& change, const Changes& changes) const;
    void shrink(Vgpu& vgpu);
    void grow(Vgpu& vgpu);

    mutable std::mutex mutex_;  // guards the pages' contents and the list
    std::vector<std::unique_ptr<Vgpu>> vgpus_;
    std::function<void()> wake_;

  public:
    ~VgpuLimits();
};

}  // namespace fabricd
