// Devices: what computes, as the device file describes it, and how much of each is in use.
// docs/devices.md has the file and the rules in prose.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fabricd/pool/ids.hpp"
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
    /// long as it has sessions, but gets no more memory: nobody says what its quota would be.
    void restore(const std::string& device);

    void detach(const std::string& device) noexcept;

    /// Whether the device's sessions may hold `bytes` more. Asked right before charge(), on the
    /// same thread, so nothing comes between the check and the charge.
    bool admits(const std::string& device, Bytes bytes) const noexcept;
    void charge(const std::string& device, Bytes bytes) noexcept;
    void release(const std::string& device, Bytes bytes) noexcept;

    /// In the order of the file, then what is no longer in it.
    std::vector<DeviceView> view() const;

  private:
    struct Entry {
        DeviceView view;
        std::size_t order = 0;
    };
    Entry* find(const std::string& device) noexcept;

    std::map<std::string, Entry> entries_;
};

}  // namespace fabricd
