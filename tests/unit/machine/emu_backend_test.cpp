#include "libfabricshm/machine/emu_backend.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "libfabricshm/os/mapping.hpp"

using namespace fabricshm;

namespace {

std::unique_ptr<PoolBackend> pool_of(Bytes capacity) {
    EmuOptions options;
    options.capacity = capacity;
    return std::move(make_emu_backend(std::move(options))).value();
}

Bytes committed(const PoolPiece& piece) {
    struct stat status {};
    ::fstat(piece.fd.get(), &status);
    return static_cast<Bytes>(status.st_blocks) * 512;
}

Mapping view(const PoolPiece& piece) {
    return std::move(Mapping::map(piece.fd, piece.file_offset, piece.bytes,
                                  {true, piece.align, piece.huge_page_bytes}))
        .value();
}

}  // namespace

TEST_SUITE("machine.emu_backend") {
    TEST_CASE("a new arena is committed, zero and sealed against a change of its size") {
        auto pool = pool_of(64 * kMiB);
        const auto piece = std::move(pool->create(1, "job", 0, 3 * kMiB)).value();
        CHECK(piece.bytes >= 3 * kMiB);
        CHECK(piece.bytes % piece.align == 0);
        CHECK(committed(piece) >= piece.bytes);
        const Mapping mapping = view(piece);
        CHECK(std::all_of(mapping.data(), mapping.data() + piece.bytes,
                          [](std::byte byte) { return byte == std::byte{0}; }));
        CHECK(::ftruncate(piece.fd.get(), 0) == -1);
        CHECK(::ftruncate(piece.fd.get(), static_cast<off_t>(2 * piece.bytes)) == -1);
    }

    TEST_CASE("a full pool refuses an arena, and has room again after a destroy") {
        auto pool = pool_of(16 * kMiB);
        const auto first = std::move(pool->create(1, "a", 0, 12 * kMiB)).value();
        CHECK(pool->create(2, "b", 0, 8 * kMiB).error().code == Errc::kNoMemory);
        CHECK(pool->totals().used == first.bytes);
        pool->destroy(1);
        pool->destroy(1);
        CHECK(pool->totals().used == 0);
        CHECK(pool->create(2, "b", 0, 8 * kMiB).ok());
    }

    TEST_CASE("destroy gives the pages back even while a client still holds the descriptor") {
        auto pool = pool_of(16 * kMiB);
        const auto piece = std::move(pool->create(1, "a", 0, 4 * kMiB)).value();
        REQUIRE(committed(piece) >= 4 * kMiB);
        pool->destroy(1);
        CHECK(committed(piece) == 0);
    }

    TEST_CASE("an id is given once, and impossible sizes are refused") {
        auto pool = pool_of(16 * kMiB);
        const auto piece = std::move(pool->create(7, "a", 0, 1)).value();
        CHECK(pool->create(7, "a", 0, 1).error().code == Errc::kExists);
        CHECK(pool->create(8, "a", 0, 0).error().code == Errc::kInvalid);
        CHECK(pool->create(8, "a", 0, ~Bytes{0}).error().code == Errc::kInvalid);
        CHECK(pool->create(8, "a", 0, Bytes{1} << 50).error().code == Errc::kNoMemory);
    }

    TEST_CASE("a capacity beyond the machine's memory is refused at the start") {
        EmuOptions options;
        options.capacity = Bytes{1} << 55;
        CHECK(make_emu_backend(options).error().code == Errc::kNoMemory);
    }

    TEST_CASE("the default capacity is half of what is available") {
        EmuOptions options;
        const auto pool = std::move(make_emu_backend(options)).value();
        CHECK(pool->totals().capacity > 0);
    }
}

TEST_SUITE("machine.emu_backend adoption") {
    TEST_CASE("an arena is taken back after a restart with what it holds") {
        PoolPiece kept;
        {
            auto before = pool_of(16 * kMiB);
            const auto piece = std::move(before->create(5, "job", 0, kMiB)).value();
            view(piece).data()[4097] = std::byte{42};
            kept = PoolPiece{std::move(piece.fd.duplicate()).value(), 0, piece.bytes, 0, 0};
        }
        auto after = pool_of(16 * kMiB);
        const auto again = std::move(after->adopt(5, kept.bytes, std::move(kept.fd))).value();
        CHECK(view(again).data()[4097] == std::byte{42});
        CHECK(after->totals().used == again.bytes);
        CHECK(after->adopt(5, kept.bytes, std::move(again.fd.duplicate()).value()).error().code ==
              Errc::kExists);
    }

    TEST_CASE("a descriptor that is not that arena is refused") {
        auto pool = pool_of(16 * kMiB);
        const auto piece = std::move(pool->create(5, "job", 0, kMiB)).value();
        const auto refuses = [&](std::uint64_t id, Bytes bytes, int fd) {
            return pool->adopt(id, bytes, Fd(fd)).error().code == Errc::kCorrupt;
        };
        const auto copy = [&] { return std::move(piece.fd.duplicate()).value().release(); };
        CHECK(refuses(6, piece.bytes, copy()));  // another arena's
        pool->destroy(5);
        CHECK(refuses(5, piece.bytes + 4096, copy()));  // another size
        const std::string link = "/proc/self/fd/" + std::to_string(piece.fd.get());
        CHECK(refuses(5, piece.bytes, ::open(link.c_str(), O_RDONLY | O_CLOEXEC)));
        CHECK(refuses(5, 0, ::open("/dev/null", O_RDWR | O_CLOEXEC)));
        CHECK(refuses(5, piece.bytes, -1));
        const int unsealed = ::memfd_create("fabric-arena-5", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        REQUIRE(::ftruncate(unsealed, static_cast<off_t>(piece.bytes)) == 0);
        CHECK(refuses(5, piece.bytes, unsealed));  // could be shrunk under the others
        CHECK(pool->totals().used == 0);
    }
}
