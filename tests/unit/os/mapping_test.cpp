#include "libfabricshm/os/mapping.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

using namespace fabricshm;

namespace {

Fd file_of(Bytes bytes) {
    Fd fd(::memfd_create("mapping", MFD_CLOEXEC));
    REQUIRE(::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
    return fd;
}

}  // namespace

TEST_SUITE("os.mapping") {
    TEST_CASE("a mapping starts at a multiple of the alignment and shows the file's bytes") {
        const Fd fd = file_of(6 * kMiB);
        const char mark = 42;
        REQUIRE(::pwrite(fd.get(), &mark, 1, 2 * kMiB) == 1);
        const auto mapping = Mapping::map(fd, 2 * kMiB, 4 * kMiB, {true, 2 * kMiB, 0});
        REQUIRE(mapping.ok());
        CHECK(reinterpret_cast<std::uintptr_t>(mapping->data()) % (2 * kMiB) == 0);
        CHECK(mapping->data()[0] == std::byte{42});
        CHECK(mapping->size() == 4 * kMiB);
    }

    TEST_CASE("what would be a SIGBUS at the first access is refused") {
        const Fd fd = file_of(4 * kMiB);
        const MapOptions blocks{true, 2 * kMiB, 0};
        CHECK(Mapping::map(fd, 2 * kMiB, 4 * kMiB, blocks).error().code == Errc::kCorrupt);
        CHECK(Mapping::map(fd, 8 * kMiB, 2 * kMiB, blocks).error().code == Errc::kCorrupt);
        CHECK(Mapping::map(fd, ~Bytes{0} - 4095, 4096, {}).error().code == Errc::kCorrupt);
        CHECK(Mapping::map(fd, 4096, 2 * kMiB, blocks).error().code == Errc::kInvalid);
        CHECK(Mapping::map(fd, 4096, 4096, {}).ok());
    }

    TEST_CASE("ranges from peers are inside or not, without overflow") {
        const Fd fd = file_of(kMiB);
        const auto mapping = Mapping::map(fd, 0, kMiB, {});
        REQUIRE(mapping.ok());
        CHECK(mapping->holds(0, kMiB));
        CHECK(mapping->holds(kMiB, 0));
        CHECK_FALSE(mapping->holds(1, kMiB));
        CHECK_FALSE(mapping->holds(kMiB + 1, 0));
        CHECK_FALSE(mapping->holds(4096, ~std::uint64_t{0}));
    }
}
