// DevicePlugin: keeps the kubelet's list of devices as fabricd's pool is, until it is stopped.

#pragma once

#include <memory>

#include "fabricd/kubernetes/plugin_options.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// One thread looks at the daemon, at the kubelet's socket and at its own, every `poll`; what it
/// finds out goes into the log (standard error) when it has changed. A daemon or a kubelet that is
/// not there is waited for.
class DevicePlugin {
  public:
    /// The process's umask is 0177 and there is no other thread yet. kBusy: another plugin has the
    /// folder. kNotFound, kDenied, kExists: the folder or what is in it is not as it has to be.
    static fabricshm::Result<DevicePlugin> start(const PluginOptions& options);

    DevicePlugin(DevicePlugin&&) noexcept;
    /// Ends the streams and removes the socket; two seconds at most.
    ~DevicePlugin();

    /// Until `stop` is readable.
    void run(const fabricshm::Fd& stop);

  private:
    struct Impl;
    explicit DevicePlugin(std::unique_ptr<Impl> impl) noexcept;
    std::unique_ptr<Impl> impl_;
};

}  // namespace fabricd
