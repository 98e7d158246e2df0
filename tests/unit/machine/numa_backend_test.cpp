#include "libfabricshm/machine/numa_backend.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>

#include "libfabricshm/machine/huge_pages.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "tests/support/skip.hpp"

using namespace fabricshm;

namespace {

NumaOptions on_node(int node) {
    NumaOptions options;
    options.node = node;
    options.capacity = 32 * kMiB;
    return options;
}

}  // namespace

TEST_SUITE("machine.numa_backend") {
    TEST_CASE("the pages of an arena are on the node, for another process's mapping too") {
        auto pool = make_numa_backend(on_node(0));
        if (!pool.ok() && pool.error().code == Errc::kUnsupported) {
            test_support::skip("this kernel has no NUMA");
            return;
        }
        REQUIRE(pool.ok());
        const auto piece = std::move((*pool)->create(1, "job", 0, 5 * kMiB)).value();
        const auto mapping = std::move(Mapping::map(piece.fd, 0, piece.bytes, {})).value();
        // Only what this process has touched is in its page tables, which the kernel reads.
        CHECK(std::all_of(mapping.data(), mapping.data() + mapping.size(),
                          [](std::byte byte) { return byte == std::byte{0}; }));
        CHECK(verify_node(mapping.data(), mapping.size(), 0).ok());
        CHECK((*pool)->totals().used == piece.bytes);
        CHECK((*pool)->describe().find("NUMA node 0") != std::string::npos);
        CHECK(std::string((*pool)->kind()) == "numa");
        CHECK(verify_node(mapping.data(), mapping.size(), 1).error().code == Errc::kMismatch);
    }

    TEST_CASE("pages that are not there are not on the node") {
        void* data =
            ::mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(data != MAP_FAILED);
        CHECK_FALSE(verify_node(data, kMiB, 0).ok());
        ::munmap(data, kMiB);
    }

    TEST_CASE("a node that does not exist and a capacity beyond the node are refused") {
        CHECK_FALSE(make_numa_backend(on_node(-1)).ok());
        CHECK_FALSE(make_numa_backend(on_node(1000)).ok());
        NumaOptions options = on_node(0);
        options.capacity = Bytes{1} << 55;
        CHECK_FALSE(make_numa_backend(options).ok());
    }

    TEST_CASE("reserved huge pages of a size that no machine has are refused") {
        NumaOptions options = on_node(0);
        options.huge_pages = HugePages::kReserved;
        options.reserved_page_bytes = 12 * kMiB;
        CHECK(make_numa_backend(options).error().code == Errc::kUnsupported);
    }
}

TEST_SUITE("machine.numa_backend reserved pages") {
    TEST_CASE("an arena takes reserved pages, and is refused when they do not suffice") {
        if (free_reserved_pages(HostFiles{}, 2 * kMiB, 0) < 4 * kMiB) {
            // Nothing to take: the pool must say so at the start instead of taking small ones.
            NumaOptions options = on_node(0);
            options.huge_pages = HugePages::kReserved;
            CHECK_FALSE(make_numa_backend(options).ok());
            return;
        }
        NumaOptions options = on_node(0);
        options.capacity = 4 * kMiB;
        options.huge_pages = HugePages::kReserved;
        auto pool = std::move(make_numa_backend(options)).value();
        const auto piece = std::move(pool->create(1, "job", 0, kMiB)).value();
        CHECK(piece.bytes == 2 * kMiB);
        CHECK(piece.align == 2 * kMiB);
        CHECK(pool->create(2, "job", 0, 4 * kMiB).error().code == Errc::kNoMemory);
    }
}
