#include "libfabricshm/os/mapping.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

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

    TEST_CASE("a striped mapping is one range over all files, and refuses what they don't have") {
        constexpr Bytes kStripe = 64 * kKiB;
        constexpr Bytes kSkip = 16 * kKiB;
        const Fd first = file_of(kSkip + 3 * kStripe);
        std::vector<Fd> others;
        for (int i = 0; i < 2; ++i) others.push_back(file_of(kSkip + 3 * kStripe));
        const Stripes stripes{3, kStripe, kSkip};
        // From the middle of a stripe into the middle of one.
        const std::uint64_t offset = kSkip + kStripe + 8 * kKiB;
        const Bytes bytes = 6 * kStripe;
        const auto mapping = Mapping::map(first, others, stripes, offset, bytes, {});
        REQUIRE(mapping.ok());
        // The oracle counts byte by byte, and reads through the files.
        for (Bytes at = 0; at < bytes; at += 4 * kKiB) {
            const auto mark = static_cast<unsigned char>(at / (4 * kKiB) + 1);
            mapping->data()[at] = std::byte{mark};
            Bytes within = offset - kSkip + at;
            std::uint64_t stripe = 0;
            for (; within >= kStripe; within -= kStripe) ++stripe;
            std::uint64_t row = 0;
            for (; stripe >= 3; stripe -= 3) ++row;
            const Fd& file = stripe == 0 ? first : others[stripe - 1];
            unsigned char found = 0;
            const auto place = static_cast<off_t>(kSkip + row * kStripe + within);
            REQUIRE(::pread(file.get(), &found, 1, place) == 1);
            REQUIRE(found == mark);
        }
        const auto code = [&](std::uint64_t from, Bytes length, const Stripes& how) {
            return Mapping::map(first, others, how, from, length, {}).error().code;
        };
        CHECK(code(offset, 8 * kStripe, stripes) == Errc::kCorrupt);
        CHECK(code(0, kStripe, stripes) == Errc::kInvalid);
        CHECK(code(offset, kStripe, {2, kStripe, kSkip}) == Errc::kInvalid);
        CHECK(code(offset, kStripe, {3, kStripe + 1, kSkip}) == Errc::kInvalid);
        CHECK(code(offset, kStripe, {3, 0, kSkip}) == Errc::kInvalid);
    }

    TEST_CASE("another file takes the place of what is mapped, at the same address") {
        const Fd first = file_of(kMiB), second = file_of(2 * kMiB), small = file_of(4096);
        auto mapping = Mapping::map(first, 0, kMiB, {});
        REQUIRE(mapping.ok());
        std::byte* const data = mapping->data();
        data[kMiB - 1] = std::byte{1};
        const char mark = 42;
        REQUIRE(::pwrite(second.get(), &mark, 1, kMiB - 1) == 1);
        // A file that is too short would be a SIGBUS: all is as before.
        CHECK(mapping->replace(small).error().code == Errc::kCorrupt);
        CHECK_FALSE(mapping->replace(Fd()).ok());
        CHECK(data[kMiB - 1] == std::byte{1});
        REQUIRE(mapping->replace(second).ok());
        CHECK(mapping->data() == data);
        CHECK(mapping->size() == kMiB);
        CHECK(data[kMiB - 1] == std::byte{42});
        data[0] = std::byte{7};
        char read = 0;
        REQUIRE(::pread(second.get(), &read, 1, 0) == 1);
        CHECK(read == 7);
        // The first file has what was written before, and no more.
        REQUIRE(::pread(first.get(), &read, 1, 0) == 1);
        CHECK(read == 0);
        REQUIRE(::pread(first.get(), &read, 1, kMiB - 1) == 1);
        CHECK(read == 1);
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
