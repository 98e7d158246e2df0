// The policies of pools that several hosts share: publish and acquire by cache maintenance, or by
// hardware that keeps the hosts' caches coherent.

#pragma once

#include <memory>
#include <string>

#include "kernels/flush.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/shm/visibility.hpp"

namespace fabricshm {

/// A profile says how bytes are made visible: "coherent" (the caches of one host do it),
/// "coherent-hosts" (hardware does it among several hosts), or one of the methods of cache
/// maintenance. Which one is right for a device is shown by fabric-litmus.
struct VisibilityProfile {
    const char* name;
    bool one_kernel;
    bool flushes;
    kernels::FlushMethod method;  // if it flushes
};

/// "coherent", "coherent-hosts", "clwb", "clflushopt", "clflush" or "nt"; kInvalid for other names,
/// kUnsupported when this processor lacks the instructions.
Result<VisibilityProfile> find_profile(const std::string& name);

/// Costs a flush of every line of a range, and a fence.
class FlushPolicy final : public VisibilityPolicy {
  public:
    explicit FlushPolicy(kernels::FlushMethod method) noexcept : method_(method) {}

    void publish(const Access& access) noexcept override {
        kernels::write_back(method_, access.data, access.bytes);
    }
    void acquire(const Access& access) noexcept override {
        kernels::drop(method_, access.data, access.bytes);
    }
    bool coherent() const noexcept override { return false; }

  private:
    const kernels::FlushMethod method_;
};

/// Nothing has to be done for bytes to be seen, but no futex wakes a process of another host.
class CoherentHosts final : public VisibilityPolicy {
  public:
    void publish(const Access&) noexcept override {}
    void acquire(const Access&) noexcept override {}
    bool coherent() const noexcept override { return true; }
    bool one_kernel() const noexcept override { return false; }
    bool active() const noexcept override { return false; }
};

/// The policy of a profile; nullptr for "coherent".
std::shared_ptr<VisibilityPolicy> make_policy(const VisibilityProfile& profile);

}  // namespace fabricshm
