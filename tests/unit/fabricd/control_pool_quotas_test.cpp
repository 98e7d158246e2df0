// The loop, S412 and the registry's quotas as the daemon joins them.

#include <doctest/doctest.h>

#include <numeric>

#include "fabricd/service/control_places.hpp"
#include "fabricd/service/control_quotas.hpp"
#include "tests/support/decision_values.hpp"
#include "tests/support/registry_host.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/unit/control/adversarial.hpp"

TEST_SUITE_BEGIN("fabricd.control_pool_quotas");

using namespace test_support;
using fabricshm::kGiB;
using fabricshm::kMiB;

namespace {

// Devices of 1 GiB, one session on each, and the loop that divides the pool among them.
struct Host : RegistryHost {
    explicit Host(const std::vector<Bytes>& quotas, std::int64_t probation = 5) {
        for (const Bytes quota : quotas) {
            const std::string name = "gpu" + std::to_string(devices.size());
            devices.push_back({name, "gpu", 1.0, 100, kGiB, quota, 1.0, 0, {}});
        }
        renew();
        for (const DeviceSpec& device : devices) {
            sessions.push_back(
                registry->open_session(kAlice, "test", kToken, kNow, device.name).value());
            jobs.push_back(arena(sessions.back(), device.name.c_str(), kGiB));
            held.emplace_back();
        }
        ControlConfig config;
        config.mode = "on";
        config.actions = "pool";
        config.probation = probation;
        controller.emplace(config, parts());
        step();  // what was refused before the loop first looked is an old story
    }

    ControllerParts parts() {
        ControllerParts parts;
        parts.look = [this](const auto& reader) {
            look();
            reader(sample);
            source.look(sample);
        };
        parts.complete = [this](Window& window) {
            source.add_to(window);
            after_look();
        };
        parts.actuators = &actuators;
        return parts;
    }
    void look() {
        ++sample.number;
        sample.taken_ns += 1'000'000'000;
        sample.sessions.clear();
        for (std::size_t i = 0; i < sessions.size(); ++i) {
            SessionSample session{};
            session.session_id = raw(sessions[i]);
            session.device = devices[i].name;
            session.memory_denied =
                registry->account_of(sessions[i], jobs[i], GroupId::kNone, 0).denied;
            sample.sessions.push_back(session);
        }
    }
    /// One window, and a second in which whatever waits goes on.
    void step() {
        controller->step();
        now += 1s;
        (void)registry->expire(now);
    }

    bool take(std::size_t device, Bytes bytes) {
        const auto made = region(sessions[device], jobs[device], bytes);
        if (made.ok()) held[device].push_back(RegionId{made->region_id});
        return made.ok();
    }
    void give_back(std::size_t device, std::size_t at) {
        const auto place = held[device].begin() + static_cast<std::ptrdiff_t>(at);
        REQUIRE(registry->free_region(sessions[device], jobs[device], *place).ok());
        held[device].erase(place);
    }
    DeviceView device(std::size_t at) const { return registry->snapshot(now).devices[at]; }
    Bytes quota(std::size_t at) const { return device(at).spec.quota_bytes; }
    Bytes sum() const {
        const auto views = registry->snapshot(now).devices;
        return std::accumulate(
            views.begin(), views.end(), Bytes{0},
            [](Bytes all, const DeviceView& view) { return all + view.spec.quota_bytes; });
    }

    TimePoint now = kNow;
    std::vector<SessionId> sessions;
    std::vector<ArenaId> jobs;
    std::vector<std::vector<RegionId>> held;
    Sample sample;
    PlaceSource source{[this] { return registry->places({}, now); }};
    SessionPages pages;
    TemporaryDirectory folder;
    std::unique_ptr<VgpuLimits> vgpus = VgpuLimits::open(folder.path(), {}).value();
    DaemonActuators actuators{pages, *vgpus, {{}, [this](const std::vector<QuotaShift>& shifts) {
                                                  return registry->shift_quotas(shifts, now);
                                              }}};
    std::function<void()> after_look = [] {};  // what happens between a look and the action
    std::optional<Controller> controller;
};

bool blames_others(const Controller& controller) {
    for (const Decision& decision : controller.decisions(0)) {
        if (decision.outcome_reason.find("from outside") != std::string::npos) return true;
    }
    return false;
}

}  // namespace

TEST_CASE("a device that was refused memory gets what another device does not use, at once") {
    Host host({16 * kMiB, 64 * kMiB});
    REQUIRE(host.take(0, 16 * kMiB));
    CHECK_FALSE(host.take(0, 4 * kMiB));
    host.step();
    REQUIRE(host.controller->decisions(0).size() == 1);
    CHECK(host.controller->decisions(0)[0].outcome == Outcome::kPending);
    CHECK(host.quota(0) == 20 * kMiB);
    CHECK(host.quota(1) == 60 * kMiB);
    CHECK(host.take(0, 4 * kMiB));
}

