#include "libfabricshm/os/reopen.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace fabricshm;

namespace {

Fd fresh_file() {
    Fd file(::memfd_create("test", MFD_CLOEXEC));
    REQUIRE(::ftruncate(file.get(), 4096) == 0);
    return file;
}

bool is_writable(const Fd& file) {
    return ::pwrite(file.get(), "x", 1, 0) == 1;
}

}  // namespace

TEST_SUITE("os.reopen") {
    TEST_CASE("a descriptor for reading reads the file and stores nothing") {
        const Fd file = fresh_file();
        REQUIRE(::pwrite(file.get(), "a", 1, 7) == 1);
        const auto reader = open_read_only(file);
        REQUIRE(reader.ok());
        char byte = 0;
        CHECK(::pread(reader->get(), &byte, 1, 7) == 1);
        CHECK(byte == 'a');
        CHECK_FALSE(is_writable(*reader));
        CHECK(::mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, reader->get(), 0) == MAP_FAILED);
        CHECK(::fallocate(reader->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) != 0);
    }

    TEST_CASE(
        "a file that is kept to its owner has no rights for others, and stays as it is open") {
        const Fd file = fresh_file();
        REQUIRE(keep_to_owner(file).ok());
        struct stat status {};
        REQUIRE(::fstat(file.get(), &status) == 0);
        CHECK((status.st_mode & 0777) == 0400);
        CHECK(is_writable(file));
    }

    TEST_CASE("its owner gets a writable descriptor from one for reading, and leaves the rights") {
        const Fd file = fresh_file();
        REQUIRE(keep_to_owner(file).ok());
        const auto reader = open_read_only(file);
        REQUIRE(reader.ok());
        const auto writer = open_writable(*reader);
        REQUIRE(writer.ok());
        CHECK(is_writable(*writer));
        struct stat status {};
        REQUIRE(::fstat(file.get(), &status) == 0);
        CHECK((status.st_mode & 0777) == 0400);
    }

    TEST_CASE("a descriptor that is none is refused") {
        CHECK_FALSE(open_read_only(Fd()).ok());
        CHECK_FALSE(keep_to_owner(Fd()).ok());
        CHECK_FALSE(open_writable(Fd()).ok());
    }
}
