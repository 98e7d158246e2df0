// New pages for a range of a memory file, on a node of one's choice.

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "libfabricshm/machine/node_pages.hpp"
#include "libfabricshm/machine/numa_backend.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "tests/unit/machine/host_tree.hpp"

using namespace fabricshm;

TEST_SUITE("machine.node_pages") {
    TEST_CASE("the pages of a range are new, its neighbours are as they were") {
        const Fd file(::memfd_create("test", MFD_CLOEXEC));
        REQUIRE(::ftruncate(file.get(), 16 * 4096) == 0);
        const auto mapping = Mapping::map(file, 0, 16 * 4096, {});
        REQUIRE(mapping.ok());
        std::byte* data = mapping->data();
        std::memset(data, 7, mapping->size());
        const auto placed = place_on_node(data + 4 * 4096, 8 * 4096, 0);
        // A container may forbid memory policies.
        if (!placed.ok() && placed.error().code == Errc::kDenied) return;
        REQUIRE(placed.ok());
        CHECK(data[4 * 4096 - 1] == std::byte{7});
        CHECK(data[4 * 4096] == std::byte{0});
        CHECK(data[12 * 4096 - 1] == std::byte{0});
        CHECK(data[12 * 4096] == std::byte{7});
    }

    TEST_CASE("a node that is not there is refused, and nothing is lost") {
        const Fd file(::memfd_create("test", MFD_CLOEXEC));
        REQUIRE(::ftruncate(file.get(), 4096) == 0);
        const auto mapping = Mapping::map(file, 0, 4096, {});
        REQUIRE(mapping.ok());
        std::memset(mapping->data(), 7, 4096);
        CHECK_FALSE(place_on_node(mapping->data(), 4096, 1000).ok());
        CHECK_FALSE(place_on_node(mapping->data(), 4096, -1).ok());
        CHECK_FALSE(place_on_node(mapping->data(), 4096, 1 << 20).ok());
        CHECK(mapping->data()[0] == std::byte{7});
    }

    TEST_CASE("ranks run on the nodes that have processors and memory") {
        HostTree tree;
        const auto node = [&](int number, const char* cpus, const char* kib) {
            const std::string folder =
                "sys/devices/system/node/node" + std::to_string(number) + "/";
            tree.write(folder + "cpulist", cpus);
            tree.write(folder + "meminfo",
                       "Node " + std::to_string(number) + " MemTotal: " + kib + " kB");
        };
        CHECK(nodes_of_ranks(tree.files()).empty());
        node(10, "8-15", "4096");
        node(0, "0-7", "4096");
        node(1, "", "4096");    // a memory expander
        node(2, "16-23", "0");  // processors without memory
        tree.write("sys/devices/system/node/possible", "0-15");
        CHECK(nodes_of_ranks(tree.files()) == std::vector{0, 10});
    }

    TEST_CASE("pages of a file lie on the nodes in turn") {
        const std::vector<int> nodes = nodes_of_ranks(HostFiles());
        if (nodes.size() < 2) {
            MESSAGE("one node: checked in a virtual machine with two (vm.cxl_type3)");
            return;
        }
        const Fd file(::memfd_create("test", MFD_CLOEXEC));
        REQUIRE(::ftruncate(file.get(), 64 * 4096) == 0);
        const auto mapping = Mapping::map(file, 0, 64 * 4096, {});
        REQUIRE(mapping.ok());
        const auto spread = spread_over(mapping->data(), mapping->size(), nodes);
        if (!spread.ok() && spread.error().code == Errc::kDenied) return;
        REQUIRE(spread.ok());
        std::memset(mapping->data(), 7, mapping->size());
        std::map<int, int> pages;
        for (Bytes at = 0; at < mapping->size(); at += 4096) {
            for (const int node : nodes) {
                pages[node] += verify_node(mapping->data() + at, 4096, node).ok() ? 1 : 0;
            }
        }
        for (const int node : nodes) CHECK(pages[node] == 64 / static_cast<int>(nodes.size()));
    }

    TEST_CASE("pages are not spread over a node that is not there") {
        const Fd file(::memfd_create("test", MFD_CLOEXEC));
        REQUIRE(::ftruncate(file.get(), 4096) == 0);
        const auto mapping = Mapping::map(file, 0, 4096, {});
        REQUIRE(mapping.ok());
        for (const int node : {-1, 1000, 1 << 20}) {
            CHECK_FALSE(spread_over(mapping->data(), 4096, std::vector{node}).ok());
        }
    }
}
