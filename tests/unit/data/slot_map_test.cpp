#include "fabricd/data/spill/slot_map.hpp"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>

using namespace fabricd;

namespace {

SlotEntry chunk(std::uint64_t file, std::uint32_t number = 0) {
    return {file, number, 0, 100, 5};
}

// A slot with one chunk.
bool fill(SlotMap& map, std::uint64_t file, bool kept, std::vector<ChunkKey>& gone) {
    const auto slot = map.take_slot(kept, gone);
    if (!slot) return false;
    map.add(*slot, chunk(file));
    map.seal(*slot);
    return true;
}

bool fill(SlotMap& map, std::uint64_t file, bool kept = false) {
    std::vector<ChunkKey> gone;
    return fill(map, file, kept, gone);
}

bool has(const SlotMap& map, std::uint64_t file) {
    return map.find({file, 0}).has_value();
}

}  // namespace

TEST_SUITE("data.slot_map") {
    TEST_CASE("a chunk is found where it was put, until it is dropped") {
        SlotMap map(2);
        std::vector<ChunkKey> gone;
        const auto slot = map.take_slot(false, gone);
        REQUIRE(slot);
        map.add(*slot, {7, 3, 4096, 200, 9});
        const auto place = map.find({7, 3});
        REQUIRE(place);
        CHECK(place->slot == *slot);
        CHECK(place->offset == 4096);
        CHECK(place->bytes == 200);
        CHECK(place->checksum == 9);
        CHECK_FALSE(map.find({7, 2}));
        CHECK(map.bytes() == 200);
        map.seal(*slot);
        CHECK(map.free_slots() == 1);
        CHECK(map.drop({7, 3}));
        CHECK_FALSE(map.drop({7, 3}));
        CHECK(map.chunks() == 0);
        CHECK(map.bytes() == 0);
        CHECK(map.free_slots() == 2);
    }

    TEST_CASE("the first that came goes first, but for what was read again") {
        SlotMap map(10);
        for (std::uint64_t file = 1; file <= 10; ++file) REQUIRE(fill(map, file));
        for (int reads = 0; reads < 2; ++reads) {
            const auto place = map.pin({1, 0});
            REQUIRE(place);
            map.unpin(place->slot);
        }
        std::vector<ChunkKey> gone;
        REQUIRE(fill(map, 11, false, gone));
        REQUIRE(gone.size() == 1);
        CHECK(gone[0] == ChunkKey{2, 0});
        CHECK(has(map, 1));
    }

    TEST_CASE("a slot that is read stays until its readers are done") {
        SlotMap map(1);
        REQUIRE(fill(map, 1));
        const auto place = map.pin({1, 0});
        REQUIRE(place);
        CHECK_FALSE(fill(map, 2));
        // Also when its chunk is dropped: the bytes are still being read.
        CHECK(map.drop({1, 0}));
        CHECK(map.free_slots() == 0);
        CHECK_FALSE(fill(map, 2));
        map.unpin(place->slot);
        CHECK(map.free_slots() == 1);
        CHECK(fill(map, 2));
    }

    TEST_CASE("a slot that is being filled stays") {
        SlotMap map(1);
        std::vector<ChunkKey> gone;
        REQUIRE(map.take_slot(false, gone));
        CHECK_FALSE(fill(map, 2));
        CHECK(gone.empty());
    }

    TEST_CASE("kept chunks stay while others can go, and do not go for each other") {
        SlotMap map(3);
        REQUIRE(fill(map, 1, true));
        REQUIRE(fill(map, 2));
        REQUIRE(fill(map, 3, true));
        REQUIRE(fill(map, 4));
        CHECK_FALSE(has(map, 2));
        REQUIRE(fill(map, 5, true));
        CHECK_FALSE(has(map, 4));
        CHECK(map.kept_slots() == 3);
        CHECK_FALSE(fill(map, 6));
        CHECK_FALSE(fill(map, 7, true));
        map.release_kept();
        CHECK(map.kept_slots() == 0);
        CHECK(fill(map, 8));
        CHECK(has(map, 8));
    }

    TEST_CASE("after a restart slots are what they were, and the others free") {
        SlotMap map(3);
        CHECK(map.restore(1, {chunk(1), chunk(2)}));
        CHECK_FALSE(map.restore(1, {chunk(3)}));
        CHECK_FALSE(map.restore(2, {chunk(1)}));  // it is there already
        CHECK_FALSE(map.restore(2, {}));
        CHECK_FALSE(map.restore(3, {chunk(4)}));  // there is no such slot
        CHECK(map.free_slots() == 2);
        CHECK(map.find({2, 0})->slot == 1);
        CHECK(fill(map, 5));
        CHECK(fill(map, 6));
        CHECK(has(map, 1));
        CHECK(fill(map, 7));
        CHECK_FALSE(has(map, 1));
        CHECK_FALSE(has(map, 2));
    }

    // Against a model: a set of chunks for each slot.
    TEST_CASE("whatever is done, a chunk is in one slot, and no slot has two owners") {
        std::mt19937 random(5);
        for (int story = 0; story < 30; ++story) {
            const std::uint32_t slots = 1 + random() % 12;
            SlotMap map(slots);
            std::map<std::pair<std::uint64_t, std::uint32_t>, std::uint32_t> model;  // to slot
            std::map<std::uint32_t, int> pinned;
            std::set<std::uint32_t> open;
            std::set<std::uint32_t> kept;
            for (int step = 0; step < 600; ++step) {
                const std::uint64_t file = 1 + random() % 40;
                const auto number = static_cast<std::uint32_t>(random() % 3);
                const auto known = model.find({file, number});
                switch (random() % 8) {
                    case 0:
                    case 1: {
                        std::vector<ChunkKey> gone;
                        const bool keep = random() % 3 == 0;
                        const auto slot = map.take_slot(keep, gone);
                        std::set<std::uint32_t> left;
                        for (const ChunkKey& key : gone) {
                            const auto lost = model.find({key.file, key.number});
                            REQUIRE(lost != model.end());
                            left.insert(lost->second);
                            model.erase(lost);
                        }
                        REQUIRE(left.size() <= 1);
                        for (const std::uint32_t one : left) {
                            REQUIRE(pinned[one] == 0);
                            REQUIRE(open.count(one) == 0);
                            REQUIRE(kept.count(one) == 0);
                            for (const auto& [key, place] : model) REQUIRE(place != one);
                        }
                        if (!slot) break;
                        for (const auto& [key, place] : model) REQUIRE(place != *slot);
                        REQUIRE(pinned[*slot] == 0);
                        REQUIRE(open.insert(*slot).second);
                        kept.erase(*slot);
                        if (keep) kept.insert(*slot);
                        break;
                    }
                    case 2:
                    case 3:
                    case 4:
                        if (open.empty() || known != model.end()) break;
                        map.add(*open.begin(), chunk(file, number));
                        model[{file, number}] = *open.begin();
                        break;
                    case 5:
                        if (open.empty()) break;
                        map.seal(*open.begin());
                        open.erase(open.begin());
                        break;
                    case 6: {
                        const auto place = map.pin({file, number});
                        REQUIRE(place.has_value() == (known != model.end()));
                        if (place) ++pinned[place->slot];
                        for (auto& [slot, pins] : pinned) {
                            if (pins == 0 || random() % 2 == 0) continue;
                            map.unpin(slot);
                            --pins;
                        }
                        break;
                    }
                    default:
                        REQUIRE(map.drop({file, number}) == (known != model.end()));
                        if (known != model.end()) model.erase(known);
                        if (random() % 50 == 0) {
                            map.release_kept();
                            kept.clear();
                        }
                }
                REQUIRE(map.chunks() == model.size());
                REQUIRE(map.bytes() == 100 * model.size());
            }
            for (const auto& [key, slot] : model) {
                const auto place = map.find({key.first, key.second});
                REQUIRE(place);
                CHECK(place->slot == slot);
            }
        }
    }
}
