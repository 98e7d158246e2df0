// Against a library of our own with NVIDIA's binary interface (fake_nvml.cpp): there is no GPU
// here.
#include "fabricd/telemetry/nvml_source.hpp"

#include <doctest/doctest.h>

#include <cstdlib>

#include "tests/unit/machine/host_tree.hpp"

using namespace fabricd;
using fabricshm::Errc;

TEST_SUITE("telemetry.nvml_source") {
    TEST_CASE("no library is a host without GPUs, and a strange one is refused") {
        CHECK(NvmlSource::open("libno-such-nvml.so.1").error().code == Errc::kNotFound);
        CHECK(NvmlSource::open("libc.so.6").error().code == Errc::kUnsupported);
        ::setenv("FAKE_NVML", "broken", 1);
        const auto broken = NvmlSource::open(FAKE_NVML_PATH);
        ::unsetenv("FAKE_NVML");
        CHECK(broken.error().code == Errc::kSystem);
        CHECK(broken.error().detail == 1);
    }

    TEST_CASE("every GPU that answers is a device with what its driver knows") {
        HostTree tree;
        tree.write("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1");
        tree.write("sys/bus/pci/devices/0001:3b:00.0/numa_node", "-1");
        const auto source = NvmlSource::open(FAKE_NVML_PATH, tree.files()).value();
        std::vector<DeviceSample> devices;
        source->sample(0, devices);
        REQUIRE(devices.size() == 2);
        const DeviceSample& first = devices[0];
        CHECK(first.name == "gpu0");
        CHECK(first.description == "Fake GPU A");
        CHECK(first.kind == DeviceKind::kGpu);
        CHECK(first.numa_node == 1);
        CHECK(first.units == 6912);
        CHECK(first.busy == doctest::Approx(0.75));
        CHECK(first.memory_busy == doctest::Approx(0.4));
        CHECK(first.memory_total == std::int64_t{80} << 30);
        CHECK(first.memory_used == std::int64_t{20} << 30);
        CHECK(first.power_watts == doctest::Approx(250.5));
        CHECK(first.temperature_c == 61);
        CHECK(first.clock_mhz == -1);
        CHECK(first.uuid == "GPU-fake-a");
        CHECK(first.faults == 0);
        CHECK_FALSE(first.stale);
        CHECK(devices[1].name == "gpu1");
        CHECK(devices[1].numa_node == -1);
        CHECK(devices[1].busy == -1);
        CHECK(devices[1].memory_used == std::int64_t{20} << 30);
        CHECK_FALSE(devices[1].stale);
    }

    TEST_CASE("a GPU that stops answering is stale with its last figures, until it answers again") {
        const auto source = NvmlSource::open(FAKE_NVML_PATH).value();
        std::vector<DeviceSample> devices;
        int stale = 0;
        for (int i = 0; i < 4; ++i) {
            devices.clear();
            source->sample(i, devices);
            stale += devices[0].stale ? 1 : 0;
            CHECK(devices[0].busy == doctest::Approx(0.75));
        }
        CHECK(stale == 1);
        CHECK_FALSE(devices[0].stale);
    }

    TEST_CASE("what a GPU says is wrong with it is a fault of its device, and of no other") {
        const auto source = NvmlSource::open(FAKE_NVML_PATH).value();
        const auto faults = [&] {
            std::vector<DeviceSample> devices;
            source->sample(0, devices);
            CHECK(devices[1].faults == 0);
            return words_of(devices[0].faults);
        };
        CHECK(faults() == "");
        ::setenv("FAKE_NVML_ECC", "2", 1);
        CHECK(faults() == "ecc");
        ::setenv("FAKE_NVML_SLOW", "64", 1);
        CHECK(faults() == "ecc,stopped");  // the third poll: it is lost, and reports nothing else
        CHECK(faults() == "ecc,thermal");
        ::setenv("FAKE_NVML_ECC", "0", 1);   // as after a reset
        ::setenv("FAKE_NVML_SLOW", "4", 1);  // for its power
        CHECK(faults() == "");
        // A program's error is no fault; a fatal one lasts.
        ::setenv("FAKE_NVML_XIDS", "31 13", 1);
        CHECK(faults() == "");
        ::setenv("FAKE_NVML_XIDS", "31 79", 1);
        CHECK(faults() == "xid");
        CHECK(faults() == "xid");
        for (const char* name : {"FAKE_NVML_ECC", "FAKE_NVML_SLOW", "FAKE_NVML_XIDS"}) {
            ::unsetenv(name);
        }
    }

    TEST_CASE("faults have words, as the configuration names them") {
        const DeviceFaults both = DeviceFaults{} | DeviceFault::kEcc | DeviceFault::kStopped;
        CHECK(words_of(both) == "ecc,stopped");
        CHECK(faults_of("ecc,stopped") == both);
        CHECK(faults_of("") == 0);
        CHECK(faults_of("thermal,heat") == static_cast<DeviceFaults>(DeviceFault::kThermal));
        CHECK(has_fault(both, DeviceFault::kEcc));
        CHECK_FALSE(has_fault(both, DeviceFault::kXid));
        CHECK(is_fatal_xid(79));
        CHECK_FALSE(is_fatal_xid(13));
    }
}
