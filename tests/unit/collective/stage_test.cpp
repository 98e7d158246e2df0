#include "libfabricshm/collective/stage.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <deque>
#include <random>
#include <vector>

using namespace fabricshm;

namespace {

struct Fixture {
    Fixture() { stage.set_memory(memory.data()); }
    std::vector<std::byte> memory = std::vector<std::byte>(Stage::kBytes);
    Stage stage;
};

}  // namespace

TEST_SUITE("collective.stage") {
    TEST_CASE("a stage is filled once and no further, and as a whole once it was read") {
        Fixture fixture;
        CHECK(fixture.stage.reserve(Stage::kBytes) == fixture.memory.data());
        CHECK(fixture.stage.reserve(1) == nullptr);
        fixture.stage.release_until(fixture.stage.head());
        CHECK(fixture.stage.is_empty());
        CHECK(fixture.stage.reserve(Stage::kBytes) == fixture.memory.data());
    }

    TEST_CASE("a piece does not wrap: what is left at the end stays unused") {
        Fixture fixture;
        CHECK(fixture.stage.reserve(Stage::kBytes / 2) != nullptr);
        const Bytes first = fixture.stage.head();
        CHECK(fixture.stage.reserve(Stage::kBytes / 4) != nullptr);
        CHECK(fixture.stage.reserve(Stage::kBytes / 2) == nullptr);
        fixture.stage.release_until(first);
        CHECK(fixture.stage.reserve(Stage::kBytes / 2) == fixture.memory.data());
    }

    TEST_CASE("pieces in flight never overlap, in any order of sizes") {
        Fixture fixture;
        struct Piece {
            std::size_t from;
            std::size_t bytes;
            Bytes head;
        };
        std::deque<Piece> flying;
        std::mt19937 random(7);
        int reserved = 0;
        for (int turn = 0; turn < 20'000; ++turn) {
            const Bytes bytes = 1 + random() % (random() % 4 == 0 ? Stage::kBytes : 4096);
            std::byte* place = fixture.stage.reserve(bytes);
            if (place == nullptr) {
                REQUIRE_FALSE(flying.empty());
                fixture.stage.release_until(flying.front().head);
                flying.pop_front();
                continue;
            }
            ++reserved;
            const auto from = static_cast<std::size_t>(place - fixture.memory.data());
            REQUIRE(from + bytes <= Stage::kBytes);
            for (const Piece& other : flying) {
                REQUIRE((from + bytes <= other.from || other.from + other.bytes <= from));
            }
            flying.push_back({from, bytes, fixture.stage.head()});
        }
        CHECK(reserved > 1000);
    }

    TEST_CASE("memory goes to another stage, and positions stay") {
        Fixture fixture;
        CHECK(fixture.stage.reserve(100) != nullptr);
        const Bytes head = fixture.stage.head();
        fixture.stage.release_until(head);
        CHECK(fixture.stage.take_memory() == fixture.memory.data());
        CHECK(fixture.stage.memory() == nullptr);
        CHECK(fixture.stage.head() == head);
    }
}
