// NvmlSource: the NVIDIA GPUs of this host, by the driver's own library, if it is there.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fabricd/telemetry/device_source.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/machine/host_files.hpp"

namespace fabricd {

/// One device per GPU. A call of the driver may take milliseconds, or hang with a broken GPU: not
/// for a thread that others wait for. Not yet run on hardware: docs/telemetry.md.
class NvmlSource final : public DeviceSource {
  public:
    /// kNotFound: no such library, which is usual. kUnsupported: it lacks a function that is
    /// needed. kSystem: the driver does not answer; `detail` is NVML's code.
    static fabricshm::Result<std::unique_ptr<NvmlSource>> open(
        const std::string& library = "libnvidia-ml.so.1", fabricshm::HostFiles files = {});

    ~NvmlSource() override;
    NvmlSource(const NvmlSource&) = delete;
    NvmlSource& operator=(const NvmlSource&) = delete;

    void sample(std::int64_t now_ns, std::vector<DeviceSample>& devices) override;

  private:
    struct Library;
    struct Gpu;

    explicit NvmlSource(std::unique_ptr<Library> library);
    fabricshm::Result<void> find_devices(const fabricshm::HostFiles& files);
    void want_errors();
    void take_errors();
    DeviceFaults faults_of(const Gpu& gpu) const;

    std::unique_ptr<Library> library_;
    std::vector<Gpu> gpus_;
};

}  // namespace fabricd
