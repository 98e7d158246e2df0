// VgpuLimits: quotas that change together. docs/vgpu.md.

#include <algorithm>

#include "fabricd/vgpu/vgpu_entry.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;

/// A quota that changes together with others, and what it was.
struct VgpuLimits::Change {
    Vgpu* vgpu;
    Bytes after;
    fabricshm::Limits old;

    bool gives() const { return after < old.grant_bytes(); }
    bool takes() const { return after > old.grant_bytes(); }
};

Result<void> VgpuLimits::shift(const std::vector<VgpuShift>& shifts) {
    {
        const std::lock_guard lock(mutex_);
        FABRIC_TRY(const Changes changes, changes_of(shifts));
        if (const auto done = carry_out(changes); !done.ok()) {
            // No vGPU has taken yet, so there is room for it all.
            for (const Change& change : changes) {
                change.vgpu->limits = change.old;
                change.vgpu->publish();
            }
            return done;
        }
    }
    (void)step();  // what was waiting for room
    if (wake_) wake_();
    return {};
}

Result<VgpuLimits::Changes> VgpuLimits::changes_of(const std::vector<VgpuShift>& shifts) const {
    Changes changes;
    for (const VgpuShift& shift : shifts) {
        Vgpu* vgpu = find(shift.name);
        if (vgpu == nullptr) return Error{Errc::kNotFound, 0, "find the vGPU"};
        if (shift.after_bytes == 0) return Error{Errc::kInvalid, 0, "quota of a vGPU"};
        if (vgpu->limits.grant_bytes() != shift.before_bytes) {
            return Error{Errc::kBusy, 0, "the quota was set from outside meanwhile"};
        }
        changes.push_back({vgpu, shift.after_bytes, vgpu->limits});
    }
    return changes;
}

Result<void> VgpuLimits::carry_out(const Changes& changes) {
    const bool any_takes = std::any_of(changes.begin(), changes.end(),
                                       [](const Change& change) { return change.takes(); });
    for (const Change& change : changes) {
        if (change.gives()) FABRIC_TRY_VOID(take(change, any_takes));
    }
    // All of them before the first one gets anything: what was granted can be in use at once.
    for (const Change& change : changes) {
        if (change.takes() && !has_room_for(change, changes)) {
            return Error{Errc::kNoMemory, 0, "fit the quotas into the GPU"};
        }
    }
    for (const Change& change : changes) {
        if (!change.takes()) continue;
        fabricshm::Limits& limits = change.vgpu->limits;
        limits.target_bytes = change.after;
        limits.quota_bytes = std::max(limits.quota_bytes, change.after);
        change.vgpu->publish();
    }
    return {};
}

Result<void> VgpuLimits::take(const Change& change, bool in_full) {
    constexpr Error kUsesMore{Errc::kBusy, 0, "a vGPU uses more by now than it was to keep"};
    Vgpu& vgpu = *change.vgpu;
    if (in_full) {
        // Before it is announced: processes would give back what they keep for later, for nothing.
        const auto used = vgpu.read([&] { return vgpu.ledger->settled_total(); });
        if (!used) return Error{Errc::kCorrupt, 0, "read what a vGPU uses"};
        if (!used->ok()) return Error{Errc::kTimeout, 0, "read what a vGPU uses"};
        if (**used > change.after) return kUsesMore;
    }
    vgpu.limits.target_bytes = change.after;
    vgpu.publish();
    shrink(vgpu);
    // An allocation may have come between the check and the announcement.
    if (in_full && vgpu.is_shrinking()) return kUsesMore;
    return {};
}

bool VgpuLimits::has_room_for(const Change& change, const Changes& changes) const {
    Bytes room = change.vgpu->usable();
    for (const auto& vgpu : vgpus_) {
        if (vgpu->spec.gpu != change.vgpu->spec.gpu) continue;
        Bytes quota = vgpu->limits.quota_bytes;
        for (const Change& other : changes) {
            if (other.vgpu == vgpu.get()) quota = std::max(quota, other.after);
        }
        if (quota > room) return false;
        room -= quota;
    }
    return true;
}

}  // namespace fabricd
