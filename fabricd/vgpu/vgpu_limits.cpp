#include "fabricd/vgpu/vgpu_limits.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "fabricd/vgpu/vgpu_files.hpp"
#include "libfabricshm/base/log.hpp"

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
constexpr auto kPatience = std::chrono::milliseconds(20);

}  // namespace

struct VgpuLimits::Vgpu {
    VgpuSpec spec;
    VgpuFiles files;
    std::unique_ptr<UsageLedger> ledger;
    Limits limits;  // what the page says; the page itself is never read back while running

    void publish() { write_limits(files.page(), limits); }
};

VgpuLimits::~VgpuLimits() = default;

Result<std::unique_ptr<VgpuLimits>> VgpuLimits::open(const std::string& folder,
                                                     const std::vector<VgpuSpec>& specs) {
    FABRIC_TRY(const ProcessIdentity self, fabricshm::own_identity());
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
        return fabricshm::error_from_errno(errno, "make the folder of the vGPUs");
    }
    std::unique_ptr<VgpuLimits> all(new VgpuLimits);
    for (const VgpuSpec& spec : specs) {
        auto vgpu = std::make_unique<Vgpu>();
        vgpu->spec = spec;
        FABRIC_TRY(vgpu->files, VgpuFiles::open(folder + "/" + spec.name, self.pid_namespace));
        vgpu->ledger = std::make_unique<UsageLedger>(vgpu->files.ledger(), self, kPatience);
        vgpu->limits.quota_bytes = vgpu->limits.target_bytes = spec.quota_bytes;
        vgpu->limits.context_bytes = spec.context_bytes;
        vgpu->limits.share_percent = spec.share_percent;
        // A quota that was changed live outlives the daemon, until the configuration changes.
        if (const auto old = read_limits(vgpu->files.page());
            old && old->configured_bytes == spec.quota_bytes &&
            old->target_bytes <= old->quota_bytes) {
            vgpu->limits.quota_bytes = old->quota_bytes;
            vgpu->limits.target_bytes = old->target_bytes;
            vgpu->limits.share_percent = old->share_percent;
        }
        vgpu->limits.configured_bytes = spec.quota_bytes;
        all->vgpus_.push_back(std::move(vgpu));
    }
    FABRIC_TRY_VOID(all->check_sums());
    for (auto& vgpu : all->vgpus_) vgpu->publish();
    return all;
}

Result<void> VgpuLimits::check_sums() const {
    for (const auto& vgpu : vgpus_) {
        const VgpuSpec& spec = vgpu->spec;
        const Bytes usable = spec.device_bytes - std::min(spec.device_bytes, spec.reserve_bytes);
        const Bytes others = taken_by_others(*vgpu);
        if (others > usable || vgpu->limits.quota_bytes > usable - others) {
            return Error{Errc::kInvalid, 0, "add up vgpu_memory of one gpu"};
        }
    }
    return {};
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
        if (vgpu == nullptr) return Error{Errc::kNotFound, 0, "find the vGPU"};
        if (bytes == 0) return Error{Errc::kInvalid, 0, "quota of a vGPU"};
        const VgpuSpec& spec = vgpu->spec;
        const Bytes usable = spec.device_bytes - std::min(spec.device_bytes, spec.reserve_bytes);
        const Bytes others = taken_by_others(*vgpu);
        if (others > usable || bytes > usable - others) {
            return Error{Errc::kNoMemory, 0, "fit the quotas into the GPU"};
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
    if (vgpu == nullptr) return Error{Errc::kNotFound, 0, "find the vGPU"};
    if (percent < 1 || percent > 100) return Error{Errc::kInvalid, 0, "share of a vGPU"};
    vgpu->limits.share_percent = percent;
    vgpu->publish();
    return {};
}

Result<void> VgpuLimits::set(const VgpuOrder& order) {
    // The share first looked at, then the quota, whose refusal leaves everything as it was.
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
        Limits& limits = vgpu->limits;
        if (limits.target_bytes >= limits.quota_bytes) continue;
        is_shrinking = true;
        // With the ledger's lock: whoever takes it after us reads the announced target first, so
        // the use can only fall from here on.
        const auto used = vgpu->ledger->settled_total();
        if (!used.ok()) continue;
        const Bytes next = std::max(limits.target_bytes, std::min(limits.quota_bytes, *used));
        if (next == limits.quota_bytes) continue;
        limits.quota_bytes = next;
        vgpu->publish();
        if (next != limits.target_bytes) continue;
        fabricshm::log(LogLevel::kInfo, "vGPU %s has shrunk to %s", vgpu->spec.name.c_str(),
                       fabricshm::format_bytes(next).c_str());
    }
    return is_shrinking;
}

void VgpuLimits::reclaim_dead() {
    // Outside our lock: a ledger whose lock is kept would hold up the answers to everybody.
    for (const auto& vgpu : vgpus_) {
        if (const int count = vgpu->ledger->reclaim_dead(); count > 0) {
            fabricshm::log(LogLevel::kInfo, "vGPU %s: freed the memory of %d dead processes",
                           vgpu->spec.name.c_str(), count);
        }
    }
}

bool VgpuLimits::tenant_died(const std::string& name, const ProcessIdentity& process) {
    Vgpu* vgpu = find(name);
    return vgpu == nullptr || vgpu->ledger->reclaim(process).ok();
}

Result<VgpuLimits::Files> VgpuLimits::files_of(const std::string& name) const {
    const Vgpu* vgpu = find(name);
    if (vgpu == nullptr) return Error{Errc::kNotFound, 0, "find the vGPU"};
    Files files;
    files.gpu = vgpu->spec.gpu;
    FABRIC_TRY(files.limits, vgpu->files.limits_for_tenant());
    FABRIC_TRY(files.ledger, vgpu->files.ledger_for_tenant());
    return files;
}

std::vector<std::pair<std::string, ProcessIdentity>> VgpuLimits::processes() const {
    std::vector<std::pair<std::string, ProcessIdentity>> found;
    for (const auto& vgpu : vgpus_) {
        for (const auto& use : vgpu->ledger->uses()) {
            found.emplace_back(vgpu->spec.name, use.process);
        }
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
        view.used_bytes = vgpu->ledger->total();
        const auto& file = vgpu->ledger->file();
        view.peak_bytes = file.peak.load(std::memory_order_relaxed);
        view.denied = file.denied.load(std::memory_order_relaxed);
        for (const auto& use : vgpu->ledger->uses()) {
            view.tenants.push_back({use.process.pid, use.charged, use.denied});
        }
        views.push_back(std::move(view));
    }
    return views;
}

}  // namespace fabricd
