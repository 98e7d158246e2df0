#include "fabricd/config/device_file.hpp"

#include <doctest/doctest.h>

using namespace fabricd;

namespace {

// One line each, so that the tests can say where a mistake is.
constexpr const char* kGpu =
    "[[device]]\nname = \"gpu0\"\nkind = \"gpu\"\ngflops = 40\nmemory = \"2GiB\"\n"
    "link_gbytes_per_s = 12.5\n";

std::string error_message(const std::string& text) {
    std::vector<DeviceSpec> devices;
    const auto bad = parse_device_file(text, "d.toml", devices);
    CHECK(devices.empty() == bad.has_value());
    return bad.value_or("");
}

}  // namespace

TEST_SUITE("fabricd.device_file") {
    TEST_CASE("a device has its values, and defaults for the slice") {
        std::vector<DeviceSpec> devices;
        REQUIRE_FALSE(parse_device_file(kGpu, "d.toml", devices));
        REQUIRE(devices.size() == 1);
        const DeviceSpec& gpu = devices[0];
        CHECK(gpu.name == "gpu0");
        CHECK(gpu.kind == "gpu");
        CHECK(gpu.gflops == 40.0);
        CHECK(gpu.memory_bytes == 2 * fabricshm::kGiB);
        CHECK(gpu.quota_bytes == gpu.memory_bytes);
        CHECK(gpu.share_percent == 100);
        CHECK(gpu.link_gbytes_per_s == 12.5);
        CHECK(gpu.link_latency_ns == 0);
        CHECK(gpu.efficiency.activation == 1.0);
        CHECK(gpu.guaranteed_bytes == gpu.quota_bytes);
        CHECK(gpu.priority == 1.0);
        CHECK(gpu.numa_node == -1);
    }

    TEST_CASE("the slice, the link's latency and the efficiency can be said") {
        std::vector<DeviceSpec> devices;
        const std::string text = std::string(kGpu) +
                                 "vgpu_memory = \"512MiB\"\nvgpu_share_percent = 25\n"
                                 "vgpu_guaranteed = \"128MiB\"\npriority = 3\n"
                                 "link_latency = \"2us\"\nnuma_node = 3\n"
                                 "efficiency = { convolution = 0.5, other = 0.25 }\n";
        REQUIRE_FALSE(parse_device_file(text, "d.toml", devices));
        CHECK(devices[0].quota_bytes == 512 * fabricshm::kMiB);
        CHECK(devices[0].share_percent == 25);
        CHECK(devices[0].guaranteed_bytes == 128 * fabricshm::kMiB);
        CHECK(devices[0].priority == 3);
        CHECK(devices[0].link_latency_ns == 2000);
        CHECK(devices[0].numa_node == 3);
        CHECK(devices[0].efficiency.convolution == 0.5);
        CHECK(devices[0].efficiency.fully_connected == 1.0);
        CHECK(devices[0].efficiency.other == 0.25);
    }

    TEST_CASE("a vGPU may have users of its own") {
        std::vector<DeviceSpec> devices;
        const std::string text =
            std::string(kGpu) + "gpu = \"0\"\nvgpu_allow_uids = [1000, 4294967294]\n";
        REQUIRE_FALSE(parse_device_file(text, "d.toml", devices));
        CHECK(devices[0].allow_uids == std::vector<std::uint32_t>{1000, 4294967294});
        REQUIRE_FALSE(parse_device_file(kGpu, "d.toml", devices));
        CHECK(devices[0].allow_uids.empty());
    }

    TEST_CASE("an allocation on a GPU may wait for room, for a time with a unit") {
        std::vector<DeviceSpec> devices;
        const std::string gpu = std::string(kGpu) + "gpu = \"0\"\n";
        REQUIRE_FALSE(parse_device_file(gpu, "d.toml", devices));
        CHECK(devices[0].wait_ms == -1);
        REQUIRE_FALSE(parse_device_file(gpu + "vgpu_wait = \"1.5s\"\n", "d.toml", devices));
        CHECK(devices[0].wait_ms == 1500);
        REQUIRE_FALSE(parse_device_file(gpu + "vgpu_wait = \"0s\"\n", "d.toml", devices));
        CHECK(devices[0].wait_ms == 0);
        CHECK(error_message(gpu + "vgpu_wait = \"11min\"\n") ==
              "d.toml:8: vgpu_wait takes a time as \"500ms\" or \"2s\", \"0s\" for none, up to 10 "
              "min");
        CHECK(error_message(kGpu + std::string("vgpu_wait = \"1s\"\n")) ==
              "d.toml:1: vgpu_wait of gpu0 needs gpu");
    }

    TEST_CASE("a GPU is named as nvidia-smi names it, also a slice in MIG mode") {
        for (const char* name : {"0", "GPU-00112233-4455-6677-8899-aabbccddeeff",
                                 "MIG-00112233-4455-6677-8899-aabbccddeeff",
                                 "MIG-GPU-00112233-4455-6677-8899-aabbccddeeff/1/0"}) {
            std::vector<DeviceSpec> devices;
            const std::string text = std::string(kGpu) + "gpu = '" + name + "'\n";
            REQUIRE_FALSE(parse_device_file(text, "d.toml", devices));
            CHECK(devices[0].gpu == name);
        }
    }

    TEST_CASE("a mistake is named with its line") {
        const std::string gpu = kGpu;
        CHECK(error_message(gpu + "color = 1\n") == "d.toml:7: unknown key \"color\"");
        CHECK(error_message(gpu + "vgpu_share_percent = 0\n") ==
              "d.toml:7: vgpu_share_percent takes a whole number from 1 to 100");
        CHECK(error_message(gpu + gpu) == "d.toml:7: two devices are called gpu0");
        CHECK(error_message(gpu + "vgpu_allow_uids = [1]\n") ==
              "d.toml:1: vgpu_allow_uids of gpu0 needs gpu");
        for (const char* uids : {"[]", "1000", "[-1]", "[4294967295]", "['root']", "[1.5]"}) {
            CAPTURE(uids);
            CHECK(error_message(gpu + "vgpu_allow_uids = " + uids + "\n") ==
                  "d.toml:7: vgpu_allow_uids takes a list of 1 to 256 user ids, as [1000, 1001]");
        }
        // A word that is no number would be taken for 0 later.
        for (const char* name : {"first", "mig-1", "-1", "0x1", "12345"}) {
            CAPTURE(name);
            CHECK(error_message(gpu + "gpu = '" + name + "'\n") ==
                  "d.toml:7: gpu takes a GPU's UUID (\"GPU-...\", \"MIG-...\") or its number "
                  "(\"0\")");
        }
        CHECK(error_message(gpu + "vgpu_memory = \"3GiB\"\n") ==
              "d.toml:1: vgpu_memory of gpu0 is larger than its memory");
        CHECK(error_message(gpu + "vgpu_memory = \"1GiB\"\nvgpu_guaranteed = \"2GiB\"\n") ==
              "d.toml:1: vgpu_guaranteed of gpu0 is larger than its vgpu_memory");
        CHECK(error_message("[[device]]\nname = \"a\"\n") == "d.toml:1: the device has no kind");
        CHECK(error_message("[pool]\n") == "d.toml:1: unknown key \"pool\"");
        CHECK(error_message("device = 3\n") == "d.toml:1: a device is a section: [[device]]");
        CHECK(error_message("") == "d.toml: has no [[device]]");
        CHECK(error_message("[[device]\n").find("d.toml:1: ") == 0);
    }

    TEST_CASE("values out of their range are refused") {
        for (const char* line : {"priority = 0",
                                 "priority = '1'",
                                 "vgpu_guaranteed = 5",
                                 "gflops = 0",
                                 "gflops = -1",
                                 "gflops = nan",
                                 "gflops = inf",
                                 "gflops = '40'",
                                 "memory = 5",
                                 "memory = '0'",
                                 "memory = '1EiB'",
                                 "kind = 'toaster'",
                                 "name = 'a b'",
                                 "name = ''",
                                 "link_latency = '-1us'",
                                 "link_latency = '2s'",
                                 "link_latency = 2",
                                 "link_gbytes_per_s = 0",
                                 "numa_node = -1",
                                 "numa_node = 1024",
                                 "numa_node = '0'",
                                 "efficiency = { convolution = 1.5 }",
                                 "efficiency = { convoluted = 1 }",
                                 "efficiency = 1"}) {
            const std::string key = std::string(line).substr(0, std::string(line).find(' '));
            std::string text = kGpu;
            const auto at = text.find(key + " =");
            if (at != std::string::npos) text.erase(at, text.find('\n', at) + 1 - at);
            CAPTURE(line);
            CHECK(error_message(text + line + "\n").find(": " + key + " takes ") !=
                  std::string::npos);
        }
    }

    TEST_CASE("a file that is not there is a error_message with its path") {
        std::vector<DeviceSpec> devices;
        CHECK(read_device_file("/nowhere/d.toml", devices) == "/nowhere/d.toml: can't be read");
    }
}
