#include "fabricd/service/backend_factory.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include "tests/unit/machine/host_tree.hpp"

using namespace fabricd;
using fabricshm::kMiB;

namespace {

/// A host without huge pages and control groups, with 1 GiB to give.
struct Host {
    Host() {
        tree.write("proc/meminfo", "MemAvailable: 1048576 kB");
        tree.write("proc/sys/kernel/random/uuid", "00112233-4455-6677-8899-aabbccddeeff");
    }

    /// The kind of pool that is made, or the error message.
    std::string outcome() const {
        std::unique_ptr<fabricshm::PoolBackend> pool;
        const auto bad = make_backend(config, tree.files(), pool);
        return bad ? *bad : pool->kind();
    }

    Config config;
    HostTree tree;
};

}  // namespace

TEST_SUITE("fabricd.backend_factory") {
    TEST_CASE("auto emulates on an ordinary host, and a pool that is too large names its key") {
        Host host;
        CHECK(host.outcome() == "emu");
        host.config.pool.capacity = 2048 * kMiB;
        CHECK(host.outcome().find("pool.capacity") != std::string::npos);
    }

    TEST_CASE("numa without a CPU-less node has to be configured with one") {
        Host host;
        host.config.pool.backend = "numa";
        CHECK(host.outcome().find("(pool.numa_node)") != std::string::npos);
        host.config.pool.numa_node = 900;
        CHECK(host.outcome().find("pool.numa_node") != std::string::npos);
    }

    TEST_CASE("a pool that emulates a machine is put on the far node, where there is one") {
        Host host;
        host.config.emulate.machine = "cxl_box";
        CHECK(host.outcome() == "emu");
        for (const char* node : {"0", "1"}) {
            const std::string folder = std::string("sys/devices/system/node/node") + node;
            host.tree.write(folder + "/cpulist", node);
            host.tree.write(folder + "/distance", "10 21");
            host.tree.write(folder + "/meminfo", std::string("Node ") + node +
                                                     " MemTotal: 1048576 kB\nNode " + node +
                                                     " MemFree: 1048576 kB");
        }
        // Where the kernel has no NUMA calls the attempt is all that can be seen.
        const std::string outcome = host.outcome();
        CHECK((outcome == "numa" || outcome.find("start numa pool") != std::string::npos));
        host.config.emulate.machine = "";
        CHECK(host.outcome() == "emu");
        host.config.emulate.machine = "cxl_box";
        host.config.pool.backend = "emu";
        CHECK(host.outcome() == "emu");
    }

    TEST_CASE("dax wants a device, and takes a file that stands in for one") {
        Host host;
        host.config.pool.backend = "dax";
        CHECK(host.outcome() == "there are 0 DAX devices: name one (pool.dax_device)");
        host.config.pool.dax_device = host.tree.path("device");
        CHECK(host.outcome().find("(pool.dax_device ") != std::string::npos);
        host.tree.write("device", "");
        REQUIRE(::truncate(host.tree.path("device").c_str(), 0) == 0);
        REQUIRE(::truncate(host.tree.path("device").c_str(), 8 * kMiB) == 0);
        CHECK(host.outcome() == "dax");
    }

    TEST_CASE("reserved huge pages that the host does not have are refused") {
        Host host;
        host.config.pool.huge_pages = "reserved";
        CHECK(host.outcome().find("pool.huge_pages") != std::string::npos);
        host.config.pool.huge_pages = "off";
        CHECK(host.outcome() == "emu");
    }
}
