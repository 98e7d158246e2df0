#include "libfabricshm/shm/flush_policy.hpp"

namespace fabricshm {

namespace {

using kernels::FlushMethod;

constexpr VisibilityProfile kProfiles[] = {
    {"coherent", true, false, FlushMethod::kClflush},
    {"coherent-hosts", false, false, FlushMethod::kClflush},
    {"clwb", false, true, FlushMethod::kClwb},
    {"clflushopt", false, true, FlushMethod::kClflushopt},
    {"clflush", false, true, FlushMethod::kClflush},
    {"nt", false, true, FlushMethod::kNonTemporal},
};

}  // namespace

Result<VisibilityProfile> find_profile(const std::string& name) {
    for (const VisibilityProfile& profile : kProfiles) {
        if (name != profile.name) continue;
        if (profile.flushes && !kernels::has_flush(profile.method)) {
            return Error{Errc::kUnsupported, 0, "visibility profile: not on this processor"};
        }
        return profile;
    }
    return Error{Errc::kInvalid, 0, "visibility profile: no such name"};
}

std::shared_ptr<VisibilityPolicy> make_policy(const VisibilityProfile& profile) {
    if (profile.one_kernel) return nullptr;
    if (!profile.flushes) return std::make_shared<CoherentHosts>();
    return std::make_shared<FlushPolicy>(profile.method);
}

}  // namespace fabricshm