TEST_CASE(
    "a device that allocates between the look and the action keeps it, however long one waits") {
    // Longer than the 30 s that people leave to a device by default.
    Host host({16 * kMiB, 64 * kMiB}, 40);
    REQUIRE(host.take(0, 16 * kMiB));
    REQUIRE(host.take(1, 8 * kMiB));
    CHECK_FALSE(host.take(0, 4 * kMiB));
    host.after_look = [&] { CHECK(host.take(1, 54 * kMiB)); };
    host.controller->step();
    host.after_look = [] {};
    REQUIRE(host.controller->decisions(0).size() == 1);
    const Decision decision = host.controller->decisions(0)[0];
    CHECK(names_of(decision) == std::vector<std::string>{"gpu1", "gpu0"});
    CHECK(decision.outcome == Outcome::kFailed);
    CHECK(decision.outcome_reason == "a device uses more by now than it was to keep");
    for (int i = 0; i < 60; ++i) {
        CHECK(host.quota(0) == 16 * kMiB);
        CHECK(host.quota(1) == 64 * kMiB);
        CHECK(host.device(1).quota_left_ms == 0);
        host.step();
    }
    CHECK_FALSE(blames_others(*host.controller));
    // It lost nothing of what it had; and what it gives back is divided, and stays so.
    CHECK(host.take(1, 2 * kMiB));
    host.give_back(1, 1);
    CHECK_FALSE(host.take(0, 4 * kMiB));
    for (int i = 0; i < 45; ++i) host.step();
    CHECK(host.quota(0) == 20 * kMiB);
    CHECK(host.sum() == 80 * kMiB);
    CHECK(host.controller->decisions(1)[0].outcome == Outcome::kUnjudged);
    CHECK_FALSE(blames_others(*host.controller));
}

TEST_CASE("a window has what the device file promises each device, and its priority") {
    Host host({64 * kMiB, 64 * kMiB});
    host.devices[0].guaranteed_bytes = host.devices[1].guaranteed_bytes = 64 * kMiB;
    host.devices[1].priority = 2;
    Window window;
    PlaceSource source([&] {
        Places places;
        for (const DeviceSpec& device : host.devices) places.devices.push_back({device, true});
        return places;
    });
    source.add_to(window);
    REQUIRE(window.pool.devices.size() == 2);
    CHECK(window.pool.devices[0].promised == 64 * kMiB);
    CHECK(window.pool.devices[1].priority == 2);
}

TEST_CASE("an idle device lends its quota and gets it back in the next window") {
    Host host({64 * kMiB, 64 * kMiB}, 1);
    for (int i = 0; i < 40; ++i) {
        (void)host.take(0, 4 * kMiB);
        host.step();
        CHECK(host.sum() == 128 * kMiB);
    }
    CHECK(host.quota(0) > 100 * kMiB);
    CHECK(host.quota(1) < 28 * kMiB);
    while (host.device(0).bytes_used > 60 * kMiB) host.give_back(0, 0);
    CHECK_FALSE(host.take(1, 60 * kMiB));
    host.step();
    CHECK(host.take(1, 60 * kMiB));
    CHECK(host.quota(1) == 64 * kMiB);
    CHECK(host.sum() == 128 * kMiB);
    CHECK(host.controller->decisions(1)[0].outcome == Outcome::kDone);
}

TEST_CASE("a device that was ordered to shrink is left alone until it has") {
    Host host({16 * kMiB, 64 * kMiB, 64 * kMiB});
    REQUIRE(host.take(0, 16 * kMiB));
    REQUIRE(host.take(1, 30 * kMiB));
    CHECK_FALSE(host.take(0, 4 * kMiB));
    REQUIRE(host.registry->set_quota({"gpu1", 20 * kMiB, 10'000}, host.now).ok());
    host.step();
    REQUIRE(host.controller->decisions(0).size() == 1);
    CHECK(names_of(host.controller->decisions(0)[0]) == std::vector<std::string>{"gpu2", "gpu0"});
    CHECK(host.quota(0) == 20 * kMiB);
    CHECK(host.device(1).quota_target_bytes == 20 * kMiB);
    for (int i = 0; i < 10; ++i) host.step();
    CHECK(host.quota(1) == 30 * kMiB);  // what it holds
}

TEST_CASE("whatever is taken between looks and actions, the quotas are together what they were") {
    control_test::Numbers numbers(23);
    std::uint64_t done = 0;
    std::uint64_t refused = 0;
    for (int round = 0; round < 20; ++round) {
        Host host({16 * kMiB, 64 * kMiB, 32 * kMiB});
        const auto change = [&] {
            const std::size_t who = numbers.below(3);
            const Bytes bytes = (1 + numbers.below(24)) * kMiB;
            if (host.take(who, bytes) || host.held[who].empty()) return;
            if (numbers.below(3) == 0) host.give_back(who, numbers.below(host.held[who].size()));
        };
        host.after_look = change;
        for (int i = 0; i < 300; ++i) {
            for (std::size_t k = numbers.below(4); k > 0; --k) change();
            const Bytes before = host.sum();
            host.controller->step();
            REQUIRE(host.sum() <= before);
            host.step();
            REQUIRE(host.sum() <= before);
            for (std::size_t k = 0; k < 3; ++k) {
                REQUIRE(host.device(k).bytes_used <= host.quota(k));
                REQUIRE(host.device(k).quota_left_ms == 0);
            }
        }
        CHECK(host.sum() <= 112 * kMiB);
        CHECK(host.sum() > 112 * kMiB - 300 * 3);  // what is less than a byte is lost
        CHECK_FALSE(blames_others(*host.controller));
        CHECK(host.registry->problems().empty());
        const auto& outcomes = host.controller->counters().outcomes;
        done += outcomes[static_cast<std::size_t>(Outcome::kUnjudged)];
        refused += outcomes[static_cast<std::size_t>(Outcome::kFailed)];
    }
    CHECK(done > 50);
    CHECK(refused > 20);
}

TEST_SUITE_END();
