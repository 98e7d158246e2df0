// Actions of each kind: what they are in the journal, and that no kind is taken for another one.

#include "fabricd/control/journal/action.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "fabricd/control/journal/decision_record.hpp"
#include "libfabricshm/base/crc32c.hpp"

using namespace fabricd;

namespace {

struct Journalled {
    Action action;
    std::size_t bytes;  // of the record
    std::uint32_t crc;
};

// Written by the last version that had lists of numbers in place of types.
std::vector<Journalled> journalled() {
    return {
        {BatchShares{{0.5, 0.5}, {0.1 + 0.2, 0.7}}, 210, 0xf0b7c195},
        {WorkUnits{{8, 8}, {12, 4}}, 210, 0xde35c117},
        {SyncInterval{1, 4}, 194, 0x40c6df57},
        {Alarm{2}, 178, 0xaf941a2a},
        {Drain{1, {0.5, 0.5}, {1, 0}}, 210, 0xe17b0f1b},
        {Placement{{{"1/experts", 0, 1}, {"1/other", 1, 0}}}, 234, 0xc1821207},
        {Quota{{{"a", 1U << 31, 1 << 20}, {"b", 1 << 20, 1U << 31}}}, 220, 0x7c57065d},
        {ComputeShare{{{"a", 60, 55}, {"b", 40, 45}}}, 220, 0x2e02d503},
        {PoolQuota{{{"gpu0", 1ULL << 32, 4096}, {"gpu1", 4096, 1ULL << 32}}}, 226, 0xbe1603b7},
        {Return{1, {1, 0}, {0.95, 0.05}}, 210, 0x1d39d4bb},
        {CacheQuota{{{"data", 1ULL << 33, 1ULL << 32}}}, 202, 0x1b117c81},
        {UnknownAction{{static_cast<ActionKind>(200), 7, {"x"}, {1.5}, {-2.5, 3}}}, 207,
         0x517be7ac},
    };
}

Decision decision_with(const Action& action) {
    Decision decision;
    decision.id = 5;
    decision.window = 6;
    decision.unix_ms = 7;
    decision.action = action;
    decision.arena = 8;
    decision.group = 9;
    decision.device = "gpu0";
    decision.reason = "because";
    decision.facts = {{"S112", "imbalance", 0.3, "", 1}};
    return decision;
}

bool is_unknown(const ActionFrame& frame) {
    const Action action = action_of(frame);
    return kind_of(action) == ActionKind::kUnknown && frame_of(action).kind == frame.kind;
}

}  // namespace

