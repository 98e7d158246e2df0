#include "libfabricshm/client/data_pins.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <set>
#include <thread>
#include <vector>

using namespace fabricshm;

namespace {

struct Pins {
    Pins() : page(std::make_unique<PinPage>()), pins(*page) {}
    std::unique_ptr<PinPage> page;
    DataPins pins;
};

}  // namespace

TEST_SUITE("client.data_pins") {
    TEST_CASE("every slot is given out once, those for reads apart") {
        Pins all;
        std::set<std::size_t> slots;
        while (const auto slot = all.pins.claim()) slots.insert(*slot);
        CHECK(slots.size() == DataPins::kViews);
        CHECK(*slots.rbegin() == DataPins::kViews - 1);
        while (const auto slot = all.pins.claim_kept()) slots.insert(*slot);
        CHECK(slots.size() == kPinSlots);
        CHECK(*slots.rbegin() == kPinSlots - 1);
        CHECK(all.pins.claimed() == kPinSlots);
        all.pins.give_back(17);
        CHECK(all.pins.claim() == 17);
        for (const std::size_t slot : slots) all.pins.give_back(slot);
        CHECK(all.pins.claimed() == 0);
    }

    TEST_CASE("two threads never have the same slot") {
        Pins all;
        std::vector<int> holders(kPinSlots, 0);  // written by the holder alone
        const auto work = [&] {
            for (int i = 0; i < 20'000; ++i) {
                const auto slot = all.pins.claim();
                if (!slot) continue;
                holders[*slot] += 1;
                all.pins.give_back(*slot);
            }
        };
        std::thread one(work);
        std::thread two(work);
        one.join();
        two.join();
        int sum = 0;
        for (const int count : holders) sum += count;
        CHECK(sum == 40'000);
        CHECK(all.pins.claimed() == 0);
    }

    TEST_CASE("hits are counted at once and published by the batch, lines in their order") {
        Pins all;
        for (std::uint64_t line = 0; line < 1000; ++line) {
            const std::size_t slot = all.pins.claim().value();
            all.pins.count_hit(slot, line, 3);
            all.pins.give_back(slot);
        }
        CHECK(all.pins.counts().hits == 1000);
        CHECK(all.pins.counts().bytes == 3000);
        CHECK(all.page->notes[kDataNoteHits] == 1000);
        CHECK(all.page->notes[kDataNotePosition] == 1000);
        for (std::uint64_t line = 1000 - kDataNoteRingWords; line < 1000; ++line) {
            CHECK(all.page->notes[kDataNoteRing + line % kDataNoteRingWords] == line + 1);
        }
    }
}
