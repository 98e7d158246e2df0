#include "fabricd/control/loop/controller.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "fabricd/control/loop/control_metrics.hpp"
#include "fabricd/control/loop/page_actuator.hpp"
#include "fabricd/control/loop/replay.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/unit/control/emulated_job.hpp"

using namespace fabricd;
using namespace control_test;

namespace {

/// Pages of an emulated job, as counters; and what carries its directives out.
class EmulatedHost : public Actuators {
  public:
    explicit EmulatedHost(std::vector<double> speeds) : job(std::move(speeds)) {}

    void advance() {
        ++sample_.number;
        sample_.taken_ns += 1'000'000'000;
        sample_.sessions.resize(is_idle ? 0 : job.speeds.size());
        if (is_idle) return;
        for (const RankWindow& rank : job.job().ranks) {
            auto& session = sample_.sessions[static_cast<std::size_t>(rank.rank)];
            auto& image = session.image;
            session.session_id = rank.session;
            session.page_number = 1;
            session.member = true;
            session.stale = false;
            image.arena_id = 1;
            image.group_id = job.group;
            image.rank = rank.rank;
            image.world = static_cast<std::int32_t>(job.speeds.size());
            image.steps += static_cast<std::uint64_t>(rank.steps);
            // Whole samples, as a sampler would make them.
            image.samples += static_cast<std::uint64_t>(rank.samples + 0.5);
            image.step_ns += static_cast<std::int64_t>(rank.step_s * 1e9);
            image.compute_ns += static_cast<std::int64_t>(rank.compute_s * 1e9);
            image.wait_ns += static_cast<std::int64_t>(rank.wait_s * 1e9);
            image.directive_serial = rank.directive_serial;
        }
    }

    fabricshm::Result<void> direct(const Directive& directive) override {
        if (fails) return fabricshm::Error{fabricshm::Errc::kNotFound, 0, "direct"};
        job.follow(directive);
        return {};
    }

    ControllerParts parts(const std::string& journal) {
        ControllerParts parts;
        parts.look = [this](const std::function<void(const Sample&)>& reader) {
            advance();
            reader(sample_);
        };
        parts.actuators = this;
        parts.journal_path = journal;
        parts.settings = "control.mode=on\n";
        return parts;
    }

    EmulatedJob job;
    bool fails = false;
    bool is_idle = false;  // no session is open

  private:
    Sample sample_;
};

/// A host without sessions: windows are what the test puts into them.
class QuietHost : public Actuators {
  public:
    using Fill = std::function<void(Window&)>;
    explicit QuietHost(Fill fill) : fill_(std::move(fill)) {}

    fabricshm::Result<void> shift_quotas(const Quota& action) override {
        if (quota_error) return *quota_error;
        quota = static_cast<double>(action.changes.front().after);
        return {};
    }
    fabricshm::Result<void> shift_pool_quotas(const PoolQuota&) override {
        return fabricshm::Error{fabricshm::Errc::kBusy, 0, "a device uses more by now"};
    }
    fabricshm::Result<void> set_compute_share(const std::string& user, unsigned percent) override {
        if (user == refuses) return share_error;
        shares[user] = percent;
        return {};
    }
    fabricshm::Result<void> move_shard(const std::string&, const std::string&) override {
        return fabricshm::Error{fabricshm::Errc::kNoMemory, 0, "move shard"};
    }

    ControllerParts parts(const std::string& journal) {
        ControllerParts parts;
        parts.look = [this](const std::function<void(const Sample&)>& reader) {
            ++sample_.number;
            sample_.taken_ns += 1'000'000'000;
            reader(sample_);
        };
        parts.complete = fill_;
        parts.actuators = this;
        parts.journal_path = journal;
        return parts;
    }

    double quota = 1e9;
    std::map<std::string, unsigned> shares;
    std::string refuses;  // whose share can't be set
    fabricshm::Error share_error{fabricshm::Errc::kNotFound, 0, "set"};
    std::optional<fabricshm::Error> quota_error;

