// DiskReader: what it read, compared with what was written another way.

#include "libfabricshm/os/disk_reader.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <string>

#include "libfabricshm/os/mapping.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;

namespace {

TimePoint soon() {
    return Clock::now() + 30s;
}

std::string numbers(Bytes bytes) {
    std::string text(bytes, '\0');
    for (Bytes at = 0; at < bytes; ++at) text[at] = static_cast<char>(at * 131 + (at >> 11) * 7);
    return text;
}

// As data are read: past the page cache where the file system can do that.
Fd open_file(const std::string& path, bool direct) {
    Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0)));
    return fd || !direct ? std::move(fd) : open_file(path, false);
}

}  // namespace

TEST_SUITE("os.disk_reader") {
    TEST_CASE("pieces of files arrive in their places, with io_uring or without, direct or not") {
        const test_support::TemporaryDirectory folder;
        constexpr Bytes kFile = 3 * kMiB + 1234;
        constexpr Bytes kPiece = 256 * kKiB;
        const std::string content = numbers(kFile);
        std::ofstream(folder.file("data"), std::ios::binary) << content;
        const Bytes pieces = kFile / kPiece + 1;
        for (const bool uring : {true, false}) {
            for (const bool direct : {true, false}) {
                CAPTURE(uring);
                CAPTURE(direct);
                const Mapping memory = Mapping::own(pieces * kPiece).value();
                const Fd fd = open_file(folder.file("data"), direct);
                REQUIRE(fd);
                DiskReader reader({memory.data(), pieces * kPiece}, 4, uring);
                std::map<std::uint64_t, DiskReadDone> done;
                for (Bytes piece = 0; piece < pieces; ++piece) {
                    while (!reader.has_room()) {
                        for (const auto& one : reader.wait(soon())) done[one.tag] = one;
                    }
                    // From the last to the first, so that no order of the file helps.
                    const Bytes which = pieces - 1 - piece;
                    reader.start(
                        {fd.get(), memory.data() + which * kPiece, kPiece, which * kPiece, which});
                }
                while (reader.under_way() != 0) {
                    for (const auto& one : reader.wait(soon())) done[one.tag] = one;
                }
                REQUIRE(done.size() == pieces);
                for (const auto& [tag, one] : done) {
                    CAPTURE(tag);
                    CHECK(one.error == 0);
                    CHECK(one.bytes == std::min(kPiece, kFile - tag * kPiece));
                }
                CHECK(std::memcmp(memory.data(), content.data(), kFile) == 0);
            }
        }
    }

    TEST_CASE("a read behind the end of the file gives no bytes, one of a folder its errno") {
        const test_support::TemporaryDirectory folder;
        std::ofstream(folder.file("data"), std::ios::binary) << "short";
        const Mapping memory = Mapping::own(64 * kKiB).value();
        const Fd file = open_file(folder.file("data"), false);
        const Fd directory(::open(folder.path().c_str(), O_RDONLY | O_CLOEXEC));
        for (const bool uring : {true, false}) {
            CAPTURE(uring);
            DiskReader reader({memory.data(), 64 * kKiB}, 4, uring);
            reader.start({file.get(), memory.data(), 4096, 8192, 1});
            const auto behind = reader.wait(soon());
            REQUIRE(behind.size() == 1);
            CHECK(behind[0].bytes == 0);
            CHECK(behind[0].error == 0);
            reader.start({directory.get(), memory.data(), 4096, 0, 2});
            const auto wrong = reader.wait(soon());
            REQUIRE(wrong.size() == 1);
            CHECK(wrong[0].tag == 2);
            CHECK(wrong[0].error == EISDIR);
            CHECK(reader.under_way() == 0);
        }
    }

    TEST_CASE("a wait ends at its deadline, and what comes later is not lost") {
        const test_support::TemporaryDirectory folder;
        int ends[2];
        REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
        const Fd in(ends[0]);
        const Fd out(ends[1]);
        const Mapping memory = Mapping::own(4096).value();
        DiskReader reader({memory.data(), 4096}, 2);
        if (reader.descriptor() < 0) return;  // without io_uring start() itself waits
        // A pipe stands for a disk that does not answer.
        reader.start({in.get(), memory.data(), 5, 0, 7});
        CHECK(reader.wait(Clock::now() + 20ms).empty());
        CHECK(reader.under_way() == 1);
        REQUIRE(::write(out.get(), "later", 5) == 5);
        const auto done = reader.wait(soon());
        REQUIRE(done.size() == 1);
        CHECK(done[0].tag == 7);
        CHECK(done[0].bytes == 5);
        CHECK(std::memcmp(memory.data(), "later", 5) == 0);
    }

    TEST_CASE("memory that is not the reader's own is read into as well") {
        const test_support::TemporaryDirectory folder;
        std::ofstream(folder.file("data"), std::ios::binary) << numbers(9000);
        const Mapping own = Mapping::own(4096).value();
        std::string other(9000, '.');
        const Fd file = open_file(folder.file("data"), false);
        DiskReader reader({own.data(), 4096}, 2);
        reader.start({file.get(), reinterpret_cast<std::byte*>(other.data()), 9000, 0, 1});
        const auto done = reader.wait(soon());
        REQUIRE(done.size() == 1);
        CHECK(done[0].bytes == 9000);
        CHECK(other == numbers(9000));
    }
}
