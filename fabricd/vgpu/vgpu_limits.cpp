#include "fabricd/vgpu/vgpu_limits.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "fabricd/vgpu/vgpu_entry.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Limits;
using fabricshm::LogLevel;
using fabricshm::ProcessIdentity;
using fabricshm::UsageLedger;

namespace {

// The control thread and an admin call wait for it at most this long; a tenant that is stopped with
// the lock in its hands must not stop the daemon.
constexpr auto kTimeout = std::chrono::milliseconds(20);

constexpr auto kRelaxed = std::memory_order_relaxed;  // of figures that each stand for themselves

Error no_such_vgpu(const std::string& name) {
    return fabricshm::explain(
        {Errc::kNotFound, 0, "find the vGPU"},
        "there is no vGPU '%s' in the device file (devices.file; fabricctl vgpus lists "
        "them)",
        name.c_str());
}

// `view` with what the ledger says.
VgpuView as_told(const UsageLedger& ledger, VgpuView view) {
    const auto& file = ledger.file();
    view.used_bytes = ledger.total();
    view.peak_bytes = file.peak.load(kRelaxed);
    view.denied = file.denied.load(kRelaxed);
    view.denied_bytes = file.denied_bytes.load(kRelaxed);
    view.busy_ns = file.busy_ns.load(kRelaxed);
    for (const auto& slot : file.slots) {
        if (slot.pid.load(kRelaxed) != 0) view.waited_ns += slot.waited_ns.load(kRelaxed);
    }
    view.busy_known = file.bucket.measured_ns.load(kRelaxed) != 0;
    for (const auto& use : ledger.uses()) {
        // Each process may say anything: no more than would count as refused.
        view.wanted_bytes += std::min<Bytes>(use.wanted, fabricshm::kMaxDenied);
        view.tenants.push_back(
            {use.host_pid, use.charged, use.denied, use.denied_bytes, use.busy_ns});
    }
    return view;
}

}  // namespace

// What is in force goes on, whatever the configuration says by now: processes were granted it, and
// step() moves it to where it shall be without taking what is in use.
void VgpuLimits::Vgpu::begin() {
    limits.context_bytes = spec.context_bytes;
    limits.target_bytes = spec.quota_bytes;
    limits.share_percent = spec.share_percent;
    limits.wait_ms = spec.wait_ms;
    limits.most_bytes = usable();
    // A file of ours, but of a daemon that may have been another version: only what makes sense.
    if (const auto old = read_limits(files.page()); old) {
        limits.quota_bytes = std::min(old->quota_bytes, spec.device_bytes);
        // What was changed live outlives the daemon, until the configuration changes.
        const bool is_quota = old->configured_bytes == spec.quota_bytes && old->target_bytes > 0 &&
                              old->target_bytes <= usable();
        if (is_quota) limits.target_bytes = old->target_bytes;
        const bool is_share = old->configured_percent == spec.share_percent &&
                              old->share_percent >= 1 && old->share_percent <= 100;
        if (is_share) limits.share_percent = old->share_percent;
    }
    limits.configured_bytes = spec.quota_bytes;
    limits.configured_percent = spec.share_percent;
}

VgpuLimits::~VgpuLimits() = default;

std::unique_ptr<VgpuLimits> VgpuLimits::none() {
    return std::unique_ptr<VgpuLimits>(new VgpuLimits);
}

Result<std::unique_ptr<VgpuLimits>> VgpuLimits::open(const std::string& folder,
                                                     const std::vector<VgpuSpec>& specs) {
    FABRIC_TRY(const ProcessIdentity self, fabricshm::own_identity());
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
        return fabricshm::error_of_disk(errno, "make the folder of the vGPUs");
    }
    std::unique_ptr<VgpuLimits> all(new VgpuLimits);
    for (const VgpuSpec& spec : specs) {
        auto vgpu = std::make_unique<Vgpu>();
        vgpu->spec = spec;
        FABRIC_TRY(vgpu->files, VgpuFiles::open(folder + "/" + spec.name, self.pid_namespace));
        vgpu->ledger = std::make_unique<UsageLedger>(vgpu->files.ledger(), self, kTimeout);
        vgpu->begin();
        all->vgpus_.push_back(std::move(vgpu));
    }
    for (const auto& vgpu : all->vgpus_) FABRIC_TRY_VOID(all->check_sums(*vgpu));
    all->retire_others(folder);
    for (auto& vgpu : all->vgpus_) {
        // Announced before the use is read, so that it can only fall from there on.
        vgpu->publish();
        // The daemon before may have died with the lock, where no other process could notice.
        vgpu->read([&] { return vgpu->ledger->settled_total().ok(); });
    }
    (void)all->step();
    return all;
}

