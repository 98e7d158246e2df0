// New pages for a range of a memory file, on a node of one's choice.

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "libfabricshm/machine/node_pages.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/mapping.hpp"

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
}
