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

Mapping view_of_emulated(const PoolPiece& piece) {
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
        const Mapping mapping = view_of_emulated(piece);
        CHECK(std::all_of(mapping.data(), mapping.data() + piece.bytes,
                          [](std::byte byte) { return byte == std::byte{0}; }));
        CHECK(::ftruncate(piece.fd.get(), 0) == -1);
        CHECK(::ftruncate(piece.fd.get(), static_cast<off_t>(2 * piece.bytes)) == -1);
    }

    TEST_CASE("destroy gives the pages back even while a client still holds the descriptor") {
        auto pool = pool_of(16 * kMiB);
        const auto piece = std::move(pool->create(1, "a", 0, 4 * kMiB)).value();
        REQUIRE(committed(piece) >= 4 * kMiB);
        pool->destroy(1);
        CHECK(committed(piece) == 0);
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

TEST_SUITE("machine.emu_backend growth") {
    TEST_CASE("a large arena has its first step, counts with that, and grows to what is asked") {
        auto pool = pool_of(128 * kMiB);
        const auto piece = std::move(pool->create(1, "job", 0, 100 * kMiB)).value();
        const Bytes first = piece.bytes - piece.uncommitted;
        CHECK(first == kArenaStep);
        CHECK(committed(piece) == first);
        CHECK(pool->totals().used == first);
        const Mapping mapping = view_of_emulated(piece);
        mapping.data()[0] = std::byte{42};
        CHECK(pool->grow(1, 3 * kArenaStep, 4 * kArenaStep).ok());
        CHECK(committed(piece) == 3 * kArenaStep);
        CHECK(pool->totals().used == 3 * kArenaStep);
        CHECK(mapping.data()[0] == std::byte{42});
        CHECK(pool->grow(1, piece.bytes, piece.bytes).ok());
        CHECK(committed(piece) == piece.bytes);
        CHECK(pool->grow(1, piece.bytes, piece.bytes).ok());
        CHECK(pool->grow(1, piece.bytes + 4096, piece.bytes + 4096).error().code == Errc::kInvalid);
        CHECK(pool->grow(2, 4096, 4096).error().code == Errc::kNotFound);
        pool->destroy(1);
        CHECK(pool->totals().used == 0);
        CHECK(committed(piece) == 0);
    }

    TEST_CASE("arenas together are larger than the pool, and what does not fit is not begun") {
        auto pool = pool_of(64 * kMiB);
        const auto one = std::move(pool->create(1, "one", 0, 64 * kMiB)).value();
        const auto two = std::move(pool->create(2, "two", 0, 64 * kMiB)).value();
        CHECK(pool->create(3, "three", 0, 65 * kMiB).error().code == Errc::kNoMemory);
        CHECK(pool->grow(1, 2 * kArenaStep, 4 * kArenaStep).error().code == Errc::kNoMemory);
        CHECK(committed(one) == kArenaStep);
        CHECK(pool->grow(1, 3 * kArenaStep, 3 * kArenaStep).ok());
        CHECK(pool->grow(2, 2 * kArenaStep, 2 * kArenaStep).error().code == Errc::kNoMemory);
        pool->destroy(1);
        CHECK(pool->grow(2, 2 * kArenaStep, 2 * kArenaStep).ok());
    }

    TEST_CASE("an adopted arena loses the pages that its daemon did not live to grant") {
        auto before = pool_of(128 * kMiB);
        const auto piece = std::move(before->create(1, "job", 0, 100 * kMiB)).value();
        CHECK(before->grow(1, 4 * kArenaStep, 4 * kArenaStep).ok());
        view_of_emulated(piece).data()[4097] = std::byte{42};
        auto after = pool_of(128 * kMiB);
        const Bytes known = 2 * kArenaStep;
        const auto again =
            std::move(after->adopt(1, piece.bytes, std::move(piece.fd.duplicate()).value(),
                                   piece.bytes - known))
                .value();
        CHECK(committed(again) == known);
        CHECK(after->totals().used == known);
        CHECK(again.uncommitted == piece.bytes - known);
        CHECK(view_of_emulated(again).data()[4097] == std::byte{42});
        CHECK(after->grow(1, 3 * kArenaStep, 3 * kArenaStep).ok());
    }
}

TEST_SUITE("machine.emu_backend adoption") {
    TEST_CASE("an arena is adopted after a restart with what it holds") {
        PoolPiece kept;
        {
            auto before = pool_of(16 * kMiB);
            const auto piece = std::move(before->create(5, "job", 0, kMiB)).value();
            view_of_emulated(piece).data()[4097] = std::byte{42};
            kept = PoolPiece{std::move(piece.fd.duplicate()).value(), 0, piece.bytes, 0, 0};
        }
        auto after = pool_of(16 * kMiB);
        const auto again = std::move(after->adopt(5, kept.bytes, std::move(kept.fd))).value();
        CHECK(view_of_emulated(again).data()[4097] == std::byte{42});
        CHECK(after->totals().used == again.bytes);
        CHECK(after->adopt(5, kept.bytes, std::move(again.fd.duplicate()).value()).error().code ==
              Errc::kExists);
    }

    TEST_CASE("what an arena is known to have counts once, until it is adopted or destroyed") {
        auto before = pool_of(64 * kMiB);
        const auto piece = std::move(before->create(1, "job", 0, 64 * kMiB)).value();
        CHECK(before->grow(1, 3 * kArenaStep, 3 * kArenaStep).ok());
        auto after = pool_of(64 * kMiB);
        after->expect(1, 3 * kArenaStep);
        after->expect(7, kArenaStep);
        CHECK(after->totals().used == 4 * kArenaStep);
        CHECK(after->create(8, "other", 0, kArenaStep).error().code == Errc::kNoMemory);
        after->destroy(7);
        const auto other = std::move(after->create(8, "other", 0, 2 * kArenaStep)).value();
        CHECK(after->grow(8, 2 * kArenaStep, 2 * kArenaStep).error().code == Errc::kNoMemory);

        const auto copy = [&] { return std::move(piece.fd.duplicate()).value(); };
        const Bytes uncommitted = piece.bytes - 3 * kArenaStep;
        CHECK(after->adopt(1, kMiB, copy(), 0).error().code == Errc::kCorrupt);
        CHECK(after->totals().used == 4 * kArenaStep);  // the right one may still come
        CHECK(after->adopt(1, piece.bytes, copy(), uncommitted).ok());
        CHECK(after->totals().used == 4 * kArenaStep);
        after->destroy(1);
        CHECK(after->totals().used == kArenaStep);
        after->destroy(1);
        CHECK(after->grow(8, 2 * kArenaStep, 2 * kArenaStep).ok());
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