// The configuration has to add up, or the start fails. What was changed live need not: where
// it leaves no room for a new vGPU, all of that GPU go back to what the configuration says.
Result<void> VgpuLimits::check_sums(const Vgpu& vgpu) {
    Bytes configured = 0;
    Bytes wanted = 0;
    for (const auto& other : vgpus_) {
        if (other->spec.gpu != vgpu.spec.gpu) continue;
        configured += other->spec.quota_bytes;
        wanted += other->limits.target_bytes;
    }
    if (configured > vgpu.usable()) {
        return Error{Errc::kInvalid, 0, "add up vgpu_memory of one gpu"};
    }
    if (wanted <= vgpu.usable()) return {};
    fabricshm::log(LogLevel::kWarning, "vGPUs of GPU %s: back to the configured quotas",
                   vgpu.spec.gpu.c_str());
    for (const auto& other : vgpus_) {
        if (other->spec.gpu == vgpu.spec.gpu) other->limits.target_bytes = other->spec.quota_bytes;
    }
    return {};
}

// Processes of a vGPU that the configuration has no more would go on under its last quota, which is
// in no sum.
void VgpuLimits::retire_others(const std::string& folder) {
    // A folder that can't be read was made or opened just before: there is no process to retire
    // then.
    std::error_code failed;
    const std::filesystem::directory_iterator end;
    for (std::filesystem::directory_iterator at(folder, failed); !failed && at != end;
         at.increment(failed)) {
        const std::string name = at->path().stem().string();
        if (at->path().extension() != ".limits" || find(name) != nullptr) continue;
        if (!VgpuFiles::retire(folder + "/" + name)) continue;
        fabricshm::log(LogLevel::kWarning,
                       "vGPU %s is no longer configured: nothing more is granted", name.c_str());
    }
}

VgpuLimits::Vgpu* VgpuLimits::find(const std::string& name) const {
    for (const auto& vgpu : vgpus_) {
        if (vgpu->spec.name == name) return vgpu.get();
    }
    return nullptr;
}

Bytes VgpuLimits::taken_by_others(const Vgpu& vgpu) const {
    Bytes sum = 0;
    for (const auto& other : vgpus_) {
        if (other.get() == &vgpu || other->spec.gpu != vgpu.spec.gpu) continue;
        sum += other->limits.quota_bytes;
    }
    return sum;
}

Result<void> VgpuLimits::resize(const std::string& name, Bytes bytes) {
    {
        const std::lock_guard lock(mutex_);
        Vgpu* vgpu = find(name);
        if (vgpu == nullptr) return no_such_vgpu(name);
        if (bytes == 0) return Error{Errc::kInvalid, 0, "quota of a vGPU"};
        const Bytes usable = vgpu->usable();
        const Bytes others = taken_by_others(*vgpu);
        if (others > usable || bytes > usable - others) {
            return fabricshm::explain(
                {Errc::kNoMemory, 0, "fit the quotas into the GPU"},
                "wanted %s, the GPU of vGPU '%s' has %s for vGPUs and the others have "
                "%s of it",
                fabricshm::format_bytes(bytes).c_str(), name.c_str(),
                fabricshm::format_bytes(usable).c_str(), fabricshm::format_bytes(others).c_str());
        }
        vgpu->limits.target_bytes = bytes;
        vgpu->limits.quota_bytes = std::max(vgpu->limits.quota_bytes, bytes);
        vgpu->publish();
    }
    (void)step();  // nothing to wait for when the use is below already
    if (wake_) wake_();
    return {};
}

Result<void> VgpuLimits::set_share(const std::string& name, std::uint32_t percent) {
    const std::lock_guard lock(mutex_);
    Vgpu* vgpu = find(name);
    if (vgpu == nullptr) return no_such_vgpu(name);
    if (percent < 1 || percent > 100) return Error{Errc::kInvalid, 0, "share of a vGPU"};
    vgpu->limits.share_percent = percent;
    vgpu->publish();
    return {};
}

Result<void> VgpuLimits::set(const VgpuOrder& order) {
    // The share is checked first, then the quota, whose refusal leaves everything as it was.
    if (order.share_percent > 100) return Error{Errc::kInvalid, 0, "share of a vGPU"};
    if (order.quota_bytes == 0 && order.share_percent == 0) {
        return Error{Errc::kInvalid, 0, "quota of a vGPU"};
    }
    if (order.quota_bytes != 0) FABRIC_TRY_VOID(resize(order.name, order.quota_bytes));
    if (order.share_percent != 0) FABRIC_TRY_VOID(set_share(order.name, order.share_percent));
    return {};
}

bool VgpuLimits::step() {
    const std::lock_guard lock(mutex_);
    bool is_shrinking = false;
    for (auto& vgpu : vgpus_) {
        if (!vgpu->is_shrinking()) continue;
        is_shrinking = true;
        shrink(*vgpu);
    }
    // After all that could give room.
    for (auto& vgpu : vgpus_) grow(*vgpu);
    return is_shrinking;
}

