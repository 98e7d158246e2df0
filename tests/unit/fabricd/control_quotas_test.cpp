// The loop, S322 and the pages of limits as the daemon joins them; the processes are this one.

#include "fabricd/service/control_quotas.hpp"

#include <doctest/doctest.h>

#include "tests/support/decision_values.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/vgpu_tenant.hpp"
#include "tests/unit/control/adversarial.hpp"

TEST_SUITE_BEGIN("fabricd.control_quotas");

using namespace fabricd;
using fabricshm::kGiB;
using fabricshm::kMiB;
using test_support::VgpuTenant;

namespace {

constexpr Bytes kRoom = 90 * kMiB;  // of the GPU, less its reserve

VgpuSpec spec(const char* name, Bytes quota) {
    VgpuSpec made;
    made.name = name;
    made.gpu = "0";
    made.device_bytes = 100 * kMiB;
    made.reserve_bytes = 100 * kMiB - kRoom;
    made.quota_bytes = quota;
    return made;
}

// Two vGPUs that have all of a GPU between them, and the loop that watches them.
struct Host {
    test_support::TemporaryDirectory folder;
    std::unique_ptr<VgpuLimits> limits =
        VgpuLimits::open(folder.path(), {spec("a", 45 * kMiB), spec("b", 45 * kMiB)}).value();
    QuotaSource source{*limits};
    SessionPages pages;
    DaemonActuators actuators{pages, *limits};
    Sample sample;
    std::function<void()> after_look = [] {};  // what happens between a look and the action
    std::unique_ptr<Controller> controller;

    Host() {
        ControlConfig config;
        config.mode = "on";
        config.actions = "quota";
        ControllerParts parts;
        parts.look = [this](const auto& reader) {
            ++sample.number;
            sample.taken_ns += 1'000'000'000;
            reader(sample);
        };
        parts.complete = [this](Window& window) {
            source.add_to(window);
            after_look();
        };
        parts.actuators = &actuators;
        controller = std::make_unique<Controller>(config, std::move(parts));
    }
    QuotaWindow user(std::size_t at) {
        Window window;
        source.add_to(window);
        return window.devices.at(0).users.at(at);
    }
    Bytes sum() const {
        Bytes all = 0;
        for (const VgpuView& view : limits->list()) all += view.quota_bytes;
        return all;
    }
};

// How much larger all quotas are together by a decision. One that only shrinks them waits for what
// is in use.
double change_of(const Decision& decision) {
    double all = 0;
    bool any_takes = false;
    for (std::size_t i = 0; i < names_of(decision).size(); ++i) {
        all += after_of(decision)[i] - before_of(decision)[i];
        any_takes = any_takes || after_of(decision)[i] > before_of(decision)[i];
    }
    return any_takes && decision.outcome == Outcome::kPending ? all : 0;
}

}  // namespace

TEST_CASE("what is waited for counts as demand in each window, and the loop answers it") {
    Host host;
    VgpuTenant tenant(*host.limits, "a");
    REQUIRE(tenant.charge(45 * kMiB));
    CHECK(host.user(0).denied == 0);
    tenant.ledger->want(tenant.slot, 7 * kMiB, fabricshm::Clock::now() + std::chrono::seconds(60));
    CHECK(host.user(0).denied == 7 * kMiB);
    CHECK(host.user(0).denied == 7 * kMiB);
    const std::uint32_t seen = tenant.ledger->room();
    for (int i = 0; i < 3 && tenant.limits().quota_bytes == 45 * kMiB; ++i) {
        host.controller->step();
    }
    CHECK(tenant.charge(7 * kMiB));
    CHECK(tenant.ledger->room() != seen);
    tenant.ledger->unwant(tenant.slot, 7 * kMiB);
    CHECK(host.user(0).denied == 0);
}

TEST_CASE("what a window has of refusals are their bytes since the last look") {
    Host host;
    VgpuTenant tenant(*host.limits, "a");
    tenant.refused(7 * kMiB);
    CHECK(host.user(0).denied == 0);  // from before the loop
    tenant.refused(3 * kMiB);
    tenant.refused(2 * kMiB);
    CHECK(host.user(0).denied == 5 * kMiB);
    CHECK(host.user(0).denied == 0);
    CHECK(host.user(1).denied == 0);
}

TEST_CASE("a window has what the device file promises, and for how long launches were held up") {
    test_support::TemporaryDirectory folder;
    VgpuSpec first = spec("a", 45 * kMiB);
    first.guaranteed_bytes = 30 * kMiB;
    first.priority = 3;
    first.share_percent = 25;
    const auto limits = VgpuLimits::open(folder.path(), {first, spec("b", 45 * kMiB)}).value();
    QuotaSource source(*limits);
    VgpuTenant tenant(*limits, "a");
    tenant.ledger->file().bucket.measured_ns = 1;
    const auto look = [&] {
        Window window;
        window.length_s = 2;
        source.add_to(window);
        return window.devices.at(0).users;
    };
    const auto users = look();
    CHECK(users[0].promised == 30 * kMiB);
    CHECK(users[0].priority == 3);
    CHECK(users[0].promised_percent == 25);
    CHECK(users[0].percent == 25);
    CHECK(users[1].promised == 45 * kMiB);
    CHECK(users[1].priority == 1);
    auto& slot = tenant.ledger->file().slots[tenant.slot];
    slot.waited_ns = 500'000'000;
    tenant.ledger->file().busy_ns = 1'000'000'000;
    const QuotaWindow held = look()[0];
    CHECK(held.held_up == doctest::Approx(0.25));
    CHECK(held.usage == doctest::Approx(0.13 * 0.5));
    // A process that ends takes its waiting along; one that lies has waited all of the time.
    slot.waited_ns = 0;
    CHECK(look()[0].held_up == 0);
    slot.waited_ns = ~std::uint64_t{0};
    CHECK(look()[0].held_up == 1);
}

