#include "fabricd/data/blocks/leaving_order.hpp"

#include <doctest/doctest.h>

using namespace fabricd;

namespace {

using Lines = std::vector<std::uint64_t>;

}  // namespace

TEST_SUITE("data.leaving_order") {
    TEST_CASE("what has passed goes first, then what had no plan, then for a reader all else") {
        LeavingOrder order(10);
        order.add(1, 10, ChunkKind::kKept);
        order.add(2, 10, ChunkKind::kPassing);
        order.add(3, 10, ChunkKind::kTried);
        order.add(4, 10, ChunkKind::kPassing);
        order.touch(4);
        CHECK(order.next(10, false) == Lines{4});
        CHECK(order.next(20, false) == Lines{4, 3});
        order.stays(3);
        CHECK(order.next(30, false) == Lines{4, 3});
        order.stays(3);
        CHECK(order.next(30, true) == Lines{4, 3, 2});
        order.stays(3);
        CHECK(order.next(100, true) == Lines{4, 3, 2, 1});
        order.remove(4);
        order.remove(3);
        CHECK(order.kind(3) == ChunkKind::kNone);
        CHECK(order.next(100, false).empty());
        CHECK(order.kind(1) == ChunkKind::kKept);
    }

    TEST_CASE("a chunk that comes back with another kind has that one's place") {
        LeavingOrder order(4);
        order.add(1, 5, ChunkKind::kTried);
        order.remove(1);
        order.add(1, 5, ChunkKind::kKept);
        CHECK(order.next(5, false).empty());
        CHECK(order.next(5, true) == Lines{1});
    }
}
