// Replays against the loop that made the journal: the oracle is the run itself, with actuators that
// refuse now and then, daemons that start again, and stretches of which nothing is in the journal.

#include "fabricd/control/loop/replay.hpp"

#include <doctest/doctest.h>

#include <optional>

#include "fabricd/control/loop/loop.hpp"
#include "tests/support/decision_values.hpp"
#include "tests/unit/control/adversarial.hpp"

using namespace fabricd;
using namespace control_test;

namespace {

ControlConfig acting() {
    ControlConfig config;
    config.mode = "on";
    config.actions = "quota,pool,placement";
    return config;
}

/// A device with one user, which is refused memory.
QuotaDevice short_of_memory(const std::string& name, double quota = 1e9) {
    return {name, 8e9, 0, {{"a", quota, 0.95 * quota, 1e9, 1, 0, 0, 0, 1, 0}}};
}

/// A pool in which "a" is refused memory and "b" has some to lend.
PoolWindow short_pool() {
    return {{{"a", 1e8, 1e8, 5e7, 10, 0, 0, 0, 1, 0}, {"b", 3e8, 2e7, 0, 10, 0, 0, 0, 1, 0}},
            {1e9, 1e9}};
}

/// A loop, and the journal of it as Controller would write it.
class Run {
  public:
    explicit Run(ControlConfig config) : config_(std::move(config)) { begin(); }

    /// Another daemon goes on with the journal.
    void begin() {
        loop.emplace(config_, story.decisions.size());
        story.starts.push_back({"", story.windows.size(), true});
        had_news_ = false;
    }

    /// `refuses`: whether what was decided about this one is refused.
    template <typename Refuses>
    void tick(const Window& window, Refuses refuses) {
        TickResult result = loop->tick(window);
        const bool has_news = loop->watches(window);
        const bool is_written = has_news || had_news_;
        had_news_ = has_news;
        if (is_written) story.windows.push_back(window);
        for (const DecisionOutcome& outcome : result.outcomes) end(outcome);
        const std::size_t first = story.decisions.size();
        for (Decision& decision : result.decisions) {
            story.decisions.push_back(std::move(decision));
        }
        for (std::size_t i = first; i < story.decisions.size(); ++i) {
            const std::uint64_t id = story.decisions[i].id;
            if (!refuses(story.decisions[i])) continue;
            const std::string why = "no " + std::to_string(id);
            end(loop->failed(id, why));
            story.failures.push_back({story.windows.size() - 1, id, why});
        }
    }

    JournalStory story;
    std::optional<Loop> loop;

  private:
    void end(const DecisionOutcome& outcome) {
        for (Decision& decision : story.decisions) {
            if (decision.id != outcome.id) continue;
            decision.outcome = outcome.outcome;
            decision.measured = outcome.measured;
            decision.outcome_reason = outcome.reason;
        }
    }

    ControlConfig config_;
    bool had_news_ = false;
};

void check_same(const JournalStory& story, const std::vector<Decision>& now) {
    REQUIRE(now.size() == story.decisions.size());
    for (std::size_t i = 0; i < now.size(); ++i) {
        const Decision& then = story.decisions[i];
        CAPTURE(then.window);
        CHECK(now[i].id == then.id);
        CHECK(now[i].window == then.window);
        CHECK(kind_of(now[i]) == kind_of(then));
        CHECK(now[i].device == then.device);
        CHECK(after_of(now[i]) == after_of(then));
        CHECK(now[i].outcome == then.outcome);
        CHECK(now[i].measured == then.measured);
        CHECK(now[i].outcome_reason == then.outcome_reason);
    }
}

Decision decision_about(Action action, const std::string& device, std::uint64_t window) {
    Decision decision;
    decision.window = window;
    decision.action = std::move(action);
    decision.device = device;
    return decision;
}

const auto kNobody = [](const Decision&) { return false; };

}  // namespace

