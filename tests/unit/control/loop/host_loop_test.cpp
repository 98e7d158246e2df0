// Beyond one job: quotas of vGPUs and of the pool, compute shares, and how an action that touches
// several jobs is judged.

#include "fabricd/control/loop/host_loop.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "fabricd/control/policies/host_policy.hpp"
#include "fabricd/control/policies/pool_policy.hpp"
#include "tests/support/decision_values.hpp"
#include "tests/unit/control/emulated_host.hpp"

using namespace control_test;

namespace {

QuotaDevice device_with(double quota, double used, double denied) {
    QuotaDevice device{"gpu0", 8e9, 0, {}};
    device.users.push_back({"a", quota, used, denied, 1, 0, 0, 0, 1, 0});
    device.users.push_back({"b", quota, 0.85 * quota, 0, 1, 0, 0, 0, 1, 0});
    return device;
}

PoolWindow pool_with(std::vector<QuotaWindow> devices, double most = 1000 * kMB) {
    PoolWindow pool{std::move(devices), {}};
    pool.most.assign(pool.devices.size(), most);
    return pool;
}

QuotaWindow pool_user(const char* name, double quota, double used, double denied, double speed) {
    return {name, quota, used, denied, speed, 0, 0, 0, 1, 0};
}

/// A window of several jobs, each of which makes its own steps.
Window window_of(std::vector<EmulatedJob>& jobs) {
    Window window = jobs.front().window();
    for (std::size_t i = 1; i < jobs.size(); ++i) window.jobs.push_back(jobs[i].job());
    return window;
}

std::vector<EmulatedJob> two_jobs() {
    std::vector<EmulatedJob> jobs{EmulatedJob({100, 100}), EmulatedJob({100, 100})};
    jobs[1].group = 8;
    jobs[1].sessions_from = 50;
    return jobs;
}

/// One job, and two devices of the pool of which "a" is refused memory; quotas become what is
/// decided.
struct PoolHost {
    TickResult tick() {
        Window window = job.window();
        window.pool = pool;
        TickResult result = loop.tick(window);
        for (const Decision& decision : result.decisions) {
            for (QuotaWindow& device : pool.devices) {
                device.quota = after_of(decision, device.name, device.quota);
            }
        }
        return result;
    }
    /// Everything until the end of a decision; at most so long.
    TickResult until_ended() {
        TickResult all;
        for (int i = 0; i < 30 && all.outcomes.empty(); ++i) {
            TickResult result = tick();
            for (auto& decision : result.decisions) all.decisions.push_back(std::move(decision));
            for (auto& outcome : result.outcomes) all.outcomes.push_back(std::move(outcome));
        }
        return all;
    }
    double quotas() const { return pool.devices[0].quota + pool.devices[1].quota; }

    Loop loop{acting()};
    EmulatedJob job{{100, 100}};
    PoolWindow pool = pool_with({pool_user("a", 100 * kMB, 100 * kMB, 50 * kMB, 10),
                                 pool_user("b", 300 * kMB, 20 * kMB, 0, 10)});
};

/// A job of so many ranks: what it did in this window, and usually; 0: that is not known.
JobState pacing(std::uint64_t group, std::size_t ranks, double now, double usual) {
    JobState job;
    job.group = group;
    job.windows = 1;
    job.fresh = true;
    job.ranks.resize(ranks);
    job.objective_now = now;
    if (usual > 0) job.objective.update(usual, 1);
    return job;
}

/// Device "a" holds less of the pool than it was promised and is refused memory, "b" holds more.
PoolWindow owing_pool() {
    PoolWindow pool = pool_with({pool_user("a", 100 * kMB, 100 * kMB, 50 * kMB, 10),
                                 pool_user("b", 300 * kMB, 20 * kMB, 0, 10)});
    for (QuotaWindow& device : pool.devices) device.promised = 200 * kMB;
    return pool;
}

/// Windows in which a promise is given back, out of so many; those of `fails` can't be.
std::vector<int> windows_of_returns(ControlConfig config, int windows, std::set<int> fails) {
    Loop loop(config);
    Window window;
    window.pool = owing_pool();
    std::vector<int> found;
    for (int i = 1; i <= windows; ++i) {
        advance(window);
        for (const Decision& decision : loop.tick(window).decisions) {
            // In between memory is lent as ever, on probation.
            if (decision.reason != "a needs what it was promised") continue;
            const bool is_refused = fails.empty() || fails.contains(static_cast<int>(found.size()));
            if (is_refused) CHECK(loop.failed(decision.id, "busy").id == decision.id);
            found.push_back(i);
        }
    }
    return found;
}

}  // namespace

