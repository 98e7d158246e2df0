#include "fabricd/pool/device.hpp"

#include <algorithm>

#include "fabricd/pool/refusals.hpp"

namespace fabricd {

DeviceTable::DeviceTable(const std::vector<DeviceSpec>& devices) {
    for (const DeviceSpec& spec : devices) {
        // Names differ; parse_device_file() has seen to it.
        Entry& entry = entries_[spec.name];
        entry.view.spec = spec;
        entry.view.configured = true;
        entry.quota = LiveQuota(spec.quota_bytes);
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
    // One that lives on from an older file takes no new sessions.
    if (entry == nullptr || !entry->view.configured) {
        return fabricshm::explain({Errc::kNotFound, 0, "device of the session"},
                                  "there is no device '%s' in the device file (devices.file; "
                                  "fabricctl devices lists them)",
                                  device.c_str());
    }
    ++entry->view.sessions;
    return {};
}

void DeviceTable::restore(const std::string& device) {
    if (device.empty()) return;
    Entry* entry = find(device);
    // Behind those of the file, in the order in which sessions brought it.
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

bool DeviceTable::knows(const std::string& device) const noexcept {
    const auto found = entries_.find(device);
    return found != entries_.end() && found->second.view.configured;
}

int DeviceTable::node_of(const std::string& device) const noexcept {
    const auto found = entries_.find(device);
    return found != entries_.end() ? found->second.view.spec.numa_node : -1;
}

bool DeviceTable::admits(const std::string& device, Bytes bytes) const noexcept {
    const auto found = entries_.find(device);
    if (found == entries_.end()) return device.empty();
    const DeviceView& view = found->second.view;
    // Without a configured quota nothing more is granted, see restore().
    return view.configured && found->second.quota.admits(view.bytes_used, bytes);
}

Error DeviceTable::refusal(const std::string& device, Bytes bytes) const {
    const char* step = "memory quota of the device";
    if (!knows(device)) {
        return fabricshm::explain({Errc::kNoMemory, 0, step},
                                  "device '%s' is no longer in the device file (devices.file): its "
                                  "sessions get no more memory",
                                  device.c_str());
    }
    const Entry& entry = entries_.at(device);
    return refuse_quota(step, bytes, "device '" + device + "'", entry.view.bytes_used,
                        entry.quota.target(), "fabricctl quota " + device);
}

void DeviceTable::charge(const std::string& device, Bytes bytes) noexcept {
    if (Entry* entry = find(device)) entry->view.bytes_used += bytes;
}

void DeviceTable::refuse(const std::string& device, Bytes bytes) noexcept {
    Entry* entry = find(device);
    if (entry == nullptr) return;
    // Asking costs nothing: what the device could not hold anyway would only overflow the sum.
    entry->view.bytes_denied += std::min<Bytes>(bytes, entry->view.spec.memory_bytes);
}

void DeviceTable::release(const std::string& device, Bytes bytes) noexcept {
    // What was charged is released exactly once: the registry counts regions, not requests.
    if (Entry* entry = find(device)) entry->view.bytes_used -= bytes;
}

Result<Bytes> DeviceTable::check_quota(const std::string& device, Bytes bytes) const {
    if (!knows(device)) {
        return fabricshm::explain({Errc::kNotFound, 0, "device of the quota"},
                                  "there is no device '%s' in the device file (devices.file); a "
                                  "user is named user:NAME or user:UID",
                                  device.c_str());
    }
    const DeviceSpec& spec = entries_.at(device).view.spec;
    if (bytes > spec.memory_bytes) {
        return fabricshm::explain({Errc::kInvalid, 0, "more than the device has"},
                                  "device '%s' has %s of memory, less than %s", device.c_str(),
                                  fabricshm::format_bytes(spec.memory_bytes).c_str(),
                                  fabricshm::format_bytes(bytes).c_str());
    }
    return Bytes{spec.quota_bytes};
}

void DeviceTable::set_quota(const std::string& device, Bytes bytes, TimePoint now, Duration grace) {
    Entry& entry = *find(device);
    entry.quota.set(bytes, entry.view.bytes_used, now, grace);
    entry.changed = true;
}

Result<void> DeviceTable::check_shifts(const std::vector<QuotaShift>& shifts) const {
    // Neither wraps around: each quota is at most its device's memory.
    Bytes before = 0;
    Bytes after = 0;
    for (const QuotaShift& shift : shifts) {
        FABRIC_TRY_VOID(check_quota(shift.device, shift.after_bytes));
        const Entry& entry = entries_.at(shift.device);
        const bool is_as_seen =
            !entry.quota.shrinking() && entry.quota.limit() == shift.before_bytes;
        if (!is_as_seen) return Error{Errc::kBusy, 0, "the quota was set from outside meanwhile"};
        const bool gives = shift.after_bytes < shift.before_bytes;
        if (gives && entry.view.bytes_used > shift.after_bytes) {
            return Error{Errc::kBusy, 0, "a device uses more by now than it was to keep"};
        }
        before += shift.before_bytes;
        after += shift.after_bytes;
    }
    if (after > before) return Error{Errc::kInvalid, 0, "shift more quota than there is"};
    return {};
}

QuotaState DeviceTable::quota_of(const std::string& device, TimePoint now) const {
    const Entry& entry = entries_.at(device);
    return entry.quota.state(entry.view.bytes_used, now);
}

// For the journal: a changed quota is taken over after a restart only where the file still says the
// same.
Bytes DeviceTable::file_quota(const std::string& device) const noexcept {
    const auto found = entries_.find(device);
    return found == entries_.end() ? 0 : found->second.view.spec.quota_bytes;
}

std::vector<std::pair<std::string, Bytes>> DeviceTable::settle(TimePoint now) {
    std::vector<std::pair<std::string, Bytes>> settled;
    for (auto& [name, entry] : entries_) {
        const bool done = entry.quota.settle(entry.view.bytes_used, now);
        if (done) settled.emplace_back(name, entry.quota.limit());
    }
    return settled;
}

TimePoint DeviceTable::next_deadline() const noexcept {
    TimePoint next = TimePoint::max();
    for (const auto& [name, entry] : entries_) next = std::min(next, entry.quota.deadline());
    return next;
}

std::vector<QuotaRecord> DeviceTable::changes() const {
    std::vector<QuotaRecord> records;
    for (const auto& [name, entry] : entries_) {
        if (!entry.changed) continue;
        QuotaRecord record{};
        record.bytes = entry.quota.target();
        // 0 when nothing is waited for.
        record.grace_ms = entry.quota.grace() / std::chrono::milliseconds(1);
        record.file_bytes = entry.view.spec.quota_bytes;
        name.copy(record.subject, sizeof record.subject - 1);
        records.push_back(record);
    }
    return records;
}

bool DeviceTable::changed() const noexcept {
    return std::any_of(entries_.begin(), entries_.end(),
                       [](const auto& entry) { return entry.second.changed; });
}

std::vector<DeviceView> DeviceTable::view(TimePoint now) const {
    // By pointers: the views are copied once, in the end's order.
    std::vector<const Entry*> sorted;
    for (const auto& [name, entry] : entries_) sorted.push_back(&entry);
    std::sort(sorted.begin(), sorted.end(),
              [](const Entry* a, const Entry* b) { return a->order < b->order; });
    std::vector<DeviceView> views;
    for (const Entry* entry : sorted) {
        DeviceView& view = views.emplace_back(entry->view);
        const QuotaState quota = entry->quota.state(view.bytes_used, now);
        // What is in force stands for the file's figure.
        view.spec.quota_bytes = quota.quota_bytes;
        view.quota_target_bytes = quota.target_bytes;
        view.quota_left_ms = quota.left_ms;
    }
    return views;
}

}  // namespace fabricd
