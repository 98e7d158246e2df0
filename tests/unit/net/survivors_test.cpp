#include "fabricd/net/survivors.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>

using namespace fabricd;
using namespace std::chrono_literals;

namespace {

Survivors survivors_of(std::uint8_t group, const std::set<unsigned>& ranks) {
    Survivors made;
    made.group[3] = group;
    for (const unsigned rank : ranks) made.ranks[rank / 64] |= std::uint64_t{1} << rank % 64;
    return made;
}

}  // namespace

TEST_SUITE("net.survivors") {
    TEST_CASE("a set of ranks is part of another one when all of its ranks are") {
        std::mt19937 random(7);
        for (int round = 0; round < 2000; ++round) {
            std::set<unsigned> part, whole;
            for (unsigned i = 0; i < random() % 6; ++i) whole.insert(random() % 256);
            for (const unsigned rank : whole) {
                if (random() % 2 == 0) part.insert(rank);
            }
            if (random() % 3 == 0) part.insert(random() % 256);
            const bool is_part =
                std::includes(whole.begin(), whole.end(), part.begin(), part.end());
            CHECK(is_part_of(survivors_of(0, part).ranks, survivors_of(0, whole).ranks) == is_part);
        }
    }

    TEST_CASE("a set comes back from its text, and other texts are none") {
        const RankSet ranks = survivors_of(0, {0, 63, 64, 200, 255}).ranks;
        const std::string text = encode(ranks);
        CHECK(text.size() == 64);
        CHECK(decode_ranks(text) == ranks);
        for (const char* bad : {"", "0", "true"}) CHECK_FALSE(decode_ranks(bad));
        for (const char letter : {'g', ' ', '-', '+', 'x'}) {
            for (const std::size_t at : {0, 15, 16, 63}) {
                std::string wrong = text;
                wrong[at] = letter;
                CHECK_FALSE(decode_ranks(wrong));
            }
        }
        CHECK_FALSE(decode_ranks(text + "0"));
        CHECK(name_of_group(survivors_of(0xab, {})) == "000000ab000000000000000000000000");
    }

    TEST_CASE("a question waits for the store's answer, which stays") {
        SurvivorsDesk desk;
        BootTime now{};
        const Survivors mine = survivors_of(1, {0, 3});
        const Survivors other = survivors_of(2, {1});
        CHECK(desk.ask(mine, now) == Verdict::kPending);
        CHECK(desk.ask(other, now) == Verdict::kPending);
        // In turn, until there is an answer.
        CHECK(desk.next(now) == mine);
        CHECK(desk.next(now) == other);
        CHECK(desk.next(now) == mine);
        desk.answer(mine, true);
        CHECK(desk.next(now) == other);
        desk.answer(other, false);
        CHECK_FALSE(desk.next(now));
        CHECK(desk.ask(mine, now) == Verdict::kTheseGoOn);
        CHECK(desk.ask(other, now) == Verdict::kOthersGoOn);
    }

    TEST_CASE("what no session asks any more is not asked of the store") {
        SurvivorsDesk desk;
        BootTime now{};
        const Survivors mine = survivors_of(1, {0});
        desk.ask(mine, now);
        now += SurvivorsDesk::kForgotten + 1s;
        CHECK_FALSE(desk.next(now));
        CHECK(desk.ask(mine, now) == Verdict::kPending);
        CHECK(desk.next(now) == mine);
    }

    TEST_CASE("there are so many in an hour, and no more") {
        SurvivorsDesk desk;
        BootTime now{};
        for (unsigned i = 0; i < SurvivorsDesk::kMost; ++i) {
            Survivors one = survivors_of(static_cast<std::uint8_t>(i), {1});
            one.group[0] = static_cast<std::uint8_t>(i >> 8);
            CHECK(desk.ask(one, now) == Verdict::kPending);
        }
        const Survivors more = survivors_of(5, {2});
        CHECK(desk.ask(more, now) == Verdict::kTooMany);
        CHECK(desk.ask(survivors_of(5, {1}), now) == Verdict::kPending);
        now += SurvivorsDesk::kKept + 1s;
        CHECK(desk.ask(more, now) == Verdict::kPending);
    }
}
