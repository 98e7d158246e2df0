#include "fabricd/kubernetes/pool_devices.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string_view>

#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::explain;
using fabricshm::Result;

namespace {

constexpr std::string_view kIdPrefix = "gib-";
constexpr const char* kDeviceStep = "check devices";

std::string id_of(int number) {
    return std::string(kIdPrefix) + std::to_string(number);
}

// For messages: what is no id of ours may hold anything.
std::string printable_id(const std::string& id) {
    std::string text = id.substr(0, 63);
    for (char& c : text) {
        if (std::isprint(static_cast<unsigned char>(c)) == 0) c = '?';
    }
    return text;
}

Error repeated_id(int number) {
    return explain({Errc::kInvalid, 0, kDeviceStep}, "device %s is named twice",
                   id_of(number).c_str());
}

}  // namespace

bool PoolDevices::update(const std::optional<PoolState>& state) {
    int healthy = 0;
    if (state && !state->is_draining && state->capacity > reserve_) {
        const fabricshm::Bytes whole = (state->capacity - reserve_) / fabricshm::kGiB;
        healthy = static_cast<int>(std::min<fabricshm::Bytes>(whole, kMaxPoolDevices));
    }
    const int offered = std::max(offered_, healthy);
    const bool is_other = healthy != healthy_ || offered != offered_;
    healthy_ = healthy;
    offered_ = offered;
    return is_other;
}

std::vector<PoolDevice> PoolDevices::list() const {
    std::vector<PoolDevice> devices;
    for (int number = 0; number < offered_; ++number) {
        devices.push_back({id_of(number), number < healthy_});
    }
    return devices;
}

Result<int> PoolDevices::number_of(const std::string& id) const {
    const Error unknown{Errc::kInvalid, 0, kDeviceStep};
    int number = -1;
    if (id.starts_with(kIdPrefix)) {
        std::from_chars(id.data() + kIdPrefix.size(), id.data() + id.size(), number);
    }
    // Spelt as we spell it: "gib-01" and "gib-1x" would be second names of one device.
    if (number < 0 || number >= offered_ || id != id_of(number)) {
        return explain(unknown, "no device '%s': there are %d, gib-0 onwards",
                       printable_id(id).c_str(), offered_);
    }
    return number;
}

Result<std::vector<int>> PoolDevices::numbers_of(const DeviceIds& ids) const {
    std::vector<int> numbers;
    for (const std::string& id : ids) {
        FABRIC_TRY(const int number, number_of(id));
        numbers.push_back(number);
    }
    return numbers;
}

Result<void> PoolDevices::check_allocation(std::span<const DeviceIds> containers) const {
    std::vector<bool> is_taken(static_cast<std::size_t>(offered_));
    for (const DeviceIds& ids : containers) {
        if (ids.empty()) {
            return explain({Errc::kInvalid, 0, kDeviceStep}, "a container with no devices");
        }
        for (const std::string& id : ids) {
            FABRIC_TRY(const int number, number_of(id));
            if (number >= healthy_) {
                return explain({Errc::kDaemon, 0, kDeviceStep},
                               "fabricd does not back device %s now", id.c_str());
            }
            // Checked as they come: a request of millions of ids ends at the first repeat.
            if (is_taken[static_cast<std::size_t>(number)]) return repeated_id(number);
            is_taken[static_cast<std::size_t>(number)] = true;
        }
    }
    return {};
}

Result<DeviceIds> PoolDevices::preferred(const DeviceIds& available, const DeviceIds& must_include,
                                         std::int64_t size) const {
    FABRIC_TRY(std::vector<int> free, numbers_of(available));
    FABRIC_TRY(std::vector<int> chosen, numbers_of(must_include));
    std::sort(free.begin(), free.end());
    const auto twice = std::adjacent_find(free.begin(), free.end());
    if (twice != free.end()) return repeated_id(*twice);
    std::vector<int> sorted = chosen;
    std::sort(sorted.begin(), sorted.end());
    const bool fits = size >= static_cast<std::int64_t>(chosen.size()) &&
                      size <= static_cast<std::int64_t>(free.size());
    const bool is_part = std::includes(free.begin(), free.end(), sorted.begin(), sorted.end());
    if (!fits || !is_part) {
        return explain({Errc::kInvalid, 0, kDeviceStep},
                       "%lld of %zu available devices with these %zu can't be",
                       static_cast<long long>(size), free.size(), chosen.size());
    }
    for (const int number : free) {
        if (static_cast<std::int64_t>(chosen.size()) == size) break;
        if (!std::binary_search(sorted.begin(), sorted.end(), number)) chosen.push_back(number);
    }
    DeviceIds ids;
    for (const int number : chosen) ids.push_back(id_of(number));
    return ids;
}

}  // namespace fabricd
