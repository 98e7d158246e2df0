#include "fabricd/service/control_quotas.hpp"

#include <algorithm>

#include "fabricd/control/stages/numbers.hpp"

namespace fabricd {

namespace {

/// A window counts half after five more.
constexpr double kBusyWeight = 0.13;

QuotaDevice& device_of(Window& window, const VgpuView& vgpu) {
    const auto found =
        std::find_if(window.devices.begin(), window.devices.end(),
                     [&](const QuotaDevice& device) { return device.name == vgpu.spec.gpu; });
    if (found != window.devices.end()) return *found;
    window.devices.push_back({vgpu.spec.gpu,
                              static_cast<double>(vgpu.spec.device_bytes),
                              static_cast<double>(vgpu.spec.reserve_bytes),
                              {}});
    return window.devices.back();
}

// What S322 asks of the vGPUs of one GPU besides their memory. The GPU is the same for all of them,
// so how fast one computes is its compute share; the time for which its launches are held up is its
// delay.
void compare(std::vector<QuotaWindow>& users) {
    double busy = 0;
    double speeds = 0;
    std::vector<double> waits;
    for (const QuotaWindow& user : users) {
        busy += user.usage;
        speeds += user.speed;
        waits.push_back(user.held_up);
    }
    const double usual_wait = median_of(waits);
    for (QuotaWindow& user : users) {
        user.speed *= static_cast<double>(users.size()) / speeds;
        user.delay = std::max(user.held_up - usual_wait, 0.0);
        user.busy = std::clamp(busy - user.usage, 0.0, 1.0);
    }
}

template <typename Shift>
std::vector<Shift> shifts_of(const std::vector<NamedChange<Bytes>>& changes) {
    std::vector<Shift> shifts;
    for (const auto& change : changes) {
        shifts.push_back({change.name, change.before, change.after});
    }
    return shifts;
}

}  // namespace

void QuotaSource::add_to(Window& window) {
    for (const VgpuView& vgpu : limits_.list()) {
        const std::string& name = vgpu.spec.name;
        // What was refused before the loop first looked is an old story.
        const auto [known, is_new] = refusals_.try_emplace(name, vgpu.denied_bytes);
        // A ledger is written by its processes: a count that fell starts again, and a lie is worth
        // no more than asking for the whole GPU, which any of them may do.
        const Bytes before = is_new ? vgpu.denied_bytes : known->second;
        const Bytes refused = vgpu.denied_bytes - std::min(vgpu.denied_bytes, before);
        known->second = vgpu.denied_bytes;

        QuotaWindow user;
        user.name = name;
        // While a quota shrinks its target is what was decided last.
        const auto quota = vgpu.target_bytes != 0 ? std::min(vgpu.quota_bytes, vgpu.target_bytes)
                                                  : vgpu.quota_bytes;
        user.quota = static_cast<double>(quota);
        // No more is in use than was granted, whatever the ledger says: a use above all memory
        // would leave the other vGPUs with nothing above theirs.
        user.used = static_cast<double>(std::min(vgpu.used_bytes, vgpu.quota_bytes));
        // What is waited for is demand before it is refused: waiting processes have their answer in
        // the window after this.
        user.denied =
            static_cast<double>(std::min(refused + vgpu.wanted_bytes, vgpu.spec.device_bytes));
        // A share of 0 is that of a vGPU without limit. Where nothing measures how busy each of
        // them is, compute shares (S422) stay as they are, which a percentage of 0 says.
        user.speed = vgpu.share_percent != 0 ? vgpu.share_percent : 100;
        const Busy& busy = busy_of(vgpu, window.length_s);
        user.usage = busy.share;
        user.held_up = busy.held_up;
        user.percent = vgpu.busy_known ? vgpu.share_percent : 0;
        const auto& spec = vgpu.spec;
        user.promised = static_cast<double>(spec.guaranteed_bytes != 0 ? spec.guaranteed_bytes
                                                                       : spec.quota_bytes);
        user.promised_percent = spec.share_percent;
        user.priority = spec.priority;
        device_of(window, vgpu).users.push_back(std::move(user));
    }
    for (QuotaDevice& device : window.devices) compare(device.users);
}

// What the ledger counts rises about once per second, which windows and it do not agree on: hence
// the mean of some windows.
const QuotaSource::Busy& QuotaSource::busy_of(const VgpuView& vgpu, double length_s) {
    const auto [known, is_new] =
        busy_.try_emplace(vgpu.spec.name, Busy{vgpu.busy_ns, 0, vgpu.waited_ns, 0});
    Busy& busy = known->second;
    const auto rise = [&](std::uint64_t& before, std::uint64_t now) {
        const std::uint64_t more = now - std::min(now, before);
        before = now;
        // Its processes write it: more than all of the time it cannot have been.
        return std::min(static_cast<double>(more) * 1e-9 / length_s, 1.0);
    };
    if (is_new || !(length_s > 0)) return busy;
    busy.share += kBusyWeight * (rise(busy.ns, vgpu.busy_ns) - busy.share);
    // As it is: a tenant that wakes up in a small share is held up at once, and shall not wait for
    // a mean to notice.
    busy.held_up = rise(busy.waited_ns, vgpu.waited_ns);
    return busy;
}

fabricshm::Result<void> DaemonActuators::shift_quotas(const Quota& action) {
    return limits_.shift(shifts_of<VgpuShift>(action.changes));
}

fabricshm::Result<void> DaemonActuators::move_shard(const std::string& shard,
                                                    const std::string& node) {
    if (!host_.move_shard) return PageActuator::move_shard(shard, node);
    return host_.move_shard({shard, "device:" + node, 0});
}

fabricshm::Result<void> DaemonActuators::shift_pool_quotas(const PoolQuota& action) {
    if (!host_.shift_quotas) return PageActuator::shift_pool_quotas(action);
    return host_.shift_quotas(shifts_of<QuotaShift>(action.changes));
}

fabricshm::Result<void> DaemonActuators::shift_cache_quotas(const CacheQuota& action) {
    if (!host_.shift_quotas) return PageActuator::shift_cache_quotas(action);
    auto shifts = shifts_of<QuotaShift>(action.changes);
    for (QuotaShift& shift : shifts) shift.device = "cache:" + shift.device;
    return host_.shift_quotas(shifts);
}

fabricshm::Result<void> DaemonActuators::set_compute_share(const std::string& user,
                                                           unsigned percent) {
    return limits_.set_share(user, percent);
}

}  // namespace fabricd
