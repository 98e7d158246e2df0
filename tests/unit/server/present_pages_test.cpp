#include "fabricd/server/present_pages.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "libfabricshm/os/mapping.hpp"

using namespace fabricd;
using fabricshm::Fd;
using fabricshm::Mapping;

TEST_SUITE("server.present_pages") {
    TEST_CASE("what was not there is there afterwards, also a hole that was punched later") {
        const Fd file(::memfd_create("test", MFD_CLOEXEC));
        REQUIRE(::ftruncate(file.get(), 16 * 4096) == 0);
        const auto mapping =
            std::make_shared<Mapping>(Mapping::map(file, 0, 16 * 4096, {}).value());
        const ArenaSpan span{mapping, mapping->data()};
        const auto resident = [&] {
            std::vector<unsigned char> pages(16);
            REQUIRE(::mincore(mapping->data(), 16 * 4096, pages.data()) == 0);
            int there = 0;
            for (const unsigned char page : pages) there += page & 1;
            return there;
        };
        PresentPages pages;
        REQUIRE(resident() == 0);
        REQUIRE(pages.ensure(span, 4 * 4096, 8 * 4096).ok());
        CHECK(resident() == 8);
        REQUIRE(pages.ensure(span, 4 * 4096, 8 * 4096).ok());
        REQUIRE(::madvise(mapping->data() + 6 * 4096, 4096, MADV_REMOVE) == 0);
        CHECK(resident() == 7);
        REQUIRE(pages.ensure(span, 4 * 4096, 8 * 4096).ok());
        CHECK(resident() == 8);
        REQUIRE(pages.ensure(span, 4 * 4096, 12 * 4096).ok());  // more than is known
        CHECK(resident() == 12);
    }

    TEST_CASE("a page that would raise a signal is an error, the second time, too") {
        const Fd file(::memfd_create("test", MFD_CLOEXEC));
        REQUIRE(::ftruncate(file.get(), 4 * 4096) == 0);
        const auto mapping = std::make_shared<Mapping>(Mapping::map(file, 0, 4 * 4096, {}).value());
        const ArenaSpan span{mapping, mapping->data()};
        PresentPages pages;
        REQUIRE(pages.ensure(span, 0, 4 * 4096).ok());
        REQUIRE(::ftruncate(file.get(), 2 * 4096) == 0);
        CHECK(pages.ensure(span, 0, 4 * 4096).error().code == Errc::kPoisoned);
        CHECK(pages.ensure(span, 0, 4 * 4096).error().code == Errc::kPoisoned);
    }
}