TEST_SUITE("control.journal.action") {
    TEST_CASE("each kind is in the journal as it always was, and comes back as it was written") {
        const auto rows = journalled();
        CHECK(rows.size() == kActionKinds);
        for (const Journalled& row : rows) {
            CAPTURE(info_of(kind_of(row.action)).name);
            const RecordBytes bytes = to_record(decision_with(row.action));
            CHECK(bytes.size() == row.bytes);
            CHECK(fabricshm::crc32c(bytes.data(), bytes.size()) == row.crc);
            const auto back = decision_from(bytes);
            REQUIRE(back);
            CHECK(back->action == row.action);
        }
    }

    TEST_CASE("numbers that a kind cannot have are of an unknown action, and stay as they are") {
        const std::vector<double> one = {1}, half = {0.5}, less = {-1}, none;
        const double nan = std::nan("");
        const auto frame = [](ActionKind kind, std::vector<double> before,
                              std::vector<double> after) {
            return ActionFrame{kind, -1, {}, std::move(before), std::move(after)};
        };
        CHECK_FALSE(is_unknown(frame(ActionKind::kSyncInterval, one, one)));
        CHECK(is_unknown(frame(ActionKind::kSyncInterval, one, none)));
        CHECK(is_unknown(frame(ActionKind::kSyncInterval, one, {1, 2})));
        CHECK(is_unknown(frame(ActionKind::kSyncInterval, one, half)));
        CHECK(is_unknown(frame(ActionKind::kSyncInterval, one, less)));
        CHECK(is_unknown(frame(ActionKind::kSyncInterval, one, {4294967296.0})));
        CHECK(is_unknown(frame(ActionKind::kWorkUnits, one, {1e300})));
        CHECK(is_unknown(frame(ActionKind::kWorkUnits, one, {nan})));
        CHECK(is_unknown(frame(ActionKind::kAlarm, none, one)));
        CHECK(is_unknown({ActionKind::kBatchShares, 3, {}, half, half}));
        CHECK(is_unknown({ActionKind::kBatchShares, -1, {"a"}, half, half}));
        CHECK(is_unknown({ActionKind::kQuota, -1, {"a"}, one, {1, 2}}));
        CHECK(is_unknown({ActionKind::kQuota, -1, {"a", "b"}, {1, 2}, one}));
        CHECK_FALSE(is_unknown({ActionKind::kQuota, -1, {"a"}, one, one}));
        // A share may be any number, also one that no daemon would decide.
        CHECK_FALSE(is_unknown(frame(ActionKind::kBatchShares, {-0.5, 7}, half)));
    }

    TEST_CASE("a kind that this build does not have is none of those that it has") {
        for (int kind = 0; kind < 256; ++kind) {
            const ActionFrame frame{static_cast<ActionKind>(kind), -1, {}, {1}, {2}};
            const ActionInfo& info = info_of(static_cast<ActionKind>(kind));
            const bool is_known = kind != 0 && kind < static_cast<int>(kActionKinds);
            CHECK((info.kind == static_cast<ActionKind>(kind)) == (is_known || kind == 0));
            if (!is_known) CHECK(is_unknown(frame));
            if (!is_known) CHECK(info.scope == ActionScope::kNone);
        }
        CHECK(kind_of(action_of({ActionKind::kSyncInterval, -1, {}, {1}, {2}})) ==
              ActionKind::kSyncInterval);
    }

    TEST_CASE("names and permissions are those of the metrics, the journal and control.actions") {
        const char* names[] = {"unknown",       "batch shares", "work units", "sync interval",
                               "alarm",         "drain",        "placement",  "quota",
                               "compute share", "pool quota",   "return",     "cache quota"};
        REQUIRE(std::size(names) == kActions.size());
        for (std::size_t i = 0; i < kActions.size(); ++i) {
            CHECK(std::strcmp(kActions[i].name, names[i]) == 0);
        }
        CHECK(action_permissions() == std::vector<std::string>{"shares", "units", "sync", "drain",
                                                               "placement", "quota", "compute",
                                                               "pool", "cache"});
    }

    TEST_CASE("what is reversed twice is as before, and changes the other way in between") {
        for (const Journalled& row : journalled()) {
            const Action back = reversed(row.action);
            CHECK(kind_of(back) == kind_of(row.action));
            CHECK(reversed(back) == row.action);
            if (kind_of(back) == ActionKind::kUnknown) continue;
            CHECK(frame_of(back).before == frame_of(row.action).after);
            CHECK(frame_of(back).after == frame_of(row.action).before);
            CHECK(frame_of(back).names == frame_of(row.action).names);
        }
    }

    TEST_CASE("changes can be left out, one or all that change nothing") {
        Action action = Quota{{{"a", 1, 2}, {"b", 3, 3}, {"c", 5, 4}}};
        drop_unchanged(action);
        CHECK(action == Action(Quota{{{"a", 1, 2}, {"c", 5, 4}}}));
        drop_change(action, 0);
        CHECK(action == Action(Quota{{{"c", 5, 4}}}));
        action = SyncInterval{3, 3};  // which has no names
        drop_unchanged(action);
        CHECK(action == Action(SyncInterval{3, 3}));
    }

    TEST_CASE("a whole number is the double's, and the nearest that there is for all others") {
        CHECK(whole_of<std::uint32_t>(7.9) == 7);
        CHECK(whole_of<std::uint32_t>(-1) == 0);
        CHECK(whole_of<std::uint32_t>(std::nan("")) == 0);
        CHECK(whole_of<std::uint32_t>(1e300) == 4294967295U);
        CHECK(whole_of<std::uint64_t>(9007199254740991.0) == 9007199254740991ULL);
        CHECK(whole_of<std::uint64_t>(1e300) == 9007199254740992ULL);
    }
}
