#include "libfabricshm/machine/discovery.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>

#include "libfabricshm/machine/backend_choice.hpp"
#include "tests/unit/machine/host_tree.hpp"

using namespace fabricshm;

namespace {

/// A two-socket server with a CXL expander that the kmem driver has made node 2, and a second one
/// left as a DAX device. The values are what such a kernel shows.
void write_cxl_host(HostTree& tree) {
    const std::string nodes = "sys/devices/system/node/";
    tree.write("proc/meminfo", "MemAvailable: 8388608 kB");
    tree.write(nodes + "online", "0-2");
    for (const char* id : {"0", "1"}) {
        tree.write(nodes + "node" + id + "/cpulist", id == std::string("0") ? "0-7" : "8-15");
        tree.write(nodes + "node" + id + "/meminfo",
                   std::string("Node ") + id + " MemTotal: 33554432 kB\nNode 0 MemFree: 1024 kB");
    }
    const std::string cxl = nodes + "node2";
    tree.write(cxl + "/cpulist", "");
    tree.write(cxl + "/meminfo", "Node 2 MemTotal: 134217728 kB\nNode 2 MemFree: 134217728 kB");
    tree.write(cxl + "/access0/initiators/read_latency", "250");
    tree.write(cxl + "/access0/initiators/write_latency", "260");
    tree.write(cxl + "/access0/initiators/read_bandwidth", "30000");
    tree.write(cxl + "/access0/initiators/write_bandwidth", "20000");
    tree.write(cxl + "/access0/initiators/node0/x", "");
    tree.write(cxl + "/access0/initiators/node1/x", "");
    tree.write(cxl + "/hugepages/hugepages-1048576kB/free_hugepages", "2");

    const std::string dax = "sys/bus/dax/devices/";
    tree.write(dax + "dax0.0/size", "137438953472");
    tree.write(dax + "dax0.0/align", "2097152");
    tree.write(dax + "dax0.0/target_node", "2");
    tree.write(dax + "dax0.0/numa_node", "0");
    tree.link(dax + "dax0.0/driver", "../../../../bus/dax/drivers/kmem");
    tree.write(dax + "dax1.0/size", "274877906944");
    tree.write(dax + "dax1.0/align", "1073741824");
    tree.write(dax + "dax1.0/numa_node", "-1");
    tree.link(dax + "dax1.0/driver", "../../../../bus/dax/drivers/device_dax");

    const std::string objects = "sys/bus/cxl/devices/";
    tree.write(objects + "mem0/serial", "0x1234");
    tree.write(objects + "mem0/numa_node", "0");
    tree.write(objects + "mem0/ram/size", "0x2000000000");
    tree.write(objects + "mem0/pmem/size", "0x0");
    tree.write(objects + "region0/resource", "0x490000000");
    tree.write(objects + "region0/size", "0x2000000000");
    tree.write(objects + "region0/mode", "ram");
    tree.write(objects + "decoder0.0/size", "0x0");
    tree.write(objects + "decoder1.0/size", "0x0");
    tree.write(objects + "memory", "");  // a name that only begins like one of ours
}

}  // namespace

