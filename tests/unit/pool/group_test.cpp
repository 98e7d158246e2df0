#include "fabricd/pool/group.hpp"

#include <doctest/doctest.h>

using namespace fabricd;

namespace {

Group of(std::vector<Member> members) {
    Group group;
    group.members = std::move(members);
    return group;
}

constexpr SessionId kA{1};
constexpr SessionId kB{2};

}  // namespace

TEST_SUITE("pool.group") {
    TEST_CASE("wanted ranks are kept and the others fill the gaps in order of arrival") {
        CHECK(assign_ranks({-1, 0, -1, 3}) == std::vector<int>{1, 0, 2, 3});
        CHECK(assign_ranks({-1, -1}) == std::vector<int>{0, 1});
        CHECK(assign_ranks({1, 0}) == std::vector<int>{1, 0});
        CHECK(assign_ranks({}).empty());
    }

    TEST_CASE(
        "a group endangers the memory of every session that was in it, until all others are gone") {
        Group group = of({{kA, MemberState::kDead}, {kB, MemberState::kLive}});
        CHECK(group.endangers(kA));
        CHECK_FALSE(group.endangers(SessionId{3}));
        group.members[0].state = MemberState::kLeft;
        CHECK(group.endangers(kA));
        group.members[1].state = MemberState::kLeft;
        CHECK_FALSE(group.endangers(kA));
    }

    TEST_CASE("survivors that moved on to a smaller group endanger nothing") {
        Group group = of({{kA, MemberState::kDead}, {kB, MemberState::kLive}});
        group.shrunk = true;
        CHECK_FALSE(group.endangers(kA));
    }

    TEST_CASE("a session with several ranks says which one it speaks for") {
        const Group group =
            of({{kA, MemberState::kLeft}, {kA, MemberState::kLive}, {kA, MemberState::kLive}});
        CHECK(group.live_rank_of(kA, 2) == 2);
        CHECK(group.live_rank_of(kA, 0) == 1);
        CHECK_FALSE(group.live_rank_of(kB, 0).has_value());
    }
}
