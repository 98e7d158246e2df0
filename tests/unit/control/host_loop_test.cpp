// Beyond one job: quotas of vGPUs and of the pool, compute shares, and how an action that touches
// several jobs is judged.

#include "fabricd/control/host_loop.hpp"

#include <doctest/doctest.h>

#include "fabricd/control/host_policy.hpp"
#include "fabricd/control/pool_policy.hpp"
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

}  // namespace

TEST_SUITE("control.host_loop") {
    TEST_CASE("a refused allocation lets a quota grow, and it is told what would not be applied") {
        Loop loop(acting());
        Window window;
        window.number = 1;
        window.devices = {device_with(1e9, 1e9, 1e9)};
        const auto result = loop.tick(window);
        REQUIRE(result.decisions.size() == 1);
        const Decision& decision = result.decisions[0];
        CHECK(decision.kind == ActionKind::kQuota);
        CHECK(decision.names == std::vector<std::string>{"a"});
        CHECK(decision.after[0] == doctest::Approx(1.25e9));
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
        CHECK(decision->names == std::vector<std::string>{"idle", "needy"});
        CHECK(sum(decision->after) <= 1000 * kMB);

        // Of what is promised and used nothing is taken, and a small need is no reason to decide.
        QuotaDevice full{"gpu0", 1000 * kMB, 0, {}};
        full.users.push_back({"needy", 100 * kMB, 100 * kMB, 50 * kMB, 1, 0, 0, 0, 1, 0});
        full.users.push_back({"large", 900 * kMB, 800 * kMB, 0, 1, 0, 0, 0, 1, 0});
        CHECK_FALSE(propose_quotas(full, acting()));
        full.users[1].used = 760 * kMB;
        const auto tight = propose_quotas(full, acting());
        REQUIRE(tight);
        CHECK(sum(tight->after) == 1000 * kMB);
        CHECK(after_of(*tight, "needy", 0) > 100 * kMB);
        // What nobody was refused is left alone, but where it was promised.
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
        CHECK(decision->names == std::vector<std::string>{"b", "a"});
        CHECK(decision->after[1] == doctest::Approx(125 * kMB));  // one step of a quarter
        CHECK(sum(decision->after) == doctest::Approx(400 * kMB));
        CHECK(decision->facts.size() == 12);

        // Nobody is refused, or nothing is left to give: all stays.
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
            if (numbers.below(4) == 0) pool.devices[0].used = numbers.awkward();
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
                const auto home = static_cast<std::uint32_t>(decision.after[0]);
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

    TEST_CASE("a quota that is taken back leaves what is in use, and the sum stays") {
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
        CHECK(result.outcomes[0].reason == "it was changed by somebody else meanwhile");
        CHECK(result.decisions.empty());
        CHECK(host.pool.devices[0].quota == 300 * kMB);
    }
}