TEST_SUITE("machine.discovery") {
    TEST_CASE("a host with CXL memory shows its nodes with ratings, devices and regions") {
        HostTree tree;
        write_cxl_host(tree);
        const Discovery found = discover(tree.files());
        REQUIRE(found.nodes.size() == 3);
        CHECK(found.nodes[0].cpus == "0-7");
        CHECK_FALSE(found.nodes[0].rating);
        const MemoryNode& node = found.nodes[2];
        CHECK(node.cpus == "");
        CHECK(node.total == 128 * kGiB);
        CHECK(node.is_dax_backed);
        CHECK(node.reserved_1gib_free == 2 * kGiB);
        REQUIRE(node.rating);
        CHECK(node.rating->read_latency_ns == 250);
        CHECK(node.rating->write_bandwidth_mib == 20000);
        CHECK(node.rating->initiators == std::vector<int>{0, 1});

        REQUIRE(found.dax.size() == 2);
        CHECK(found.dax[0].driver == "kmem");
        CHECK(found.dax[0].target_node == 2);
        CHECK(found.dax[1].bytes == 256 * kGiB);
        CHECK(found.dax[1].align == kGiB);
        CHECK(found.dax[1].numa_node == -1);
        CHECK_FALSE(found.dax[1].is_usable);  // there is no /dev/dax1.0 in the tree

        REQUIRE(found.cxl_memories.size() == 1);
        CHECK(found.cxl_memories[0].ram == 128 * kGiB);
        CHECK(found.cxl_memories[0].serial == "0x1234");
        REQUIRE(found.cxl_regions.size() == 1);
        CHECK(found.cxl_regions[0].start == 0x490000000);
        CHECK(found.cxl_regions[0].mode == "ram");
        CHECK(found.cxl_decoders == 2);
    }

    TEST_CASE("a region that does not say its mode has that of its first decoder") {
        HostTree tree;
        tree.write("sys/bus/cxl/devices/region0/size", "0x10000000");
        CHECK(discover(tree.files()).cxl_regions.at(0).mode == "");
        tree.write("sys/bus/cxl/devices/region0/target0", "decoder2.0");
        tree.write("sys/bus/cxl/devices/decoder2.0/mode", "pmem");
        CHECK(discover(tree.files()).cxl_regions.at(0).mode == "pmem");
    }

    TEST_CASE("an empty file differs from one that is not there or can't be read") {
        HostTree tree;
        tree.write("sys/full", "one");
        std::ofstream(tree.path("sys/empty")).flush();
        CHECK(tree.files().text("/sys/full") == "one");
        CHECK(tree.files().text("/sys/empty") == "");
        CHECK_FALSE(tree.files().text("/sys/missing").has_value());
        CHECK_FALSE(tree.files().text("/sys").has_value());
    }

    TEST_CASE("the node of an expander is chosen, and each DAX device gets its reason") {
        HostTree tree;
        write_cxl_host(tree);
        const auto choice = choose_backend(discover(tree.files()));
        CHECK(choice.backend == "numa");
        CHECK(choice.node == 2);
        CHECK(choice.why.find("128 GiB") != std::string::npos);
        CHECK(choice.why.find("250 ns") != std::string::npos);
        REQUIRE(choice.not_taken.size() == 3);
        CHECK(choice.not_taken[1].find("in use as node 2") != std::string::npos);
        CHECK(choice.not_taken[2].find("may not be opened") != std::string::npos);
    }

    TEST_CASE("a node backed by a DAX device comes before a larger one that is not") {
        Discovery found;
        found.nodes.resize(3);
        found.nodes[0] = {0, "0-3", 512 * kGiB, 0, 0, 0, false, {}};
        found.nodes[1] = {1, "", 256 * kGiB, 0, 0, 0, false, {}};
        found.nodes[2] = {2, "", 64 * kGiB, 0, 0, 0, true, {}};
        CHECK(choose_backend(found).node == 2);
        found.nodes[2].is_dax_backed = false;
        CHECK(choose_backend(found).node == 1);
        found.nodes[1].total = found.nodes[2].total = 0;
        CHECK(choose_backend(found).backend == "emu");
    }

    TEST_CASE("an empty host is emulated, and says what is missing") {
        HostTree tree;
        const auto found = discover(tree.files());
        CHECK(found.nodes.empty());
        const auto choice = choose_backend(found);
        CHECK(choice.backend == "emu");
        CHECK(choice.not_taken.size() == 2);
    }

    TEST_CASE("what a device holds is seen without changing it") {
        HostTree tree;
        tree.write("sys/bus/dax/devices/dax0.0/size", "8388608");
        tree.link("sys/bus/dax/devices/dax0.0/driver", "/drivers/device_dax");
        tree.write("dev/dax0.0", "");
        const auto device = tree.path("dev/dax0.0");
        const auto reason = [&] { return choose_backend(discover(tree.files())).not_taken.back(); };
        ::truncate(device.c_str(), 0);
        REQUIRE(::truncate(device.c_str(), 8 << 20) == 0);
        CHECK(reason().find("is blank") != std::string::npos);

        const auto write = [&](const void* data, std::size_t bytes) {
            std::fstream file(device);
            file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
        };
        DaxCatalogue catalogue;
        catalogue.uuid.fill(0xab);
        catalogue.device_bytes = 8 << 20;
        catalogue.align = 2 * kMiB;
        const auto bytes = encode_catalogue(catalogue);
        write(bytes.data(), bytes.size());
        CHECK(reason().find("holds pool abababab-") != std::string::npos);
        write("damage behind the magic", 23);
        CHECK(reason().find("holds other data") != std::string::npos);
    }

    TEST_CASE("this machine is read without surprises") {
        const Discovery found = discover(HostFiles{});
        CHECK(found.available > 0);
        CHECK(found.processors.threads > 0);
        CHECK(found.processors.cores <= found.processors.threads);
    }

    TEST_CASE("hwloc describes another machine when it is asked to") {
        ::setenv("HWLOC_SYNTHETIC", "package:2 l3:1(size=33554432) core:4 pu:2", 1);
        const auto processors = discover(HostFiles{}).processors;
        ::unsetenv("HWLOC_SYNTHETIC");
        CHECK(processors.packages == 2);
        CHECK(processors.cores == 8);
        CHECK(processors.threads == 16);
        CHECK(processors.last_level_cache == 32 * kMiB);
    }
}
