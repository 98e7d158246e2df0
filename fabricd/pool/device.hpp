// Devices: what computes, as the device file describes it, and how much of each is in use.
// docs/devices.md has the file and the rules in prose.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fabricd/pool/ids.hpp"
#include "fabricd/pool/journal_records.hpp"
#include "fabricd/pool/live_quota.hpp"
#include "fabricd/pool/snapshot.hpp"

namespace fabricd {

/// Counts what the sessions of each device hold and refuses what would pass its vGPU quota. A
/// session without a device ("") is not counted anywhere. Used by the control thread only.
class DeviceTable {
  public:
    /// `devices` have different names; their counts start at zero.
    explicit DeviceTable(const std::vector<DeviceSpec>& devices);

    /// One more session computes on `device`. kNotFound: the device file has no such device.
    Result<void> attach(const std::string& device);

    /// The same for a session of the journal. A device that is no longer in the file is kept as
    /// long as it has sessions, but gets no more memory: nothing says what its quota would be.
    void restore(const std::string& device);

    /// The last session of a device that is not in the file takes its entry along.
    void detach(const std::string& device) noexcept;

    /// Whether the device file has it.
    bool knows(const std::string& device) const noexcept;
    /// The NUMA node that the file says it is next to; -1: none.
    int node_of(const std::string& device) const noexcept;

    /// Whether the device's sessions may hold `bytes` more. Asked right before charge(), on the
    /// same thread, so nothing comes between the check and the charge.
    bool admits(const std::string& device, Bytes bytes) const noexcept;
    /// Why it does not.
    Error refusal(const std::string& device, Bytes bytes) const;
    void charge(const std::string& device, Bytes bytes) noexcept;
    void release(const std::string& device, Bytes bytes) noexcept;
    /// Notes what admits() has refused.
    void refuse(const std::string& device, Bytes bytes) noexcept;

    /// Whether the device can have that quota: kNotFound, kInvalid (more memory than it has); else
    /// what the file says its quota is.
    Result<Bytes> check_quota(const std::string& device, Bytes bytes) const;
    /// Changes it, after check_quota() has said that the file has `device`; see LiveQuota.
    void set_quota(const std::string& device, Bytes bytes, TimePoint now, Duration grace);
    /// Whether all of these can be set at once, with nothing left to wait for; see
    /// Registry::shift_quotas().
    Result<void> check_shifts(const std::vector<QuotaShift>& shifts) const;
    QuotaState quota_of(const std::string& device, TimePoint now) const;
    /// 0 for a device that is not in the file.
    Bytes file_quota(const std::string& device) const noexcept;
    /// Devices whose shrinking came to its end, and to what.
    std::vector<std::pair<std::string, Bytes>> settle(TimePoint now);
    TimePoint next_deadline() const noexcept;
    /// What set_quota() has changed, for the journal.
    std::vector<QuotaRecord> changes() const;
    bool changed() const noexcept;

    /// In the order of the file, then what is no longer in it.
    std::vector<DeviceView> view(TimePoint now) const;

  private:
    struct Entry {
        DeviceView view;
        std::size_t order = 0;
        LiveQuota quota;
        bool changed = false;  // the quota is no longer the file's
    };
    Entry* find(const std::string& device) noexcept;

    std::map<std::string, Entry> entries_;
};

}  // namespace fabricd
