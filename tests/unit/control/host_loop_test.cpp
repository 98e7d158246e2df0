// Beyond one job: quotas of vGPUs and of the pool, compute shares, homes of shards; from what the
// sessions count to what an actuator is asked.

#include "fabricd/control/host_loop.hpp"

#include <doctest/doctest.h>

#include "fabricd/control/controller.hpp"
#include "fabricd/control/host_policy.hpp"
#include "fabricd/control/pool_policy.hpp"
#include "fabricd/control_places.hpp"
#include "tests/unit/control/emulated_job.hpp"

using namespace fabricd;
using namespace control_test;

namespace {

constexpr const char* kAll = "shares,units,sync,drain,placement,quota,compute,pool";
constexpr double kMB = 1e6;

ControlConfig acting(const std::string& mode = "on") {
    ControlConfig config;
    config.mode = mode;
    config.actions = kAll;
    return config;
}

QuotaDevice device_with(double quota, double used, double denied) {
    QuotaDevice device{"gpu0", 8e9, 0, {}};
    device.users.push_back({"a", quota, used, denied, 1, 0, 0, 0, 1, 0});
    device.users.push_back({"b", quota, 0.85 * quota, 0, 1, 0, 0, 0, 1, 0});
    return device;
}

/// Two nodes and a shard at the first of them, read so much by each.
Window window_with_shard(double by_home, double by_other) {
    Window window;
    window.placement.nodes = {{"near", 1, 0, 0}, {"far", 1, 0, 1e9}};
    window.placement.bandwidth = {0, 1e9, 1e9, 0};
    window.placement.shards = {{5, 1e8, 0, 0, {by_home, by_other}, "job/experts", false}};
    return window;
}

void advance(Window& window) {
    ++window.number;
    window.taken_ns += 1'000'000'000;
    window.length_s = 1;
}

/// Ticks with the same window until something is decided, at most so often.
std::vector<Decision> until_decided(Loop& loop, Window& window, int most = 20) {
    for (int i = 0; i < most; ++i) {
        advance(window);
        auto result = loop.tick(window);
        if (!result.decisions.empty()) return result.decisions;
    }
    return {};
}

PoolWindow pool_with(std::vector<QuotaWindow> devices, double most = 1000 * kMB) {
    PoolWindow pool{std::move(devices), {}};
    pool.most.assign(pool.devices.size(), most);
    return pool;
}

QuotaWindow pool_user(const char* name, double quota, double used, double denied, double speed) {
    return {name, quota, used, denied, speed, 0, 0, 0, 1, 0};
}

double after_of(const Decision& decision, const std::string& name, double otherwise) {
    for (std::size_t i = 0; i < decision.names.size(); ++i) {
        if (decision.names[i] == name) return decision.after[i];
    }
    return otherwise;
}

/// A host with a device "near" and one "far" and a shard of 1 MB, as PlaceSource sees it, and what
/// moves the shard: at once, or not at all.
class ShardHost : public Actuators {
  public:
    ShardHost() {
        for (const char* name : {"near", "far"}) {
            DeviceView device;
            device.configured = true;
            device.spec.name = name;
            device.spec.gflops = 10;
            device.spec.memory_bytes = device.spec.quota_bytes = 1 << 30;
            device.spec.link_gbytes_per_s = 1;
            places.devices.push_back(device);
        }
        ShardView shard;
        shard.arena_id = 3;
        shard.id = 8;
        shard.name = "job/experts";
        shard.bytes = 1 << 20;
        shard.home_device = "near";
        shard.state = "here";
        places.shards.push_back(shard);
        for (const std::uint64_t id : {1, 2}) {
            SessionSample session{};
            session.session_id = id;
            session.device = id == 1 ? "near" : "far";
            session.shards.push_back({3, 8, 0, 0});
            sample.sessions.push_back(session);
        }
    }

    fabricshm::Result<void> move_shard(const std::string& shard, const std::string& node) override {
        moves.push_back(shard + " to " + node);
        if (!obeys) return fabricshm::Error{fabricshm::Errc::kNoMemory, 0, "move shard"};
        places.shards[0].home_device = node;
        return {};
    }

