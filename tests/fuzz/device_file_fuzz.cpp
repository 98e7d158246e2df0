// The device file. What is accepted has only devices that quotas and placement can count with.

#include "fabricd/config/device_file.hpp"

#include <cmath>
#include <set>

#include "libfabricshm/proto/messages.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace fabricd;

namespace {

void require_sound(const DeviceSpec& device) {
    FUZZ_REQUIRE(!device.name.empty() && device.name.size() < fabricshm::proto::kNameBytes);
    const auto& kinds = device_kinds();
    FUZZ_REQUIRE(std::find(kinds.begin(), kinds.end(), device.kind) != kinds.end());
    FUZZ_REQUIRE(std::isfinite(device.gflops) && device.gflops > 0);
    FUZZ_REQUIRE(std::isfinite(device.link_gbytes_per_s) && device.link_gbytes_per_s > 0);
    FUZZ_REQUIRE(std::isfinite(device.priority) && device.priority > 0);
    FUZZ_REQUIRE(device.link_latency_ns >= 0);
    FUZZ_REQUIRE(device.share_percent >= 1 && device.share_percent <= 100);
    FUZZ_REQUIRE(device.quota_bytes > 0 && device.quota_bytes <= device.memory_bytes);
    FUZZ_REQUIRE(device.guaranteed_bytes > 0 && device.guaranteed_bytes <= device.quota_bytes);
    for (const double share : {device.efficiency.convolution, device.efficiency.fully_connected,
                               device.efficiency.activation, device.efficiency.other}) {
        FUZZ_REQUIRE(share > 0 && share <= 1);
    }
}

void run(fuzz::Data input) {
    std::vector<DeviceSpec> devices;
    const auto bad = parse_device_file(fuzz::Input::text_of(input), "d.toml", devices);
    FUZZ_REQUIRE(devices.empty() == bad.has_value());
    if (bad) FUZZ_REQUIRE(bad->starts_with("d.toml"));
    std::set<std::string> names;
    for (const DeviceSpec& device : devices) {
        require_sound(device);
        FUZZ_REQUIRE(names.insert(device.name).second);
    }
}

std::vector<fuzz::Buffer> seeds() {
    const std::string gpu =
        "[[device]]\nname = \"gpu0\"\nkind = \"gpu\"\ngflops = 40\nmemory = \"2GiB\"\n"
        "link_gbytes_per_s = 12.5\n";
    return {fuzz::buffer_of(gpu),
            fuzz::buffer_of(gpu + "gpu = \"GPU-1\"\nvgpu_memory = \"512MiB\"\n"
                                  "vgpu_guaranteed = \"128MiB\"\npriority = 3\n"
                                  "vgpu_share_percent = 25\nvgpu_reserve = \"1MiB\"\n"
                                  "vgpu_context = \"1MiB\"\nvgpu_allow_uids = [1000, 1001]\n"),
            fuzz::buffer_of(gpu + "link_latency = \"2us\"\n"
                                  "efficiency = { convolution = 0.5, fully_connected = 1, "
                                  "activation = 0.1, other = 0.25 }\n"
                                  "[[device]]\nname = \"cpu0\"\nkind = \"cpu\"\ngflops = 1.5\n"
                                  "memory = \"1MiB\"\nlink_gbytes_per_s = 1\n")};
}

const fuzz::Registered kTarget({"device_file", run, seeds});

}  // namespace
