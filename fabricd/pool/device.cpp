#include "fabricd/pool/device.hpp"

#include <algorithm>

namespace fabricd {

DeviceTable::DeviceTable(const std::vector<DeviceSpec>& devices) {
    for (const DeviceSpec& spec : devices) {
        Entry& entry = entries_[spec.name];
        entry.view.spec = spec;
        entry.view.configured = true;
        entry.order = entries_.size();
    }
}

DeviceTable::Entry* DeviceTable::find(const std::string& device) noexcept {
    const auto found = entries_.find(device);
    return found == entries_.end() ? nullptr : &found->second;
}

Result<void> DeviceTable::attach(const std::string& device) {
    if (device.empty()) return {};
    Entry* entry = find(device);
    // One that lives on from an older file takes nobody new.
    if (entry == nullptr || !entry->view.configured) {
        return Error{Errc::kNotFound, 0, "device of the session"};
    }
    ++entry->view.sessions;
    return {};
}

void DeviceTable::restore(const std::string& device) {
    if (device.empty()) return;
    Entry* entry = find(device);
    if (entry == nullptr) {
        entry = &entries_[device];
        entry->view.spec.name = device;
        entry->order = entries_.size();
    }
    ++entry->view.sessions;
}

void DeviceTable::detach(const std::string& device) noexcept {
    Entry* entry = find(device);
    if (entry == nullptr) return;
    --entry->view.sessions;
    if (entry->view.sessions == 0 && !entry->view.configured) entries_.erase(device);
}

bool DeviceTable::admits(const std::string& device, Bytes bytes) const noexcept {
    const auto found = entries_.find(device);
    if (found == entries_.end()) return device.empty();
    const DeviceView& view = found->second.view;
    // Subtracting: the sum could wrap around. After a restart with a lower quota more may be used
    // than there is.
    const Bytes quota = view.configured ? view.spec.quota_bytes : 0;
    return view.bytes_used <= quota && bytes <= quota - view.bytes_used;
}

void DeviceTable::charge(const std::string& device, Bytes bytes) noexcept {
    if (Entry* entry = find(device)) entry->view.bytes_used += bytes;
}

void DeviceTable::release(const std::string& device, Bytes bytes) noexcept {
    if (Entry* entry = find(device)) entry->view.bytes_used -= bytes;
}

std::vector<DeviceView> DeviceTable::view() const {
    std::vector<const Entry*> sorted;
    for (const auto& [name, entry] : entries_) sorted.push_back(&entry);
    std::sort(sorted.begin(), sorted.end(),
              [](const Entry* a, const Entry* b) { return a->order < b->order; });
    std::vector<DeviceView> views;
    for (const Entry* entry : sorted) views.push_back(entry->view);
    return views;
}

}  // namespace fabricd
