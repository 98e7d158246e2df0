#include "fabricd/telemetry/device_faults.hpp"

#include <algorithm>
#include <iterator>

namespace fabricd {

namespace {

struct Word {
    DeviceFault fault;
    const char* word;
};
constexpr Word kWords[] = {{DeviceFault::kEcc, "ecc"},
                           {DeviceFault::kXid, "xid"},
                           {DeviceFault::kStopped, "stopped"},
                           {DeviceFault::kThermal, "thermal"}};

// Of NVIDIA's list: double-bit errors and rows that can't be remapped, the GPU's own processors
// halted or silent, NVLink down, off the bus, errors that are not contained.
constexpr std::uint64_t kFatalXids[] = {48, 61, 62, 64, 74, 79, 95, 109, 119, 120, 140, 143, 154};

}  // namespace

std::string words_of(DeviceFaults faults) {
    std::string words;
    for (const auto& [fault, word] : kWords) {
        if (!has_fault(faults, fault)) continue;
        words += (words.empty() ? "" : ",") + std::string(word);
    }
    return words;
}

DeviceFaults faults_of(const std::string& words) {
    DeviceFaults faults = 0;
    for (const auto& [fault, word] : kWords) {
        const bool is_named =
            ("," + words + ",").find("," + std::string(word) + ",") != std::string::npos;
        if (is_named) faults = faults | fault;
    }
    return faults;
}

bool is_fatal_xid(std::uint64_t number) noexcept {
    return std::find(std::begin(kFatalXids), std::end(kFatalXids), number) != std::end(kFatalXids);
}

}  // namespace fabricd
