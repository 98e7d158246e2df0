#include "fabricd/pool/wait_list.hpp"

#include <doctest/doctest.h>

using namespace fabricd;
using namespace std::chrono_literals;

namespace {

constexpr TimePoint kNow{1h};

WaitKey key(const char* name) {
    return {WaitKind::kTensor, ArenaId{1}, name, GroupId::kNone};
}

Wait wait_of(std::uint64_t session, const char* name, Duration length) {
    Wait wait;
    wait.ticket.session = SessionId{session};
    wait.deadline = fabricshm::deadline_after(kNow, length);
    wait.key = key(name);
    return wait;
}

}  // namespace

TEST_SUITE("pool.wait_list") {
    TEST_CASE("waits are found by key in the order they came, and by session") {
        WaitList list;
        const auto first = list.add(wait_of(1, "a", 5s));
        const auto second = list.add(wait_of(2, "a", 3s));
        const auto other = list.add(wait_of(1, "b", 4s));
        CHECK(list.with_key(key("a")) == std::vector<WaitId>{first, second});
        CHECK(list.of(SessionId{1}) == std::vector<WaitId>{first, other});
        CHECK(list.count_of(SessionId{2}) == 1);
        CHECK(list.with_key(key("c")).empty());
    }

    TEST_CASE("the earliest deadline expires first, and only when it has come") {
        WaitList list;
        list.add(wait_of(1, "a", 5s));
        const auto soon = list.add(wait_of(1, "a", 3s));
        CHECK(list.next_deadline() == kNow + 3s);
        CHECK_FALSE(list.expired(kNow + 2s).has_value());
        CHECK(list.expired(kNow + 3s) == soon);
        list.take(soon);
        CHECK(list.next_deadline() == kNow + 5s);
    }

    TEST_CASE("a wait is taken once and leaves nothing behind") {
        WaitList list;
        const auto id = list.add(wait_of(1, "a", Duration::max()));
        CHECK(list.take(id).has_value());
        CHECK_FALSE(list.take(id).has_value());
        CHECK(list.empty());
        CHECK(list.with_key(key("a")).empty());
        CHECK(list.count_of(SessionId{1}) == 0);
        CHECK(list.next_deadline() == TimePoint::max());
    }
}