    ControllerParts parts() {
        ControllerParts parts;
        parts.look = [this](const std::function<void(const Sample&)>& reader) {
            ++sample.number;
            sample.taken_ns += 1'000'000'000;
            for (std::size_t i = 0; i < 2; ++i) sample.sessions[i].shards[0].bytes += reads[i];
            reader(sample);
            source.look(sample);
        };
        parts.complete = [this](Window& window) { source.add_to(window); };
        parts.actuators = this;
        return parts;
    }

    Places places;
    Sample sample;
    std::uint64_t reads[2] = {1'000'000, 200'000'000};  // per second
    std::vector<std::string> moves;
    bool obeys = true;

  private:
    PlaceSource source{[this] { return places; }};
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

        // A small change of one is left out, unless it is the room of another one.
        QuotaDevice full{"gpu0", 1000 * kMB, 0, {}};
        full.users.push_back({"needy", 100 * kMB, 100 * kMB, 50 * kMB, 1, 0, 0, 0, 1, 0});
        full.users.push_back({"large", 900 * kMB, 760 * kMB, 0, 1, 0, 0, 0, 1, 0});
        const auto tight = propose_quotas(full, acting());
        REQUIRE(tight);
        const double all =
            after_of(*tight, "needy", 100 * kMB) + after_of(*tight, "large", 900 * kMB);
        CHECK(all <= 1000 * kMB);
        CHECK(after_of(*tight, "needy", 0) > 100 * kMB);
    }

    TEST_CASE("compute shares follow use, in steps, and what is free or unknown stays so") {
        QuotaDevice device{"gpu0", 1e9, 0, {}};
        device.users.push_back({"busy", 1, 0, 0, 1, 0, 0, 0.20, 1, 20});
        device.users.push_back({"idle", 1, 0, 0, 1, 0, 0, 0.01, 1, 70});
        device.users.push_back({"unseen", 1, 0, 0, 1, 0, 0, 0, 1, 0});
        const auto decision = propose_compute_shares(device, acting());
        REQUIRE(decision);
        CHECK(decision->kind == ActionKind::kComputeShare);
        CHECK(decision->names == std::vector<std::string>{"idle", "busy"});
        CHECK(sum(decision->after) == 90);
        CHECK(decision->after[1] == 45);  // a quarter of the device at once
        device.users[0].usage = device.users[1].usage = 0;
        CHECK_FALSE(propose_compute_shares(device, acting()));
        device.users[0].usage = 0.2;
        device.users[1].percent = 95;
        CHECK_FALSE(propose_compute_shares(device, acting()));
    }

