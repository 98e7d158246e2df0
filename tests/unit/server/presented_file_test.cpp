#include "fabricd/server/presented_file.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/temporary_directory.hpp"

using fabricd::is_harmless;
using fabricshm::Fd;

TEST_SUITE("server.presented_file") {
    TEST_CASE("memory files are harmless, and so is a second descriptor of the daemon's own file") {
        const test_support::TemporaryDirectory folder;
        const Fd memory(::memfd_create("test", MFD_CLOEXEC));
        CHECK(is_harmless(memory, -1));
        const Fd own(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        const Fd same(::open("/dev/null", O_RDWR | O_CLOEXEC));
        CHECK(is_harmless(same, own.get()));
    }

    TEST_CASE("others are not: their server may let the daemon wait") {
        const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        const Fd zero(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
        int ends[2];
        REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
        const Fd read_end(ends[0]), write_end(ends[1]);
        CHECK_FALSE(is_harmless(null, -1));
        CHECK_FALSE(is_harmless(null, zero.get()));
        CHECK_FALSE(is_harmless(read_end, zero.get()));
        CHECK_FALSE(is_harmless(Fd{}, zero.get()));
    }
}