TEST_SUITE("control.loop.host_loop") {
    TEST_CASE("a refused allocation lets a quota grow, and what would not be applied is reported") {
        Loop loop(acting());
        Window window;
        window.number = 1;
        window.devices = {device_with(1e9, 1e9, 1e9)};
        const auto result = loop.tick(window);
        REQUIRE(result.decisions.size() == 1);
        const Decision& decision = result.decisions[0];
        CHECK(kind_of(decision) == ActionKind::kQuota);
        CHECK(names_of(decision) == std::vector<std::string>{"a"});
        CHECK(after_of(decision)[0] == doctest::Approx(1.25e9));
        // One at a time: nothing more until its probation is over.
        CHECK(loop.tick(window).decisions.empty());
        CHECK(loop.failed(decision.id, "no such vGPU").outcome == Outcome::kFailed);
        Loop content(acting());
        window.devices = {device_with(1e9, 0.5e9, 0)};
        CHECK(content.tick(window).decisions.empty());
    }

    TEST_CASE("what shrinks comes before what grows, and nothing passes the device") {
        QuotaDevice device{"gpu0", 1000 * kMB, 0, {}};
        device.users.push_back({"needy", 400 * kMB, 400 * kMB, 400 * kMB, 1, 0, 0, 0, 1, 0});
        device.users.push_back({"idle", 600 * kMB, 0, 0, 1, 0, 0, 0, 1, 0});
        const auto decision = propose_quotas(device, acting());
        REQUIRE(decision);
        CHECK(names_of(*decision) == std::vector<std::string>{"idle", "needy"});
        CHECK(sum(after_of(*decision)) <= 1000 * kMB);

        // Of what is promised and used nothing is taken, and a small need is no reason to decide.
        QuotaDevice full{"gpu0", 1000 * kMB, 0, {}};
        full.users.push_back({"needy", 100 * kMB, 100 * kMB, 50 * kMB, 1, 0, 0, 0, 1, 0});
        full.users.push_back({"large", 900 * kMB, 800 * kMB, 0, 1, 0, 0, 0, 1, 0});
        CHECK_FALSE(propose_quotas(full, acting()));
        full.users[1].used = 760 * kMB;
        const auto tight = propose_quotas(full, acting());
        REQUIRE(tight);
        CHECK(sum(after_of(*tight)) == 1000 * kMB);
        CHECK(after_of(*tight, "needy", 0) > 100 * kMB);
        // What no user was refused is left alone, but where it was promised.
        full.users[0].denied = 0;
        full.users[0].used = 92 * kMB;
        CHECK_FALSE(propose_quotas(full, acting()));
        CHECK_FALSE(propose_quota_returns(full, acting()));
        full.users[0].promised = 150 * kMB;
        full.users[1].promised = 850 * kMB;
        const auto back = propose_quota_returns(full, acting());
        REQUIRE(back);
        CHECK(back->outcome == Outcome::kDone);
        CHECK(after_of(*back, "needy", 0) == 150 * kMB);
        // What the taker frees little by little is no decision each.
        full.users[1].used = 896 * kMB;
        CHECK_FALSE(propose_quota_returns(full, acting()));
        full.users[1].used = 892 * kMB;
        CHECK(propose_quota_returns(full, acting()));
        full.users[0].used = 88 * kMB;
        CHECK_FALSE(propose_quota_returns(full, acting()));
    }

    TEST_CASE("a device that was refused memory gets what others do not hold, and the sum stays") {
        const auto pool = pool_with({pool_user("a", 100 * kMB, 100 * kMB, 50 * kMB, 10),
                                     pool_user("b", 300 * kMB, 20 * kMB, 0, 10)});
        const auto decision = propose_pool_quotas(pool, acting());
        REQUIRE(decision);
        CHECK(names_of(*decision) == std::vector<std::string>{"b", "a"});
        CHECK(after_of(*decision)[1] == doctest::Approx(125 * kMB));  // one step of a quarter
        CHECK(sum(after_of(*decision)) == doctest::Approx(400 * kMB));
        CHECK(decision->facts.size() == 12);

        // No user is refused, or nothing is left to give: all stays.
        CHECK_FALSE(propose_pool_quotas(
            pool_with({pool_user("a", 100, 100, 0, 1), pool_user("b", 300, 20, 0, 1)}), acting()));
        CHECK_FALSE(propose_pool_quotas(
            pool_with({pool_user("a", 100, 100, 50, 1), pool_user("b", 300, 300, 0, 1)}),
            acting()));
        CHECK_FALSE(propose_pool_quotas(pool_with({pool_user("a", 100, 100, 50, 1)}), acting()));
    }

    TEST_CASE("quotas of the pool keep their sum and what is held, whatever the numbers") {
        Numbers numbers(11);
        int decided = 0;
        for (int i = 0; i < kRounds; ++i) {
            PoolWindow pool;
            const std::size_t count = 2 + numbers.below(4);
            double before = 0;
            for (std::size_t k = 0; k < count; ++k) {
                const double quota = 1e9 * numbers.uniform();
                pool.devices.push_back(pool_user("abcdef" + k, quota, quota * numbers.uniform(),
                                                 numbers.below(2) * 1e8 * numbers.uniform(),
                                                 numbers.plausible()));
                pool.most.push_back(quota + 1e9 * numbers.uniform());
            }
            if (numbers.below(4) == 0) pool.devices[0].used = numbers.adversarial();
            const auto decision = propose_pool_quotas(pool, acting());
            if (!decision) continue;
            ++decided;
            double after = 0;
            for (const QuotaWindow& device : pool.devices) {
                const double next = after_of(*decision, device.name, device.quota);
                before += device.quota;
                after += next;
                if (device.used <= device.quota) CHECK(next >= std::floor(device.used));
                CHECK(next - device.quota <= std::max(0.25 * device.quota, 2.1e6) + 1);
                if (device.denied > 0) CHECK(next >= std::floor(device.quota));
            }
            CHECK(after <= before * (1 + 1e-9));
            CHECK(after >= before - static_cast<double>(count) - 1e-3);
        }
        CHECK(decided > kRounds / 20);
    }

    TEST_CASE("each job is compared with itself: large figures do not hide what others lose") {
        Loop loop(acting());
        auto jobs = two_jobs();
        Window shards = window_with_shard(0, 1e8);
        std::vector<Decision> decisions;
        for (int i = 0; i < 25; ++i) {
            Window window = window_of(jobs);
            for (RankWindow& rank : window.jobs[1].ranks) rank.samples *= 1e12;
            window.placement = shards.placement;
            for (const Decision& decision : loop.tick(window).decisions) {
                decisions.push_back(decision);
                const auto home = static_cast<std::uint32_t>(after_of(decision)[0]);
                shards.placement.shards[0].home = home;
                const double speed = home == 1 ? 40 : 100;
                jobs[0].speeds = {speed, speed};
            }
        }
        REQUIRE(decisions.size() == 2);
        CHECK(decisions[1].undoes == decisions[0].id);

        // Nor does one that stops lying take an action away from fifteen others.
        HostPace pace;
        JobState job;
        job.windows = 1;
        job.ranks.resize(1);
        for (const double claimed : {1e15, 0.0, 1e30}) {
            pace.begin();
            for (std::uint64_t i = 0; i < 16; ++i) {
                job.group = i;
                job.objective_now = i == 0 ? claimed : 100;
                pace.add(job);
            }
            std::vector<double> before(16, 100.0);
            before[0] = 1e15;
            CHECK(pace.part_of(before) >= 15.0 / 16);
            CHECK(pace.part_of(before) <= 17.0 / 16);
        }
    }

    TEST_CASE("an action that is broken off waits before it is tried again") {
        Loop loop(acting());
        auto jobs = two_jobs();
        Window window;
        std::vector<std::uint64_t> decided;
        std::vector<DecisionOutcome> outcomes;
        double quota = 1e9;
        for (int i = 0; i < 40; ++i) {
            window = window_of(jobs);
            if (i < 5) window.jobs.pop_back();
            window.devices = {device_with(quota, quota, 1e9)};
            const auto result = loop.tick(window);
            for (const auto& outcome : result.outcomes) outcomes.push_back(outcome);
            for (const Decision& decision : result.decisions) {
                decided.push_back(window.number);
                quota = after_of(decision, "a", quota);
            }
            if (outcomes.size() == 1) CHECK(outcomes[0].outcome == Outcome::kUnjudged);
        }
        REQUIRE(decided.size() >= 2);
        CHECK(decided[0] < 5);
        CHECK(decided[1] >= 6 + 20);
    }

    TEST_CASE("a quota that is rolled back leaves what is in use, and the sum stays") {
        struct Case {
            double used_by_a;
            double a, b;  // quotas in the end
            Outcome outcome;
        };
        for (const Case& wanted :
             {Case{125, 125, 275, Outcome::kUnjudged}, Case{110, 110, 290, Outcome::kUndone},
              Case{90, 100, 300, Outcome::kUndone}}) {
            CAPTURE(wanted.used_by_a);
            PoolHost host;
            REQUIRE(host.tick().decisions.size() == 1);
            CHECK(host.pool.devices[0].quota == doctest::Approx(125 * kMB));
            host.pool.devices[0].used = wanted.used_by_a * kMB;
            host.job.speeds = {40, 40};
            const auto result = host.until_ended();
            REQUIRE(result.outcomes.size() == 1);
            CHECK(result.outcomes[0].outcome == wanted.outcome);
            CHECK(host.pool.devices[0].quota == doctest::Approx(wanted.a * kMB));
            CHECK(host.pool.devices[1].quota == doctest::Approx(wanted.b * kMB));
            CHECK(host.quotas() == doctest::Approx(400 * kMB));
        }
    }

    TEST_CASE("a quota that people set during a probation is theirs") {
        PoolHost host;
        REQUIRE(host.tick().decisions.size() == 1);
        host.job.speeds = {40, 40};
        host.pool.devices[0].quota = 300 * kMB;
        const auto result = host.until_ended();
        REQUIRE(result.outcomes.size() == 1);
        CHECK(result.outcomes[0].outcome == Outcome::kUnjudged);
        CHECK(result.outcomes[0].reason == "it was changed from outside meanwhile");
        CHECK(result.decisions.empty());
        CHECK(host.pool.devices[0].quota == 300 * kMB);
    }

    TEST_CASE("what the jobs do is a mean by ranks of what each did before") {
        HostPace pace;
        pace.begin();
        pace.add(pacing(1, 3, 50, 100));
        pace.add(pacing(2, 1, 300, 100));
        // Not seen yet: says nothing.
        JobState unseen = pacing(3, 9, 1, 1);
        unseen.windows = 0;
        pace.add(unseen);
        CHECK(pace.objective() == 200);
        CHECK(pace.usual() == std::vector<double>{100, 100});
        // Half of it by three ranks, and three times by one, which counts for twice.
        CHECK(pace.part_of({100, 100}) == (3 * 0.5 + 1 * 2) / 4);
        CHECK(pace.part_of({100, 100, 100}) == (3 * 0.5 + 1 * 2) / 4);
        CHECK(pace.part_of({100}) == 0.5);
        // What did nothing before shows nothing.
        CHECK(pace.part_of({0, 600}) == 0.5);
        CHECK(pace.part_of({0, 0}) == 1);
        CHECK(pace.part_of({}) == 1);

        // Not known, or nothing so far: what it does now is the best guess.
        pace.begin();
        pace.add(pacing(1, 1, 40, 0));
        JobState idle = pacing(2, 1, 7, 0);
        idle.objective.update(0, 1);
        pace.add(idle);
        CHECK(pace.usual() == std::vector<double>{40, 7});
        pace.begin();
        pace.add(pacing(1, 1, std::nan(""), 10));
        pace.add(pacing(2, 1, 10, 10));
        CHECK(pace.part_of({10, 10}) == 0.5);
    }

    TEST_CASE("the scatter of the jobs is of windows with news, and of one set of jobs") {
        HostPace pace;
        const auto look = [&](std::uint64_t group, double now, bool fresh = true) {
            pace.begin();
            JobState job = pacing(group, 1, now, 100);
            job.fresh = fresh;
            pace.add(job);
            CHECK(pace.fresh() == fresh);
            pace.end(0.1);
        };
        CHECK(pace.noise(0.04) == 0.04);
        look(1, 50);
        CHECK(pace.noise(0.04) == 0.04);
        look(1, 52);
        // 0.5, then 0.52: the mean is 0.51; two values differ by the root of two more than each
        // does from the mean.
        CHECK(pace.noise(0.001) == doctest::Approx(0.02 / std::sqrt(2.0) / 0.51));
        CHECK(pace.noise(0.04) == 0.04);
        look(1, 90, false);
        CHECK(pace.noise(0.001) == doctest::Approx(0.02 / std::sqrt(2.0) / 0.51));
        const std::uint64_t jobs = pace.jobs();
        look(2, 50);
        CHECK(pace.jobs() != jobs);
        CHECK(pace.noise(0.001) == 0.001);
    }

    TEST_CASE("an action is kept as long as the jobs do no worse than their noise") {
        struct Case {
            double speed;
            Outcome outcome;
        };
        // Twice twice the noise floor of 2 %: 8 % less is worse.
        for (const Case& wanted :
             {Case{100, Outcome::kKept}, Case{94, Outcome::kKept}, Case{90, Outcome::kUndone}}) {
            CAPTURE(wanted.speed);
            PoolHost host;
            host.job.noise = 0;
            host.pool.devices[0].denied = 0;
            for (int i = 0; i < 5; ++i) CHECK(host.tick().decisions.empty());
            host.pool.devices[0].denied = 50 * kMB;
            REQUIRE(host.tick().decisions.size() == 1);
            host.pool.devices[0].denied = 0;
            host.job.speeds = {wanted.speed, wanted.speed};
            const auto result = host.until_ended();
            REQUIRE(result.outcomes.size() == 1);
            CHECK(result.outcomes[0].outcome == wanted.outcome);
            CHECK(result.outcomes[0].measured == doctest::Approx(2 * wanted.speed));
        }
    }

    TEST_CASE("an action that no job was there to judge is not judged by one that comes later") {
        Loop loop(acting());
        EmulatedJob job({100, 100});
        std::vector<DecisionOutcome> outcomes;
        for (int i = 0; i < 10 && outcomes.empty(); ++i) {
            Window window = job.window();
            if (i < 2) window.jobs.clear();
            window.devices = {device_with(1e9, 1e9, i == 0 ? 1e9 : 0)};
            if (i > 0) window.devices[0].users[0].quota = 1.25e9;
            const auto result = loop.tick(window);
            CHECK(result.decisions.size() == (i == 0 ? 1 : 0));
            outcomes = result.outcomes;
        }
        REQUIRE(outcomes.size() == 1);
        CHECK(outcomes[0].outcome == Outcome::kUnjudged);
        CHECK(outcomes[0].reason == "no job trained meanwhile");
    }

    TEST_CASE("a promise that can't be given back is tried again after 1, 3, 7 and 15 windows") {
        using Windows = std::vector<int>;
        CHECK(windows_of_returns(acting(), 50, {}) == Windows{1, 3, 7, 15, 31, 47});
        // Never longer than the cool-down.
        ControlConfig brief = acting();
        brief.cool_down = 2;
        CHECK(windows_of_returns(brief, 12, {}) == Windows{1, 3, 6, 9, 12});
        // One that came about ends the row: what fails then is soon tried again.
        CHECK(windows_of_returns(acting(), 11, {0, 1, 3}) == Windows{1, 3, 7, 8, 10, 11});
        // A dry run says it once in a while.
        CHECK(windows_of_returns(acting("dry-run"), 43, {99}) == Windows{1, 22, 43});
    }

    TEST_CASE("a failure is of the decision that it names, and of no other") {
        Loop loop(acting());
        Window window;
        window.devices = {device_with(1e9, 1e9, 1e9)};
        window.pool = pool_with({pool_user("a", 100 * kMB, 100 * kMB, 50 * kMB, 10),
                                 pool_user("b", 300 * kMB, 20 * kMB, 0, 10)});
        window.placement = window_with_shard(0, 1e8).placement;
        std::vector<Decision> decisions = until_decided(loop, window, 1);
        REQUIRE(decisions.size() == 2);
        window.devices[0].users[0].quota = after_of(decisions[0])[0];
        for (QuotaWindow& device : window.pool.devices) {
            device.quota = after_of(decisions[1], device.name, device.quota);
        }
        window.placement.shards[0].moving = true;
        for (const Decision& decision : until_decided(loop, window, 3)) {
            decisions.push_back(decision);
        }
        window.placement.shards[0].moving = false;
        for (int i = 0; i < 3 && decisions.size() < 3; ++i) {
            for (const Decision& decision : until_decided(loop, window, 1)) {
                decisions.push_back(decision);
            }
        }
        REQUIRE(loop.failed(999, "no such decision").id == 999);
        // All are still on probation: each can fail, in any order, and once.
        for (std::size_t i = decisions.size(); i-- > 0;) {
            const auto failed = loop.failed(decisions[i].id, "no room");
            CHECK(failed.id == decisions[i].id);
            CHECK(failed.reason == "no room");
        }
        for (int i = 0; i < 4; ++i) {
            advance(window);
            CHECK(loop.tick(window).outcomes.empty());
        }
    }
}
