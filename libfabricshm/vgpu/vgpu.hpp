// The vGPUs of this process: the daemon's limits, the shared ledger, and our slot in it.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/shm/limits_page.hpp"
#include "libfabricshm/shm/usage_ledger.hpp"
#include "libfabricshm/vgpu/cuda_abi.hpp"
#include "libfabricshm/vgpu/grant_wait.hpp"

namespace fabricshm::cuda {

/// One vGPU that this process has. Thread-safe.
class Vgpu {
  public:
    /// Asks the daemon for the vGPU `name` and takes a slot in its ledger. kDaemon: no daemon
    /// answers; kNotFound: there is no such vGPU; kDenied, kCorrupt, kNoMemory (all slots are in
    /// use).
    static Result<std::unique_ptr<Vgpu>> attach(const std::string& name, const std::string& socket);

    const std::string& name() const noexcept { return name_; }
    const std::string& gpu() const noexcept { return gpu_; }

    /// "GPU-..." (or "MIG-...", where it was configured so) of the device that it was found to be;
    /// "" before map_devices(), and where the driver does not report it.
    const std::string& uuid() const noexcept { return uuid_; }

    /// The device that it was found to be; -1 before map_devices().
    Device device() const noexcept { return device_; }

    /// The number that NVML knows this process by: in a pid namespace another one than its own.
    unsigned int host_pid() const noexcept { return host_pid_; }

    /// Before any thread finds the vGPU by its device.
    void set_device(Device device, std::string uuid) {
        device_ = device;
        uuid_ = std::move(uuid);
    }

    /// Sets `bytes` aside before the driver is called. False: the quota does not allow it, even
    /// after unused pools and what dead processes held were given back, nor within the time for
    /// which an allocation waits for room. Then the call is refused, and counted as that. To be
    /// called without any lock that another thread's allocation or free needs: it may take long.
    bool reserve(std::uint64_t bytes);

    /// Whether the quota can ever be so large that `bytes` fit.
    bool can_ever_hold(std::uint64_t bytes) const noexcept;

    /// Counts a call that was refused for another reason than reserve().
    void refused(std::uint64_t bytes) noexcept { ledger_.refused(slot_, bytes); }

    /// The same without giving anything back first; for what the driver has taken already.
    bool charge(std::uint64_t bytes);

    /// For what the driver has taken past us: charges as much of `bytes`, and of what was owed
    /// before, as the quota has room for, and owes the rest. That is charged with what this process
    /// frees, and before it is granted anything. False: something is still owed.
    bool owe(std::uint64_t bytes);

    /// For calls that do not ask for memory: tries again to charge what is owed, every 20 ms. A
    /// load when nothing is.
    void pay() {
        // Relaxed: most processes never owe, and a thread that misses another's debt is as early as
        // it.
        if (owed_.load(std::memory_order_relaxed) != 0 && may_pay()) owe(0);
    }

    /// What this process is known to hold, and what it was ever granted: with the second the first
    /// can be compared with a figure of NVML's while other threads allocate and free.
    struct Known {
        std::uint64_t bytes = 0;  // charged or owed
        std::uint64_t ever = 0;
        friend bool operator==(const Known&, const Known&) = default;
    };
    Known known() const;

    /// The driver has what was reserved.
    void commit(std::uint64_t bytes) noexcept;

    /// The driver refused what was reserved.
    void roll_back(std::uint64_t bytes) noexcept;

    /// The driver has freed it.
    void release(std::uint64_t bytes) noexcept;

    /// What is granted and what of it is used, by all processes of the vGPU.
    std::uint64_t granted() const noexcept;
    std::uint64_t used() const noexcept { return ledger_.total(); }
    std::uint64_t context_bytes() const noexcept;

    /// Notices changed limits; gives unused pools back when they shrank below the use. One load
    /// when nothing changed.
    void follow_limits();

    /// Of the GPU's time, as last noticed. 100: everything.
    std::uint64_t share_percent() const noexcept {
        // Relaxed: it stands for itself, and one launch more or less under an old share is nothing.
        return share_percent_.load(std::memory_order_relaxed);
    }

    /// True once. A load for all later launches.
    bool is_first_launch() noexcept {
        // Relaxed: it guards nothing but itself.
        return !has_launched_.load(std::memory_order_relaxed) &&
               !has_launched_.exchange(true, std::memory_order_relaxed);
    }

    UsageLedger& ledger() noexcept { return ledger_; }
    LedgerSlot& slot() const noexcept { return ledger_.file().slots[slot_]; }

  private:
    class Wanting;
    Vgpu(std::string name, std::string gpu, Mapping limits, Mapping ledger,
         const ProcessIdentity& self) noexcept;
    const LimitsPage& page() const noexcept;
    bool may_look_for_dead() noexcept;
    bool may_pay() noexcept;
    bool charge_after_owed(std::uint64_t bytes);
    bool reserve_now(std::uint64_t bytes);
    bool reserve_waiting(std::uint64_t bytes);
    std::uint64_t pay_with(std::uint64_t freed);

    std::string name_;
    std::string gpu_;
    std::string uuid_;
    Device device_ = -1;
    unsigned int host_pid_ = 0;
    Mapping limits_map_;
    Mapping ledger_map_;
    UsageLedger ledger_;
    int slot_ = -1;
    std::mutex limits_mutex_;  // while noticed limits are written below; no other is taken with it
    std::atomic<std::uint64_t> seen_serial_{0};
    std::atomic<std::uint64_t> share_percent_{100};
    std::atomic<bool> has_launched_{false};
    std::atomic<std::int64_t> next_look_ns_{0};  // for the dead
    std::atomic<std::int64_t> next_pay_ns_{0};
    std::atomic<std::uint64_t> ever_{0};  // bytes ever granted; only rises
    // Held while bytes go from owed to charged, so that no thread misses them in both. Before the
    // ledger's lock.
    mutable std::mutex owed_mutex_;
    std::atomic<std::uint64_t> owed_{0};
    GrantWait grant_wait_;
};

/// Attaches what $FABRIC_VGPU (or $FABRIC_DEVICE) names, separated by commas; says once why not
/// when that fails, and lets everything pass then. Idempotent; a forked child attaches again.
void attach_vgpus();

/// Whether $FABRIC_VGPU_REQUIRE asks for no start at all instead of one without limits.
bool is_limit_required();

/// Before cuInit of such a process: attaches what is missing, again where it failed before. False:
/// something stays without, and a line on standard error says what.
bool attach_required();

/// After map_devices(): whether all devices that the process has are limited; says which is not.
bool are_all_limited();

/// Finds out which of the driver's devices the vGPUs are. After cuInit.
void map_devices();

/// The vGPU of a device, or nullptr: not limited. Before map_devices(): nullptr.
Vgpu* vgpu_of(Device device) noexcept;

/// Whether any device has one: one load.
bool any_vgpu() noexcept;

/// That of the calling thread's context; nullptr without one.
Vgpu* current_vgpu() noexcept;

/// The vGPU whose GPU NVML calls `uuid` or `index`.
Vgpu* vgpu_of_gpu(const char* uuid, unsigned int index) noexcept;

/// One line on standard error, unless FABRIC_LOG is stricter. printf-like.
void say(const char* format, ...) noexcept __attribute__((format(printf, 1, 2)));

/// Bytes that an allocation of `bytes` takes from the device: the driver hands out blocks of 2 MiB
/// to large ones, and to small ones multiples of 512 bytes.
std::uint64_t device_bytes(std::uint64_t bytes) noexcept;

}  // namespace fabricshm::cuda