  private:
    Fill fill_;
    Sample sample_;
};

/// Two nodes and shards at the first of them that the second reads.
PlacementWindow shards_to_move(std::size_t count = 1) {
    PlacementWindow placement;
    placement.nodes = {{"near", 1, 0}, {"far", 1, 1e9}};
    placement.bandwidth = {0, 1e9, 1e9, 0};
    for (std::size_t i = 0; i < count; ++i) {
        placement.shards.push_back({i, 1e6, 0, 0, {0, 1e8}, "job/" + std::to_string(i), false});
    }
    return placement;
}

/// That a replay decides what was decided, and comes to the same outcomes.
void check_replay(const std::string& path, const ControlConfig& config) {
    const auto story = read_decision_journal(path).value();
    const auto now = replay(story, config);
    for (const auto& difference : compare(story.decisions, now)) {
        REQUIRE(difference.side == ReplayDifference::Side::kBoth);
        CAPTURE(difference.then->window);
        CHECK(difference.same_values);
        CHECK(difference.now->outcome == difference.then->outcome);
        CHECK(difference.now->outcome_reason == difference.then->outcome_reason);
    }
}

ControlConfig acting() {
    ControlConfig config;
    config.mode = "on";
    return config;
}

void step(Controller& controller, int times) {
    for (int i = 0; i < times; ++i) controller.step();
}

}  // namespace