TEST_CASE("a ledger that lies moves no more than a program that asks for the whole GPU") {
    Host host;
    VgpuTenant liar(*host.limits, "a");
    VgpuTenant neighbour(*host.limits, "b");
    REQUIRE(neighbour.charge(10 * kMiB));
    CHECK(host.user(0).denied == 0);
    auto& file = liar.ledger->file();
    file.total = ~Bytes{0};
    file.denied_bytes = ~Bytes{0};
    const QuotaWindow told = host.user(0);
    CHECK(told.used == 45 * kMiB);
    CHECK(told.denied == 100 * kMiB);
    // It seems to use more than the GPU has: the neighbour gives a step, and not all it has unused.
    const auto given = [&] { return host.limits->list()[1].target_bytes; };
    for (int i = 0; i < 20 && given() == 45 * kMiB; ++i) {
        file.denied_bytes = file.denied_bytes + kGiB;
        host.controller->step();
    }
    CHECK(given() < 45 * kMiB);
    CHECK(given() > 30 * kMiB);
    CHECK(host.sum() <= kRoom);
    file.denied_bytes = 5;
    CHECK(host.user(0).denied == 0);  // a count that falls starts again
}

TEST_CASE("refused memory grows the quota on the page, at the cost of the one that has it unused") {
    Host host;
    VgpuTenant needy(*host.limits, "a");
    VgpuTenant idle(*host.limits, "b");
    REQUIRE(needy.charge(44 * kMiB));
    REQUIRE(idle.charge(20 * kMiB));
    for (int i = 0; i < 60; ++i) {
        if (!needy.charge(2 * kMiB)) needy.refused(2 * kMiB);
        host.controller->step();
        CHECK(host.sum() <= kRoom);
        CHECK(idle.limits().quota_bytes >= 20 * kMiB);
    }
    // As the processes see it, without asking the daemon.
    CHECK(needy.limits().grant_bytes() > 60 * kMiB);
    CHECK(needy.limits().quota_bytes == host.limits->list()[0].quota_bytes);
    CHECK(idle.limits().grant_bytes() < 30 * kMiB);
    CHECK(needy.charge(1));
}

TEST_CASE(
    "a vGPU that takes memory between the look and the action keeps it, and the outcome says so") {
    Host host;
    VgpuTenant needy(*host.limits, "a");
    VgpuTenant busy(*host.limits, "b");
    REQUIRE(needy.charge(44 * kMiB));
    REQUIRE(busy.charge(20 * kMiB));
    host.controller->step();
    needy.refused(40 * kMiB);
    // The loop has read 20 MiB; before it acts they are 44.
    host.after_look = [&] { CHECK(busy.charge(24 * kMiB)); };
    host.controller->step();
    host.after_look = [] {};
    REQUIRE(host.controller->decisions(0).size() == 1);
    CHECK(after_of(host.controller->decisions(0)[0])[0] < 44 * kMiB);
    CHECK(host.controller->decisions(0)[0].outcome == Outcome::kFailed);
    CHECK(host.controller->decisions(0)[0].outcome_reason ==
          "a vGPU uses more by now than it was to keep");
    for (const VgpuTenant* tenant : {&needy, &busy}) {
        CHECK(tenant->limits().quota_bytes == 45 * kMiB);
        CHECK(tenant->limits().target_bytes == 45 * kMiB);
    }
    CHECK(busy.charge(kMiB));
    // Later it is tried again, with what is true then.
    busy.ledger->release(busy.slot, 25 * kMiB);
    for (int i = 0; i < 30; ++i) {
        needy.refused(10 * kMiB);
        host.controller->step();
        CHECK(host.sum() <= kRoom);
    }
    CHECK(needy.limits().quota_bytes > 45 * kMiB);
}

TEST_CASE("whatever is taken between looks and actions, quotas are together what was decided") {
    Host host;
    VgpuTenant needy(*host.limits, "a");
    VgpuTenant busy(*host.limits, "b");
    control_test::Numbers numbers(7);
    Bytes held[2] = {0, 0};
    VgpuTenant* tenants[2] = {&needy, &busy};
    const auto change = [&] {
        const std::size_t who = numbers.below(2);
        VgpuTenant& tenant = *tenants[who];
        const Bytes bytes = (1 + numbers.below(40)) * kMiB;
        if (tenant.charge(bytes)) {
            held[who] += bytes;
            return;
        }
        tenant.refused(bytes);
        const Bytes back = std::min(bytes, held[who]);
        tenant.ledger->release(tenant.slot, back);
        held[who] -= back;
    };
    host.after_look = [&] {
        if (numbers.below(2) == 0) change();
    };
    std::uint64_t last_id = 0;
    for (int i = 0; i < 20'000; ++i) {
        change();
        const Bytes before = host.sum();
        host.controller->step();
        const auto newest = host.controller->decisions(1);
        const bool is_new = !newest.empty() && newest[0].id != last_id;
        const double change = is_new ? change_of(newest[0]) : 0;
        if (is_new) last_id = newest[0].id;
        REQUIRE(static_cast<double>(host.sum()) <= static_cast<double>(before) + change);
        REQUIRE(host.sum() <= kRoom);
        for (std::size_t who = 0; who < 2; ++who) {
            REQUIRE(held[who] <= tenants[who]->limits().quota_bytes);
        }
    }
    const auto& outcomes = host.controller->counters().outcomes;
    CHECK(outcomes[static_cast<std::size_t>(Outcome::kUnjudged)] > 20);
    CHECK(outcomes[static_cast<std::size_t>(Outcome::kFailed)] > 20);
}

TEST_SUITE_END();