TEST_SUITE("control.loop.replay") {
    TEST_CASE("a replay repeats a run with refusals, restarts and quiet stretches") {
        for (std::uint64_t seed = 1; seed <= 4; ++seed) {
            CAPTURE(seed);
            Numbers numbers(seed);
            ControlConfig config = acting();
            config.cool_down = 3;
            config.probation = 2;
            Run run(config);
            std::size_t refused = 0;
            std::uint64_t number = 1000 * seed;
            for (int i = 0; i < 400; ++i) {
                // A daemon's numbers begin again; one that was idle at first is above the last one.
                if (i % 150 == 149) run.begin();
                if (i == 149) number = 0;
                Window window;
                window.number = ++number;
                const bool is_quiet = i % 40 >= 30;
                for (const char* name : {"gpu0", "gpu1", "gpu2"}) {
                    const bool is_short = numbers.below(2) == 0;
                    if (!is_quiet && is_short) window.devices.push_back(short_of_memory(name));
                }
                if (!is_quiet && numbers.below(2) == 0) window.pool = short_pool();
                run.tick(window, [&](const Decision&) {
                    const bool refuses = numbers.below(3) == 0;
                    refused += refuses ? 1 : 0;
                    return refuses;
                });
            }
            CHECK(run.story.decisions.size() > 50);
            CHECK(refused > 15);
            CHECK(run.story.windows.size() < 380);
            check_same(run.story, replay(run.story, config));
        }
    }

    TEST_CASE("a refusal is of the decision that it was about, not of another of its window") {
        for (const std::string refused : {"gpu0", "gpu1"}) {
            CAPTURE(refused);
            Run run(acting());
            Window window;
            window.number = 1;
            window.devices = {short_of_memory("gpu0"), short_of_memory("gpu1")};
            run.tick(window, [&](const Decision& one) { return one.device == refused; });
            const auto now = replay(run.story, acting());
            REQUIRE(now.size() == 2);
            for (const Decision& decision : now) {
                const bool is_it = decision.device == refused;
                CHECK(decision.outcome == (is_it ? Outcome::kFailed : Outcome::kPending));
            }
        }
    }

    TEST_CASE("a refusal of a decision that is not in the journal any more is of none") {
        Run run(acting());
        Window window;
        window.number = 1;
        window.devices = {short_of_memory("gpu0")};
        run.tick(window, kNobody);
        run.story.failures.push_back({0, 77, "too late"});
        CHECK(replay(run.story, acting())[0].outcome == Outcome::kPending);
    }

    TEST_CASE("what would not be applied is not refused either") {
        Run run(acting());
        Window window;
        window.number = 1;
        window.devices = {short_of_memory("gpu0")};
        run.tick(window, [](const Decision&) { return true; });
        ControlConfig dry = acting();
        dry.mode = "dry-run";
        const auto now = replay(run.story, dry);
        REQUIRE(now.size() == 1);
        CHECK(now[0].outcome == Outcome::kNotApplied);
    }

    TEST_CASE("a wait ends in a quiet stretch as it did then, however high the numbers are") {
        for (const std::uint64_t begin : {1U, 5000U}) {
            CAPTURE(begin);
            ControlConfig config = acting();
            if (begin > 1) config.probation = 160;  // as long as the wait, or longer
            Run run(config);
            const auto refuse = [](const Decision&) { return true; };
            for (std::uint64_t n = begin; n < begin + 60; ++n) {
                Window window;
                window.number = n;
                // Fifteen of the twenty windows of rest are quiet, of which the first is written.
                const bool is_quiet = n > begin && n <= begin + 15;
                if (!is_quiet) window.pool = short_pool();
                run.tick(window, refuse);
            }
            REQUIRE(run.story.decisions.size() == 3);
            CHECK(run.story.decisions[1].window == begin + 20);
            CHECK(run.story.windows.size() == 46);
            check_same(run.story, replay(run.story, config));
        }
    }

    TEST_CASE("a gap behind a window with news is of windows that are unknown") {
        Run run(acting());
        Window window;
        window.pool = short_pool();
        window.number = 1;
        run.tick(window, [](const Decision&) { return true; });
        // Were the gap taken for quiet windows, the wait would be over.
        JournalStory story = run.story;
        window.number = 100;
        story.windows.push_back(window);
        CHECK(replay(story, acting()).size() == 1);
        // As it is when nothing was in the window before.
        Window empty;
        empty.number = 2;
        story.windows.insert(story.windows.begin() + 1, empty);
        CHECK(replay(story, acting()).size() == 2);
    }

    TEST_CASE("settings at the head of a file begin no other loop unless the numbers do") {
        const auto decided = [](bool is_daemons, std::uint64_t number, bool is_head = true) {
            JournalStory story;
            Window window;
            window.devices = {short_of_memory("gpu0")};
            story.starts = {{"", 0, true}};
            if (is_head) story.starts.push_back({"", 1, is_daemons});
            for (const std::uint64_t n : {std::uint64_t{5}, number}) {
                window.number = n;
                story.windows.push_back(window);
            }
            return replay(story, acting());
        };
        // The action of the first window is on probation unless another loop has begun.
        CHECK(decided(false, 6).size() == 1);
        CHECK(decided(true, 6).size() == 2);
        CHECK(decided(false, 5).size() == 2);
        CHECK(decided(false, 1).size() == 2);
        CHECK(decided(false, 1)[1].id == 2);
        CHECK(decided(false, 5, false).size() == 1);
    }

    TEST_CASE("decisions are paired by window, kind, subject and direction, each once") {
        using Side = ReplayDifference::Side;
        const auto quota = [](std::uint64_t window, const char* device) {
            return decision_about(Quota{}, device, window);
        };
        const auto sides = [](const std::vector<Decision>& then, const std::vector<Decision>& now) {
            std::vector<Side> found;
            for (const auto& difference : compare(then, now)) found.push_back(difference.side);
            return found;
        };
        const std::vector<Side> apart = {Side::kOnlyThen, Side::kOnlyNow};
        CHECK(sides({quota(4, "gpu0")}, {quota(4, "gpu0")}) == std::vector<Side>{Side::kBoth});
        CHECK(sides({quota(4, "gpu0")}, {quota(4, "gpu1")}) == apart);
        CHECK(sides({quota(4, "gpu0")}, {quota(5, "gpu0")}) == apart);
        const Decision share = decision_about(ComputeShare{}, "gpu0", 4);
        CHECK(sides({quota(4, "gpu0")}, {share}) == apart);
        Decision back = quota(4, "gpu0");
        back.undoes = 3;
        CHECK(sides({quota(4, "gpu0")}, {back}) == apart);
        // Two of one window about one subject: by their order.
        CHECK(sides({quota(4, "gpu0")}, {quota(4, "gpu0"), quota(4, "gpu0")}) ==
              std::vector<Side>{Side::kBoth, Side::kOnlyNow});
        CHECK(sides({quota(4, "gpu0"), quota(4, "gpu0")}, {quota(4, "gpu0")}) ==
              std::vector<Side>{Side::kBoth, Side::kOnlyThen});
        // In the order of windows, whatever run made them.
        CHECK(sides({quota(2, "gpu0"), quota(6, "gpu0")}, {quota(1, "gpu0"), quota(4, "gpu0")}) ==
              std::vector<Side>{Side::kOnlyNow, Side::kOnlyThen, Side::kOnlyNow, Side::kOnlyThen});
        // Those of one window in the order in which they were made.
        const std::vector<Decision> two = {quota(4, "gpu0"), quota(4, "gpu1")};
        const auto pairs = compare(two, two);
        REQUIRE(pairs.size() == 2);
        CHECK(pairs[0].then == &two[0]);
        CHECK(pairs[1].then == &two[1]);
    }
}
