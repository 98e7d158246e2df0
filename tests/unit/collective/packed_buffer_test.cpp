#include "libfabricshm/collective/packed_buffer.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace fabricshm;

namespace {

// An arena that counts; it has `room` bytes for each block.
struct Arena {
    explicit Arena(Bytes room) : memory(room) {}
    ArenaMemory memory_of() {
        return {[this](Bytes bytes) {
                    if (bytes > memory.size()) return static_cast<std::byte*>(nullptr);
                    ++given;
                    return memory.data();
                },
                [this](std::byte*) { ++returned; }};
    }
    std::vector<std::byte> memory;
    int given = 0;
    int returned = 0;
};

}  // namespace

TEST_SUITE("collective.packed_buffer") {
    TEST_CASE("memory is kept until more is needed, then given back") {
        Arena arena(100);
        {
            PackedBuffer buffer(arena.memory_of());
            CHECK(buffer.reserve(0));
            CHECK(arena.given == 0);
            CHECK(buffer.reserve(50));
            CHECK(buffer.reserve(20));
            CHECK(buffer.in_arena());
            CHECK(arena.given == 1);
            CHECK(buffer.reserve(60));
            CHECK(arena.given == 2);
            CHECK(arena.returned == 1);
        }
        CHECK(arena.returned == 2);
    }

    TEST_CASE("without room in the arena it is memory of the process") {
        Arena arena(10);
        PackedBuffer buffer(arena.memory_of());
        CHECK(buffer.reserve(50));
        CHECK(buffer.data() != nullptr);
        CHECK_FALSE(buffer.in_arena());
        PackedBuffer without(ArenaMemory{});
        CHECK(without.reserve(50));
        CHECK(without.data() != nullptr);
    }

    TEST_CASE("memory that peers may still store into is not given back until they are quiet") {
        Arena arena(100);
        {
            PackedBuffer buffer(arena.memory_of());
            CHECK(buffer.reserve(50));
            buffer.set_exposed(true);
        }
        CHECK(arena.returned == 0);
        {
            PackedBuffer buffer(arena.memory_of());
            CHECK(buffer.reserve(50));
            buffer.set_exposed(true);
            buffer.set_exposed(false);
        }
        CHECK(arena.returned == 1);
    }
}
