#include "libfabricshm/shm/flush_policy.hpp"

namespace fabricshm {

namespace {

using kernels::FlushMethod;

constexpr VisibilityProfile kProfiles[] = {
    {"coherent", false, FlushMethod::kClflush},     {"clwb", true, FlushMethod::kClwb},
    {"clflushopt", true, FlushMethod::kClflushopt}, {"clflush", true, FlushMethod::kClflush},
    {"nt", true, FlushMethod::kNonTemporal},
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
    if (!profile.flushes) return nullptr;
    return std::make_shared<FlushPolicy>(profile.method);
}

}  // namespace fabricshm