TEST_SUITE("control.loop.controller") {
    TEST_CASE("from pages to directives and back: the job reaches the sum of its speeds") {
        EmulatedHost host({400, 400, 200, 100});
        host.job.batch = 1000;
        Controller controller(acting(), host.parts(""));
        step(controller, 30);
        CHECK(host.job.samples_per_s > 0.95 * host.job.ideal());
        const auto decisions = controller.decisions(0);
        REQUIRE(decisions.size() == 1);
        CHECK(decisions[0].outcome == Outcome::kKept);
        CHECK(decisions[0].measured > 0.9 * host.job.ideal());
        CHECK(decisions[0].unix_ms > 0);
        CHECK(controller.decision(decisions[0].id)->reason == decisions[0].reason);
        CHECK_FALSE(controller.decision(99));
        CHECK(controller.counters().jobs == 1);
        const std::string metrics = control_metrics(controller.counters());
        CHECK(metrics.find("decisions_total{kind=\"batch_shares\"} 1\n") != std::string::npos);
        CHECK(metrics.find("outcomes_total{outcome=\"kept\"} 1\n") != std::string::npos);
    }

    TEST_CASE("the journal has the same story, and a successor goes on with it") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        EmulatedHost host({400, 400, 200, 100});
        {
            Controller controller(acting(), host.parts(path));
            step(controller, 8);
            CHECK(controller.decisions(0).size() == 1);
        }
        const auto story = read_decision_journal(path).value();
        CHECK(story.windows.size() == 8);
        CHECK(story.decisions.size() == 1);
        Controller successor(acting(), host.parts(path));
        REQUIRE(successor.decisions(0).size() == 1);
        CHECK(successor.decisions(0)[0].outcome == Outcome::kUnjudged);
        host.job.speeds[0] = 100;
        step(successor, 20);
        REQUIRE(successor.decisions(0).size() >= 2);
        CHECK(successor.decisions(1)[0].id > 1);
    }

    TEST_CASE(
        "a replay with the same settings decides the same, with others it says what differs") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        EmulatedHost host({400, 400, 200, 100});
        {
            Controller controller(acting(), host.parts(path));
            step(controller, 30);
            host.job.speeds[1] = 337;  // no leap: three windows have to show it
            step(controller, 30);
        }
        const auto story = read_decision_journal(path).value();
        REQUIRE(story.decisions.size() >= 2);
        const auto same = replay(story, acting());
        for (const auto& difference : compare(story.decisions, same)) {
            CHECK(difference.same_values);
        }
        CHECK(same[0].outcome == Outcome::kKept);
        ControlConfig timid = acting();
        timid.gain = 5;
        const auto none = replay(story, timid);
        CHECK(none.empty());
        const auto differences = compare(story.decisions, none);
        CHECK(differences.size() == story.decisions.size());
        CHECK(differences[0].side == ReplayDifference::Side::kOnlyThen);
        ControlConfig hasty = acting();
        hasty.imbalance_windows = 1;
        bool earlier = false;
        const auto sooner = replay(story, hasty);
        for (const auto& difference : compare(story.decisions, sooner)) {
            earlier = earlier || difference.side == ReplayDifference::Side::kOnlyNow;
        }
        CHECK(earlier);
    }

    TEST_CASE("an actuator that refuses is written down, and not asked again for long") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        EmulatedHost host({400, 100});
        host.fails = true;
        Controller controller(acting(), host.parts(path));
        step(controller, 20);
        const auto decisions = controller.decisions(0);
        REQUIRE(decisions.size() == 1);
        CHECK(decisions[0].outcome == Outcome::kFailed);
        CHECK(read_decision_journal(path).value().decisions[0].outcome == Outcome::kFailed);
    }

    TEST_CASE("a replay of a host with nothing but vGPUs decides the same") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        QuietHost* self = nullptr;
        QuietHost host([&](Window& window) {
            const double denied = window.number == 10 || window.number == 17 ? 1e9 : 0;
            window.devices.push_back({"gpu0", 8e9, 0, {}});
            window.devices[0].users.push_back(
                {"a", self->quota, 0.95 * self->quota, denied, 1, 0, 0, 0, 1, 0});
        });
        self = &host;
        Controller controller(acting(), host.parts(path));
        step(controller, 30);
        CHECK(controller.decisions(0).size() == 2);
        check_replay(path, acting());
        ControlConfig other = acting();
        other.actions = "shares";
        Controller blind(other, host.parts(path + "2"));
        step(blind, 3);
        CHECK_FALSE(std::filesystem::exists(path + "2"));
    }

    TEST_CASE(
        "a replay of pool quotas that another change came before refuses them, too, and says why") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        QuietHost host([](Window& window) {
            window.pool.devices = {{"a", 1e8, 1e8, 5e7, 10, 0, 0, 0, 1, 0},
                                   {"b", 3e8, 2e7, 0, 10, 0, 0, 0, 1, 0}};
            window.pool.most = {1e9, 1e9};
        });
        ControlConfig config = acting();
        config.actions = "pool";
        Controller controller(config, host.parts(path));
        step(controller, 50);
        const auto decisions = controller.decisions(0);
        CHECK(decisions.size() == 3);  // and 20 windows of rest behind each
        for (const Decision& decision : decisions) {
            CHECK(decision.outcome == Outcome::kFailed);
            CHECK(decision.outcome_reason == "a device uses more by now");
        }
        check_replay(path, config);
    }

    TEST_CASE("shares of one decision are all set, or all as before") {
        for (const bool refuses : {false, true}) {
            CAPTURE(refuses);
            QuietHost host([](Window& window) {
                window.devices.push_back({"gpu0", 8e9, 0, {}});
                window.devices[0].users = {{"busy", 1, 0, 0, 1, 0, 0, 0.20, 1, 20, 0, 20, 0.5},
                                           {"idle", 1, 0, 0, 1, 0, 0, 0.01, 1, 70, 0, 70}};
            });
            if (refuses) host.refuses = "busy";
            ControlConfig config = acting();
            config.actions = "compute";
            Controller controller(config, host.parts(""));
            step(controller, 1);
            REQUIRE(controller.decisions(0).size() == 1);
            CHECK(host.shares["idle"] == (refuses ? 70 : 45));
            CHECK(host.shares.count("busy") == (refuses ? 0 : 1));
            const Outcome expected = refuses ? Outcome::kFailed : Outcome::kPending;
            CHECK(controller.decisions(0)[0].outcome == expected);
        }
    }

    TEST_CASE(
        "of a quota that another change came before the step says why, else all of the error "
        "does") {
        using fabricshm::Errc;
        using fabricshm::Error;
        const Error busy{Errc::kBusy, 0, "more is used by now"};
        const Error gone{Errc::kNotFound, 0, "no such vGPU"};
        const auto reason = [](const char* actions, const Error& error) {
            QuietHost host([](Window& window) {
                window.devices.push_back({"gpu0", 8e9, 0, {}});
                window.devices[0].users = {{"busy", 1e9, 1e9, 1e9, 1, 0, 0, 0.2, 1, 20, 0, 20, 0.5},
                                           {"idle", 1e9, 1e9, 0, 1, 0, 0, 0.01, 1, 70, 0, 70}};
            });
            host.refuses = "busy";
            host.share_error = error;
            host.quota_error = error;
            ControlConfig config = acting();
            config.actions = actions;
            Controller controller(config, host.parts(""));
            step(controller, 1);
            REQUIRE(controller.decisions(0).size() == 1);
            return controller.decisions(0)[0].outcome_reason;
        };
        CHECK(reason("quota", busy) == busy.step);
        CHECK(reason("quota", gone) == fabricshm::describe(gone));
        CHECK(reason("compute", busy) == fabricshm::describe(busy));
    }

    TEST_CASE("a replay of a job whose directives fail sees them fail") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        EmulatedHost host({400, 100});
        host.fails = true;
        Controller controller(acting(), host.parts(path));
        step(controller, 70);
        CHECK(controller.decisions(0).size() >= 3);
        check_replay(path, acting());
    }

    TEST_CASE("a replay waits as long as the loop did while there was nothing to write down") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        QuietHost host([](Window& window) {
            const bool is_idle = window.number > 15 && window.number < 60;
            if (!is_idle) window.placement = shards_to_move();
        });
        Controller controller(acting(), host.parts(path));
        step(controller, 70);
        CHECK(controller.decisions(0).size() == 2);
        CHECK(read_decision_journal(path)->windows.size() < 40);
        check_replay(path, acting());
    }

    TEST_CASE("a replay starts again with each daemon, also with one that was idle at first") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        for (const int idle : {0, 100}) {
            EmulatedHost host({400, 100});
            Controller controller(acting(), host.parts(path));
            host.is_idle = true;
            step(controller, idle);
            host.is_idle = false;
            step(controller, 30);
        }
        const auto story = read_decision_journal(path).value();
        CHECK(story.decisions.size() == 2);
        check_replay(path, acting());
    }

    TEST_CASE("a window too large to be written is counted, and does not end the journal") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        QuietHost host([](Window& window) {
            window.placement = shards_to_move(window.number == 2 ? 20000 : 1);
        });
        Controller controller(acting(), host.parts(path));
        step(controller, 4);
        const auto story = read_decision_journal(path).value();
        CHECK(story.windows.size() == 3);
        CHECK(story.windows.back().number == 4);
        CHECK(controller.counters().not_journalled == 1);
        const std::string metrics = control_metrics(controller.counters());
        CHECK(metrics.find("not_journalled_total 1\n") != std::string::npos);
    }

    TEST_CASE("a host without jobs leaves no file, and the thread ends when asked") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        ControllerParts parts;
        parts.journal_path = path;
        Sample sample;
        sample.number = 1;
        parts.look = [&](const auto& reader) { reader(sample); };
        Controller controller(acting(), parts);
        controller.start();
        while (controller.counters().windows == 0) std::this_thread::yield();
        controller.stop();
        CHECK(read_decision_journal(path).error().code == fabricshm::Errc::kNotFound);
    }

    TEST_CASE("a directive is in the pages of all ranks, and needs that of rank 0") {
        SessionPages pages;
        Directive directive{5, 3, 1, 7, 2, {11, 12}, {0.75, 0.25}, {}, 4};
        PageActuator actuator(pages);
        CHECK(actuator.direct(directive).error().code == fabricshm::Errc::kNotFound);
        REQUIRE(pages.open_directives({11, 1, 1, "", ""}).ok());
        CHECK(actuator.direct(directive).ok());
        // A serial that does not rise is refused by the page.
        CHECK_FALSE(actuator.direct(directive).ok());
        const auto image = image_of(directive).value();
        CHECK(image.batch_share[0] == 0.75);
        CHECK(image.sync_interval == 4);
        CHECK(image.group_id == 7);
        CHECK(fabricshm::check_directives(image).ok());
        directive.sessions.resize(256);
        CHECK(image_of(directive).ok());
        directive.sessions.resize(257);
        CHECK(image_of(directive).error().code == fabricshm::Errc::kUnsupported);
    }

    TEST_CASE("what is no journal is renamed, not written over") {
        const test_support::TemporaryDirectory directory;
        const std::string path = directory.path() + "/decisions";
        std::FILE* file = std::fopen(path.c_str(), "w");
        REQUIRE(file != nullptr);
        std::fputs("something else that a user may still want", file);
        std::fclose(file);
        EmulatedHost host({400, 100});
        Controller controller(acting(), host.parts(path));
        step(controller, 20);
        CHECK(std::filesystem::exists(path + ".bad"));
        CHECK(read_decision_journal(path)->decisions.size() == 1);
    }

    TEST_CASE("a corrupt file alone is renamed, and numbers go on from the other one") {
        for (const bool is_older : {false, true}) {
            CAPTURE(is_older);
            const test_support::TemporaryDirectory directory;
            const std::string path = directory.path() + "/decisions";
            const std::string corrupt = is_older ? path + ".1" : path;
            const std::string good = is_older ? path : path + ".1";
            EmulatedHost host({400, 100});
            {
                Controller controller(acting(), host.parts(path));
                step(controller, 10);
                CHECK(controller.decisions(0).size() == 1);
            }
            if (!is_older) std::filesystem::rename(path, good);
            std::ofstream(corrupt) << std::string(100, '\0');
            EmulatedHost next({400, 100});
            Controller successor(acting(), next.parts(path));
            CHECK(successor.decisions(0).size() == 1);
            CHECK(std::filesystem::exists(corrupt + ".bad"));
            CHECK_FALSE(std::filesystem::exists(good + ".bad"));
            CHECK_FALSE(std::filesystem::exists(corrupt));
            step(successor, 10);
            REQUIRE(successor.decisions(0).size() == 2);
            CHECK(successor.decisions(0)[1].id == 2);
        }
    }
}
