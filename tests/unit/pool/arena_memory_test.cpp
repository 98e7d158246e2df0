#include "fabricd/pool/arena_memory.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "libfabricshm/os/mapping.hpp"

using namespace fabricd;
using fabricshm::Bytes;
using fabricshm::Errc;
using fabricshm::GroupBlockInfo;

namespace {

constexpr ArenaId kArena{3};

fabricshm::PoolPiece piece_of(Bytes bytes) {
    fabricshm::PoolPiece piece;
    piece.fd = fabricshm::Fd(::memfd_create("test", MFD_CLOEXEC));
    piece.bytes = bytes;
    REQUIRE(::ftruncate(piece.fd.get(), static_cast<off_t>(bytes)) == 0);
    return piece;
}

}  // namespace

TEST_SUITE("pool.arena_memory") {
    TEST_CASE("a group block is made where the offset says") {
        const Bytes block = fabricshm::group_block_bytes(2);
        const fabricshm::PoolPiece piece = piece_of(2 * block);
        MappedArenas arenas;
        REQUIRE(arenas.add(kArena, piece).ok());
        REQUIRE(arenas.format_group(kArena, block, GroupBlockInfo{11, 4, 2}).ok());
        const auto view = fabricshm::Mapping::map(piece.fd, 0, piece.bytes, {});
        REQUIRE(view.ok());
        const auto* header = reinterpret_cast<const fabricshm::GroupHeader*>(view->data() + block);
        CHECK(header->group_id == 11);
        CHECK(header->epoch == 4);
        CHECK(view->data()[0] == std::byte{0});
    }

    TEST_CASE("what the daemon writes is published where hosts share the pool") {
        struct Noted final : fabricshm::VisibilityPolicy {
            void publish(const fabricshm::Access& access) noexcept override {
                published.push_back(access);
            }
            void acquire(const fabricshm::Access& access) noexcept override {
                acquired.push_back(access);
            }
            bool coherent() const noexcept override { return false; }
            std::vector<fabricshm::Access> published;
            std::vector<fabricshm::Access> acquired;
        };
        const auto policy = std::make_shared<Noted>();
        const Bytes block = fabricshm::group_block_bytes(2);
        MappedArenas arenas(policy);
        REQUIRE(arenas.add(kArena, piece_of(2 * block)).ok());
        REQUIRE(arenas.format_group(kArena, block, GroupBlockInfo{11, 4, 2}).ok());
        REQUIRE(policy->published.size() == 1);
        CHECK(policy->published[0].touch == fabricshm::TouchPoint::kBlockFormat);
        CHECK(policy->published[0].offset == block);
        // Nothing of it stays in this host's caches, what the format leaves as it was neither.
        REQUIRE(policy->acquired.size() == 1);
        CHECK(policy->acquired[0].touch == fabricshm::TouchPoint::kRegionReturn);
        CHECK(policy->acquired[0].offset == block);
        CHECK(policy->acquired[0].bytes == block);
        arenas.mark_dead(kArena, block, 2, 1);
        REQUIRE(policy->published.size() == 2);
        CHECK(policy->published[1].touch == fabricshm::TouchPoint::kDead);
        CHECK(policy->published[1].bytes == fabricshm::kCacheLine);
        CHECK(policy->published[1].offset > block);
    }

    TEST_CASE("an offset beyond the arena is refused, wherever it came from") {
        const Bytes block = fabricshm::group_block_bytes(2);
        MappedArenas arenas;
        REQUIRE(arenas.add(kArena, piece_of(block)).ok());
        for (const std::uint64_t offset : {std::uint64_t{4096}, block, ~std::uint64_t{4095}}) {
            const auto made = arenas.format_group(kArena, offset, GroupBlockInfo{1, 1, 2});
            REQUIRE_FALSE(made.ok());
            CHECK(made.error().code == Errc::kCorrupt);
        }
        arenas.mark_dead(kArena, block, 2, 1);  // only logged
    }

    TEST_CASE("an arena that is not here is busy, not a crash") {
        MappedArenas arenas;
        const auto made = arenas.format_group(kArena, 0, GroupBlockInfo{1, 1, 2});
        REQUIRE_FALSE(made.ok());
        CHECK(made.error().code == Errc::kBusy);
        REQUIRE(arenas.add(kArena, piece_of(fabricshm::group_block_bytes(2))).ok());
        CHECK(arenas.format_group(kArena, 0, GroupBlockInfo{1, 1, 2}).ok());
        arenas.remove(kArena);
        arenas.remove(kArena);
        CHECK_FALSE(arenas.format_group(kArena, 0, GroupBlockInfo{1, 1, 2}).ok());
    }

    TEST_CASE("a hole that a client punched is filled again before it is touched") {
        const Bytes bytes = fabricshm::group_block_bytes(2);
        const fabricshm::PoolPiece piece = piece_of(bytes);
        MappedArenas arenas;
        REQUIRE(arenas.add(kArena, piece).ok());
        REQUIRE(::fallocate(piece.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                            static_cast<off_t>(bytes)) == 0);
        CHECK(arenas.format_group(kArena, 0, GroupBlockInfo{1, 1, 2}).ok());
    }
}