    TEST_CASE("a device that was refused memory gets what others do not hold, and the sum stays") {
        const auto pool = pool_with({pool_user("a", 100 * kMB, 100 * kMB, 50 * kMB, 10),
                                     pool_user("b", 300 * kMB, 20 * kMB, 0, 10)});
        const auto decision = propose_pool_quotas(pool, acting());
        REQUIRE(decision);
        CHECK(decision->names == std::vector<std::string>{"b", "a"});
        CHECK(decision->after[1] == doctest::Approx(125 * kMB));  // one step of a quarter
        CHECK(sum(decision->after) == doctest::Approx(400 * kMB));
        CHECK(decision->facts.size() == 10);

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
                CHECK(std::abs(next - device.quota) <= std::max(0.25 * device.quota, 1.1e6) + 1);
                if (device.denied > 0) CHECK(next >= std::floor(device.quota));
            }
            CHECK(after <= before * (1 + 1e-9));
            CHECK(after >= before - static_cast<double>(count) - 1e-3);
        }
        CHECK(decided > kRounds / 20);
    }

    TEST_CASE("a shard moves to the node that reads it, once its reads are known") {
        Loop loop(acting());
        Window window = window_with_shard(0, 1e8);
        for (int i = 0; i < 2; ++i) {
            advance(window);
            CHECK(loop.tick(window).decisions.empty());
        }
        const auto decisions = until_decided(loop, window, 1);
        REQUIRE(decisions.size() == 1);
        CHECK(decisions[0].kind == ActionKind::kPlacement);
        CHECK(decisions[0].names == std::vector<std::string>{"job/experts"});
        CHECK(decisions[0].after == std::vector<double>{1});
    }

    TEST_CASE("a dry run says what it would move, once in a while") {
        Loop loop(acting("dry-run"));
        Window window = window_with_shard(0, 1e8);
        std::size_t told = 0;
        for (int i = 0; i < 45; ++i) {
            advance(window);
            for (const Decision& decision : loop.tick(window).decisions) {
                CHECK(decision.outcome == Outcome::kNotApplied);
                ++told;
            }
        }
        CHECK(told >= 2);
        CHECK(told <= 3);
    }

    TEST_CASE("a shard that two nodes read alike stays where it is") {
        Loop loop(acting());
        Numbers numbers(5);
        for (int i = 0; i < 500; ++i) {
            Window window = window_with_shard(1e8 * (1 + 0.04 * numbers.uniform()),
                                              1e8 * (1 + 0.04 * numbers.uniform()));
            window.number = static_cast<std::uint64_t>(i) + 1;
            CHECK(loop.tick(window).decisions.empty());
        }
    }

    TEST_CASE("a move is not judged before it has come about, and one that does not has failed") {
        Loop loop(acting());
        Window window = window_with_shard(0, 1e8);
        REQUIRE(until_decided(loop, window).size() == 1);
        window.placement.shards[0].moving = true;
        for (int i = 0; i < 50; ++i) {
            advance(window);
            const auto result = loop.tick(window);
            CHECK((result.outcomes.empty() && result.decisions.empty()));
        }
        window.placement.shards[0].moving = false;  // and still at home
        const auto result = loop.tick(window);
        REQUIRE(result.outcomes.size() == 1);
        CHECK(result.outcomes[0].outcome == Outcome::kFailed);
    }

    TEST_CASE("a move that costs the jobs samples is taken back, one for which they end is not") {
        for (const bool ends : {false, true}) {
            CAPTURE(ends);
            Loop loop(acting());
            EmulatedJob job({100, 100});
            Window shards = window_with_shard(0, 1e8);
            TickResult all;
            for (int i = 0; i < 25; ++i) {
                Window window = job.window();
                window.placement = shards.placement;
                if (ends && i > 5) window.jobs.clear();
                for (const Decision& decision : loop.tick(window).decisions) {
                    all.decisions.push_back(decision);
                    const auto home = static_cast<std::uint32_t>(decision.after[0]);
                    shards.placement.shards[0].home = home;
                    const double speed = home == 1 ? 40 : 100;
                    if (!ends) job.speeds = {speed, speed};
                }
            }
            REQUIRE(!all.decisions.empty());
            if (ends) {
                CHECK(all.decisions.size() == 1);
            } else {
                REQUIRE(all.decisions.size() == 2);
                CHECK(all.decisions[1].undoes == all.decisions[0].id);
                CHECK(shards.placement.shards[0].home == 0);
            }
        }
    }

    TEST_CASE("from what sessions count to the mover: a shard goes to its reader once") {
        ShardHost host;
        Controller controller(acting(), host.parts());
        for (int i = 0; i < 60; ++i) controller.step();
        CHECK(host.moves == std::vector<std::string>{"job/experts to far"});
        const auto decisions = controller.decisions(0);
        REQUIRE(decisions.size() == 1);
        CHECK(decisions[0].outcome == Outcome::kUnjudged);
        CHECK(decisions[0].outcome_reason == "no job trained meanwhile");
    }

    TEST_CASE(
        "a mover that refuses is asked again after the cool-down, and a reader that stops is "
        "not followed") {
        ShardHost host;
        host.obeys = false;
        Controller controller(acting(), host.parts());
        for (int i = 0; i < 50; ++i) controller.step();
        CHECK(host.moves.size() >= 2);
        CHECK(host.moves.size() <= 3);
        CHECK(controller.decisions(0)[0].outcome == Outcome::kFailed);

        ShardHost quiet;
        quiet.reads[1] = 0;
        Controller idle(acting(), quiet.parts());
        for (int i = 0; i < 30; ++i) idle.step();
        CHECK(quiet.moves.empty());
    }
}
