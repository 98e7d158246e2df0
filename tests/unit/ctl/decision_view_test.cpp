#include "fabricd/ctl/decision_view.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "fabricd/server/decision_codec.hpp"

using namespace fabricd;
using nlohmann::json;

namespace {

Decision shares() {
    Decision decision;
    decision.id = 17;
    decision.window = 40;
    decision.unix_ms = 1'700'000'000'000;
    decision.action = BatchShares{{0.5, 0.5}, {0.8, 0.2}};
    decision.arena = 1;
    decision.group = 2;
    decision.objective = 100;
    decision.promised = 150;
    decision.gain = 0.5;
    decision.reason = "imbalance 0.37";
    decision.facts = {{"S113", "speed", 400, "samples/s", 0},
                      {"S112", "imbalance", 0.37, "", -1},
                      {"guard", "cost", 0.02, "s", -1}};
    decision.outcome = Outcome::kKept;
    decision.measured = 149;
    decision.outcome_reason = "as good as promised";
    return decision;
}

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_SUITE("ctl.decision_view") {
    TEST_CASE("the table says what changed, what it gained and what became of it") {
        const std::string text = decisions_text({shares()});
        CHECK(has(text, "batch shares"));
        CHECK(has(text, "arena 1 group 2"));
        CHECK(has(text, "30 % of the batch"));
        CHECK(has(text, "50.0 %"));
        CHECK(has(text, "kept"));
        CHECK(decisions_text({}) == "none\n");
    }

    TEST_CASE("why goes through the stages in their order, with numbers and units") {
        const std::string text = why_text(shares());
        CHECK(has(text, "rank 0: 0.5 -> 0.8"));
        CHECK(text.find("S112") < text.find("S113"));
        CHECK(has(text, "rank 0 speed: 400 samples/s"));
        CHECK(has(text, "cost: 20 ms"));
        CHECK(has(text, "kept: 149 samples/s after 100, promised 150 (as good as promised)"));
    }

    TEST_CASE("quotas are named and in bytes, an interval is in steps") {
        Decision quota;
        quota.action = Quota{{{"a", 1 << 20, 2 << 20}, {"b", 2 << 20, 1 << 20}}};
        quota.device = "gpu0";
        CHECK(has(why_text(quota), "a: 1 MiB -> 2 MiB"));
        CHECK(has(decisions_text({quota}), "2 changed"));
        Decision interval;
        interval.action = SyncInterval{1, 4};
        CHECK(has(decisions_text({interval}), "1 -> 4 steps"));
    }

    TEST_CASE("JSON has every number, and survives the way over the admin API") {
        admin::v1::ControlDecision message;
        pack(shares(), message);
        const Decision back = unpack(message);
        CHECK(decisions_json({back}) == decisions_json({shares()}));
        const json parsed = json::parse(decisions_json({back}));
        const auto& decision = parsed["decisions"][0];
        CHECK(decision["id"] == 17);
        CHECK(decision["after"][0] == 0.8);
        CHECK(decision["outcome"] == "kept");
        CHECK(decision["facts"][1]["stage"] == "S112");
    }

    TEST_CASE("a kind of action that only a later daemon knows is shown as unknown") {
        admin::v1::ControlDecision message;
        pack(shares(), message);
        // Cut to a byte it would be that of a kind that there is.
        message.set_kind(259);
        const Decision back = unpack(message);
        CHECK(has(decisions_text({back}), "unknown"));
        CHECK(has(why_text(back), "unknown"));
        CHECK_FALSE(has(decisions_text({back}), "batch shares"));
        CHECK(json::parse(decisions_json({back}))["decisions"][0]["kind"] == "unknown");
    }

    TEST_CASE("a replay shows the same, the missing and the new, and says what it cannot know") {
        const std::vector<Decision> then = {shares()};
        std::vector<Decision> now = {shares(), shares()};
        now[1].window = 50;
        const std::string text = replay_text(compare(then, now), 60);
        CHECK(has(text, "same"));
        CHECK(has(text, "only now"));
        CHECK(has(text, "60 windows, 2 decisions, 1 the same"));
        CHECK(has(replay_text(compare(then, {}), 60), "not now"));
        const json parsed = json::parse(replay_json(compare(then, now), 60));
        CHECK(parsed["decisions"][1]["then"].is_null());
    }
}