void VgpuLimits::shrink(Vgpu& vgpu) {
    Limits& limits = vgpu.limits;
    // With the ledger's lock: a process that takes it after us reads the announced target first, so
    // the use can only fall from here on.
    const auto used = vgpu.read([&] { return vgpu.ledger->settled_total(); });
    if (!used || !used->ok()) return;
    const Bytes next = std::max(limits.target_bytes, std::min(limits.quota_bytes, **used));
    if (next == limits.quota_bytes) return;
    limits.quota_bytes = next;
    vgpu.publish();
    if (next != limits.target_bytes) return;
    fabricshm::log(LogLevel::kInfo, "vGPU %s has shrunk to %s", vgpu.spec.name.c_str(),
                   fabricshm::format_bytes(next).c_str());
}

// Only after a start: resize() refuses what does not fit.
void VgpuLimits::grow(Vgpu& vgpu) {
    Limits& limits = vgpu.limits;
    if (limits.target_bytes <= limits.quota_bytes) return;
    const Bytes others = taken_by_others(vgpu);
    const Bytes room = vgpu.usable() - std::min(vgpu.usable(), others);
    const Bytes next = std::min(limits.target_bytes, room);
    if (next <= limits.quota_bytes) return;
    limits.quota_bytes = next;
    vgpu.publish();
}

void VgpuLimits::reclaim_dead() {
    // Outside our lock: a ledger whose lock is kept would hold up all answers.
    for (const auto& vgpu : vgpus_) {
        const int count = vgpu->read([&] { return vgpu->ledger->reclaim_dead(); }).value_or(0);
        if (count > 0) {
            fabricshm::log(LogLevel::kInfo, "vGPU %s: freed the memory of %d dead processes",
                           vgpu->spec.name.c_str(), count);
        }
    }
}

bool VgpuLimits::tenant_died(const std::string& name, const ProcessIdentity& process) {
    Vgpu* vgpu = find(name);
    if (vgpu == nullptr) return true;
    // A ledger that is cut has nothing to reclaim.
    const auto done = vgpu->read([&] { return vgpu->ledger->reclaim(process).ok(); });
    return done.value_or(true);
}

Result<void> VgpuLimits::check_user(const std::string& name, std::uint32_t uid) const {
    const Vgpu* vgpu = find(name);
    if (vgpu == nullptr) return no_such_vgpu(name);
    const auto& users = vgpu->spec.allow_uids;
    // Root and the daemon's own user can open the files themselves: refusing them would protect
    // nothing.
    const bool is_allowed = users.empty() || uid == 0 || uid == ::geteuid() ||
                            std::find(users.begin(), users.end(), uid) != users.end();
    if (!is_allowed) return Error{Errc::kDenied, 0, "ask for a vGPU of other users"};
    return {};
}

Result<VgpuLimits::Files> VgpuLimits::files_of(const std::string& name) const {
    const Vgpu* vgpu = find(name);
    if (vgpu == nullptr) return no_such_vgpu(name);
    if (vgpu->files.is_cut()) return Error{Errc::kCorrupt, 0, "give out a vGPU's ledger"};
    Files files;
    files.gpu = vgpu->spec.gpu;
    FABRIC_TRY(files.limits, vgpu->files.limits_for_tenant());
    FABRIC_TRY(files.ledger, vgpu->files.ledger_for_tenant());
    return files;
}

void VgpuLimits::trim_ledgers() {
    for (const auto& vgpu : vgpus_) {
        if (!vgpu->files.trim() || vgpu->said_long.exchange(true, kRelaxed)) continue;
        fabricshm::log(LogLevel::kError,
                       "vGPU %s: a process makes its ledger's file longer; what it adds is taken "
                       "away, now and from here on",
                       vgpu->spec.name.c_str());
    }
}

bool VgpuLimits::report_ledgers_to(int inotify) const {
    return std::all_of(vgpus_.begin(), vgpus_.end(),
                       [&](const auto& vgpu) { return vgpu->files.report_to(inotify); });
}

std::vector<std::pair<std::string, fabricshm::LedgerUse>> VgpuLimits::processes() const {
    std::vector<std::pair<std::string, fabricshm::LedgerUse>> found;
    for (const auto& vgpu : vgpus_) {
        const auto uses = vgpu->read([&] { return vgpu->ledger->uses(); });
        if (!uses) continue;
        for (const auto& use : *uses) found.emplace_back(vgpu->spec.name, use);
    }
    return found;
}

std::vector<VgpuView> VgpuLimits::list() const {
    const std::lock_guard lock(mutex_);
    std::vector<VgpuView> views;
    for (const auto& vgpu : vgpus_) {
        VgpuView view;
        view.spec = vgpu->spec;
        view.quota_bytes = vgpu->limits.quota_bytes;
        view.target_bytes = vgpu->limits.target_bytes;
        view.share_percent = static_cast<std::uint32_t>(vgpu->limits.share_percent);
        const auto told = vgpu->read([&] { return as_told(*vgpu->ledger, view); });
        if (told) {
            view = *told;
        } else {
            view.used_bytes = view.quota_bytes;  // no lower figure is known
        }
        views.push_back(std::move(view));
    }
    return views;
}

}  // namespace fabricd
