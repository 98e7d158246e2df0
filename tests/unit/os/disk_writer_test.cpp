// DiskWriter: what it wrote, read back by another way.

#include "libfabricshm/os/disk_writer.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>
#include <string>

#include "libfabricshm/os/mapping.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricshm;

namespace {

std::string contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::byte pattern(Bytes at) {
    return static_cast<std::byte>(at * 167 + (at >> 12) * 13);
}

}  // namespace

TEST_SUITE("os.disk_writer") {
    TEST_CASE(
        "every range of a file receives its bytes and no other does, with io_uring or without") {
        const test_support::TemporaryDirectory folder;
        constexpr Bytes kBytes = 5 * kMiB;
        const Mapping memory = Mapping::own(kBytes).value();
        for (Bytes at = 0; at < kBytes; ++at) memory.data()[at] = pattern(at);
        const struct {
            Bytes begin, bytes;
        } ranges[] = {{0, kBytes},          {0, 1},         {17, 5},       {4090, 12},
                      {4096, 4096},         {4095, 4098},   {1, 3 * kMiB}, {8192, kMiB + 4096},
                      {4097, kMiB * 2 + 7}, {kBytes - 1, 1}};
        for (const bool uring : {true, false}) {
            for (const auto& range : ranges) {
                CAPTURE(uring);
                CAPTURE(range.begin);
                CAPTURE(range.bytes);
                const std::string path = folder.file("range");
                std::ofstream(path, std::ios::binary) << std::string(kBytes, '.');
                DiskWriter writer({memory.data(), kBytes}, uring);
                const DiskFile file = DiskFile::open(path).value();
                REQUIRE(
                    writer.write(file, memory.data() + range.begin, range.bytes, range.begin).ok());
                REQUIRE(writer.finish().ok());
                REQUIRE(file.sync().ok());
                if (!uring) CHECK(!writer.path().uring);
                const std::string found = contents(path);
                REQUIRE(found.size() == kBytes);
                Bytes wrong = 0;
                for (Bytes at = 0; at < kBytes; ++at) {
                    const bool inside = at >= range.begin && at < range.begin + range.bytes;
                    const auto expected = inside ? static_cast<char>(pattern(at)) : '.';
                    wrong += found[at] != expected ? 1 : 0;
                }
                CHECK(wrong == 0);
            }
        }
    }

    TEST_CASE("a file that may not grow is an error with its errno, with io_uring or without") {
        const test_support::TemporaryDirectory folder;
        const Mapping memory = Mapping::own(4 * kMiB).value();
        rlimit before{};
        REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
        const auto handler = std::signal(SIGXFSZ, SIG_IGN);
        const rlimit small{kMiB, before.rlim_max};
        for (const bool uring : {true, false}) {
            DiskWriter writer({memory.data(), memory.size()}, uring);
            const DiskFile file = DiskFile::open(folder.file("large")).value();
            REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
            auto written = writer.write(file, memory.data(), memory.size(), 0);
            const auto finished = writer.finish();
            REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
            if (written.ok()) written = finished;
            REQUIRE(!written.ok());
            CHECK(written.error().code == Errc::kSystem);
            CHECK(written.error().detail == EFBIG);
        }
        std::signal(SIGXFSZ, handler);
    }
}
