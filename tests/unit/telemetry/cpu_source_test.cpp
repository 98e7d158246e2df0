#include "fabricd/telemetry/cpu_source.hpp"

#include <doctest/doctest.h>

#include "tests/unit/machine/host_tree.hpp"

using namespace fabricd;
using fabricshm::HostFiles;
using fabricshm::Package;

namespace {

// A machine of two packages with two processors each, as /proc and /sys show it.
class Machine {
  public:
    Machine() {
        tree.write("sys/devices/system/node/node0/meminfo",
                   "Node 0 MemTotal:       1000 kB\nNode 0 MemFree:         400 kB");
        tree.write("sys/devices/system/node/node1/meminfo",
                   "Node 1 MemTotal:       2000 kB\nNode 1 MemFree:        2000 kB");
    }
    void ticks(int busy0, int idle0, int busy3) {
        const std::string busy = std::to_string(busy0), idle = std::to_string(idle0);
        tree.write("proc/stat", "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 " + busy + " 0 0 " + idle +
                                    " 0 0 0 0 0 0\ncpu1 0 0 0 " + idle +
                                    " 5 0 0 0 0 0\ncpu2 0 0 0 100 0 0 0 0 0 0\ncpu3 " +
                                    std::to_string(busy3) + " 0 0 0 0 0 0 0 0 0\nintr 1 2 3");
    }

    HostTree tree;
};

std::vector<Package> packages() {
    return {{0, "Quick CPU", {0, 1}, {0}}, {1, "Quick CPU", {2, 3}, {1}}};
}

}  // namespace

TEST_SUITE("telemetry.cpu_source") {
    TEST_CASE("each package is busy by its own processors since the sample before") {
        Machine machine;
        CpuSource source(machine.tree.files(), packages());
        std::vector<DeviceSample> devices;
        machine.ticks(100, 100, 50);
        source.sample(0, devices);
        REQUIRE(devices.size() == 2);
        CHECK(devices[0].name == "cpu0");
        CHECK(devices[0].description == "Quick CPU");
        CHECK(devices[0].units == 2);
        CHECK(devices[0].numa_node == 0);
        CHECK(devices[0].busy == -1);
        CHECK(devices[0].memory_total == 1000 * 1024);
        CHECK(devices[0].memory_used == 600 * 1024);
        CHECK(devices[1].memory_used == 0);

        devices.clear();
        machine.ticks(130, 135, 50);
        source.sample(1, devices);
        CHECK(devices[0].busy == doctest::Approx(0.3));
        CHECK_FALSE(devices[0].stale);
        // Nothing passed for the other one: not known, and no division by zero.
        CHECK(devices[1].busy == -1);
    }

    TEST_CASE("without /proc a package is stale, and damaged text is no number") {
        Machine machine;
        CpuSource source(machine.tree.files(), packages());
        std::vector<DeviceSample> devices;
        source.sample(0, devices);
        CHECK(devices[0].stale);
        devices.clear();
        machine.tree.write("proc/stat", "cpu0\ncpu 1\ncpux y\ncpu1 5 5");
        machine.tree.write("sys/devices/system/node/node0/meminfo", "MemTotal: lots");
        source.sample(1, devices);
        CHECK(devices[0].memory_total == -1);
    }

    TEST_CASE("this machine has packages with processors") {
        const auto here = fabricshm::read_packages();
        REQUIRE_FALSE(here.empty());
        CHECK_FALSE(here[0].processors.empty());
        CpuSource source(HostFiles{}, here);
        std::vector<DeviceSample> devices;
        source.sample(0, devices);
        CHECK_FALSE(devices[0].stale);
    }
}
