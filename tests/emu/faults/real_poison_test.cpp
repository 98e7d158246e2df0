// The real thing: MADV_HWPOISON takes a page of an arena's memory away from every process that maps
// it. Needs a kernel with memory failure, and CAP_SYS_ADMIN.

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/os/poison.hpp"
#include "tests/support/skip.hpp"

using namespace fabricshm;

TEST_SUITE("faults.real_poison") {
    TEST_CASE(
        "a page that the kernel declares lost is found under a guard, in every mapping of it") {
        const auto file = std::make_shared<const Fd>(::memfd_create("test", MFD_CLOEXEC));
        constexpr Bytes kBytes = 16 * 4096;
        REQUIRE(::ftruncate(file->get(), kBytes) == 0);
        const Mapping first = std::move(Mapping::map(*file, 0, kBytes, {})).value();
        const Mapping second = std::move(Mapping::map(*file, 0, kBytes, {})).value();
        std::memset(first.data(), 1, kBytes);
        const PoisonWatch one(first.data(), kBytes, {file, 0, 4096, true});
        const PoisonWatch two(second.data(), kBytes, {file, 0, 4096, true});
        if (!lose_page(first.data() + 3 * 4096)) {
            return test_support::skip(
                "the kernel lacks memory failure, or CAP_SYS_ADMIN is missing");
        }
        for (const Mapping* mapping : {&first, &second}) {
            const PoisonGuard guard;
            const volatile std::byte* data = mapping->data();
            CHECK(data[2 * 4096] == std::byte{1});
            CHECK_FALSE(guard.hit());
            CHECK(data[3 * 4096] == std::byte{0});
            CHECK(guard.hit());
        }
        CHECK(one.lost().size() == 1);
        CHECK(two.lost().size() == 1);
        // Putting back shows the lost page, not an empty one: the next access finds it again.
        const PoisonGuard guard;
        const volatile std::byte* again = first.data();
        (void)again[3 * 4096];
        CHECK(guard.hit());
    }
}
