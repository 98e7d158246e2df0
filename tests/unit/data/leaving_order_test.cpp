#include "fabricd/data/blocks/leaving_order.hpp"

#include <doctest/doctest.h>

using namespace fabricd;

namespace {

using Lines = std::vector<std::uint64_t>;

}  // namespace

TEST_SUITE("data.leaving_order") {
    TEST_CASE("what has passed goes first, then what had no plan, then for a reader what is kept") {
        LeavingOrder order(10);
        order.add(1, 10, ChunkKind::kKept);
        order.add(2, 10, ChunkKind::kPassing);
        order.add(3, 10, ChunkKind::kTried);
        order.add(4, 10, ChunkKind::kPassing);
        order.touch(4);
        CHECK(order.next(10, 0) == Lines{4});
        CHECK(order.next(20, 0) == Lines{4, 3});
        order.stays(3);
        CHECK(order.next(30, 0) == Lines{4, 3});
        order.stays(3);
        CHECK(order.next(30, 30) == Lines{4, 3, 1});
        order.stays(3);
        CHECK(order.next(100, 100) == Lines{4, 3, 1, 2});
        order.remove(4);
        order.remove(3);
        CHECK(order.kind(3) == ChunkKind::kNone);
        CHECK(order.next(100, 0).empty());
        CHECK(order.kind(1) == ChunkKind::kKept);
    }

    TEST_CASE("of what plans have no more goes than a reader waits for") {
        LeavingOrder order(10);
        for (std::uint64_t line = 1; line < 5; ++line) order.add(line, 10, ChunkKind::kKept);
        order.add(5, 10, ChunkKind::kTried);
        CHECK(order.next(100, 20) == Lines{5, 1});
        order.stays(5);
        CHECK(order.next(100, 25) == Lines{5, 1, 2});
    }

    TEST_CASE("a chunk that comes back with another kind has that one's place") {
        LeavingOrder order(4);
        order.add(1, 5, ChunkKind::kTried);
        order.remove(1);
        order.add(1, 5, ChunkKind::kKept);
        CHECK(order.next(5, 0).empty());
        CHECK(order.next(5, 5) == Lines{1});
    }
}
