#include "fabricd/net/cluster_view.hpp"

#include <doctest/doctest.h>

#include <algorithm>

using namespace fabricd;
using namespace std::chrono_literals;

namespace {

constexpr BootTime kNow{1000s};

/// Two incarnations of "a", and one of "b".
HostTable table_of_two() {
    HostTable table;
    (void)note_record(table, "a", {10, 1, 1, 1, "", "", 0}, kNow);
    (void)note_record(table, "a", {12, 2, 2, 2, "", "", 0}, kNow);
    (void)note_record(table, "b", {11, 3, 3, 3, "", "", 0}, kNow);
    return table;
}

std::vector<Incarnation> own_in(const HostTable& table, const OwnPlace& own) {
    std::vector<Incarnation> marked;
    for (const HostView& view : host_views(table, {}, own, kNow)) {
        if (view.is_self) marked.push_back(view.incarnation);
    }
    return marked;
}

}  // namespace

TEST_SUITE("net.cluster_view") {
    TEST_CASE("a daemon marks its own incarnation, and not another daemon's of its name") {
        const HostTable table = table_of_two();
        CHECK(own_in(table, {"a", 12}) == std::vector<Incarnation>{12});
        CHECK(own_in(table, {"a", 10}) == std::vector<Incarnation>{10});
        CHECK(own_in(table, {"a", 0}).empty());
        CHECK(own_in(table, {"b", 12}).empty());
    }

    TEST_CASE("on a static list the host's own name is marked") {
        HostTable table;
        list_host(table, "a", kNow);
        list_host(table, "b", kNow);
        const auto views = host_views(table, {}, {"b", 0}, kNow);
        REQUIRE(views.size() == 2);
        CHECK_FALSE(views[0].is_self);
        CHECK(views[1].is_self);
    }
}
