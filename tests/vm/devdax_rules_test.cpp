// What a real device-DAX does and a file does not, as far as the pool depends on it. Runs in a
// guest, on the device of FABRIC_TEST_POOL.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "libfabricshm/machine/dax_device.hpp"
#include "tests/support/pool_choice.hpp"

using namespace fabricshm;

namespace {

constexpr Bytes kBlock = 2 * kMiB;

Fd open_device() {
    const auto choice = test_support::PoolChoice::from_environment();
    REQUIRE(choice.backend == "dax");
    Fd fd(::open(choice.where.c_str(), O_RDWR | O_CLOEXEC));
    REQUIRE(fd);
    return fd;
}

/// The errno of an mmap() that should fail; 0, and nothing mapped, when it does not.
int map_errno(const Fd& fd, Bytes bytes, int flags, off_t offset) {
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd.get(), offset);
    if (data == MAP_FAILED) return errno;
    ::munmap(data, bytes);
    return 0;
}

}  // namespace

TEST_SUITE("vm.devdax_rules") {
    TEST_CASE("size and alignment come from the device") {
        const auto choice = test_support::PoolChoice::from_environment();
        const auto device = DaxDevice::open(choice.where, {}, true);
        REQUIRE(device.ok());
        CHECK(device->align() == kBlock);
        CHECK(device->bytes() >= 64 * kMiB);
        CHECK(device->bytes() % kBlock == 0);
    }

    TEST_CASE("mappings are shared, and whole blocks in offset and length") {
        const Fd fd = open_device();
        CHECK(map_errno(fd, kBlock, MAP_PRIVATE, 0) == EINVAL);
        CHECK(map_errno(fd, 4096, MAP_SHARED, 0) == EINVAL);
        CHECK(map_errno(fd, kBlock, MAP_SHARED, 4096) == EINVAL);
        CHECK(Mapping::map(fd, 0, 4096, {true, kBlock, 0}).error().detail == EINVAL);
        // With an address of our own it takes an offset that it can't serve: the fault is a SIGBUS.
        CHECK(Mapping::map(fd, 4096, kBlock, {true, kBlock, 0}).error().code == Errc::kInvalid);
        // Addresses too: a place of our own choosing has to be aligned, which Mapping sees to.
        for (int i : {1, 2, 0}) {  // zeros at last: the device stays blank
            const auto mapping = Mapping::map(fd, kBlock, 2 * kBlock, {true, kBlock, 0});
            REQUIRE(mapping.ok());
            CHECK(reinterpret_cast<std::uintptr_t>(mapping->data()) % kBlock == 0);
            std::memset(mapping->data(), i, mapping->size());
        }
    }

    TEST_CASE("a mapping is not cut within a block") {
        const Fd fd = open_device();
        const auto mapping = Mapping::map(fd, 0, 2 * kBlock, {true, kBlock, 0});
        REQUIRE(mapping.ok());
        CHECK(::munmap(mapping->data(), 4096) == -1);
        CHECK(::mprotect(mapping->data(), 4096, PROT_READ) == -1);
        CHECK(errno == EINVAL);
    }

    TEST_CASE("it has no read, write or size, and forgets nothing when it is asked to") {
        const Fd fd = open_device();
        char byte = 0;
        CHECK(::pread(fd.get(), &byte, 1, 0) == -1);
        CHECK(::pwrite(fd.get(), &byte, 1, 0) == -1);
        CHECK(::ftruncate(fd.get(), 0) == -1);
        CHECK(::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == -1);
        const auto mapping = Mapping::map(fd, 3 * kBlock, kBlock, {true, kBlock, 0});
        REQUIRE(mapping.ok());
        mapping->data()[7] = std::byte{42};
        ::madvise(mapping->data(), kBlock, MADV_DONTNEED);
        CHECK(mapping->data()[7] == std::byte{42});
        mapping->data()[7] = std::byte{0};
    }

    // The scenarios ask for it by name: it leaves the device with something that is no pool.
    TEST_CASE("leave other data in the last block" * doctest::skip()) {
        const Fd fd = open_device();
        const auto choice = test_support::PoolChoice::from_environment();
        const Bytes bytes = DaxDevice::open(choice.where, {}, true)->bytes();
        const auto first = Mapping::map(fd, 0, kBlock, {true, kBlock, 0});
        const auto last = Mapping::map(fd, bytes - kBlock, kBlock, {true, kBlock, 0});
        REQUIRE(first.ok());
        REQUIRE(last.ok());
        std::memset(first->data(), 0, first->size());
        last->data()[kBlock - 1] = std::byte{'x'};
    }
}
