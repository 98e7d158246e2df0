// Device faults: what a device of this host says is wrong with it. docs/telemetry.md.

#pragma once

#include <cstdint>
#include <string>

namespace fabricd {

enum class DeviceFault : std::uint32_t {
    kEcc = 1,      // memory errors that it could not correct, since its driver was loaded
    kXid = 2,      // an error after which it has to be reset
    kStopped = 4,  // it does not answer any more
    kThermal = 8,  // slower than it could be, for its heat
};

/// Several of them.
using DeviceFaults = std::uint32_t;

constexpr DeviceFaults operator|(DeviceFaults faults, DeviceFault one) noexcept {
    return faults | static_cast<DeviceFaults>(one);
}

constexpr bool has_fault(DeviceFaults faults, DeviceFault one) noexcept {
    return (faults & static_cast<DeviceFaults>(one)) != 0;
}

/// "ecc,stopped", in the words of control.drain_faults; "" for none.
std::string words_of(DeviceFaults faults);

/// The faults that a comma-separated list names; words that it does not know are none.
DeviceFaults faults_of(const std::string& words);

/// Whether NVIDIA's error of that number is the device's own and ends only with a reset. The others
/// are mostly those of one program.
bool is_fatal_xid(std::uint64_t number) noexcept;

}  // namespace fabricd
