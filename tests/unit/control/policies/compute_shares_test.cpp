// Compute shares of vGPUs: the proposals, and tenants that begin late, rest and burst in simulated
// time.

#include <doctest/doctest.h>

#include <functional>

#include "fabricd/control/policies/host_policy.hpp"
#include "tests/support/decision_values.hpp"
#include "tests/unit/control/emulated_host.hpp"

using namespace control_test;

namespace {

QuotaWindow user(const char* name, double usage, std::uint64_t percent, double promised,
                 double held_up) {
    QuotaWindow made;
    made.name = name;
    made.quota = 1;
    made.usage = usage;
    made.percent = percent;
    made.promised = 1;
    made.promised_percent = promised;
    made.held_up = held_up;
    return made;
}

/// Wants a part of the GPU's time in each window, and gets at most its share of it.
struct Tenant {
    const char* name;
    double promised;  // per cent
    std::function<double(int)> wants;
    double percent = 0;
    double smooth = 0;  // what the ledger's mean says of it
    double got = 0;     // in all
    int short_for = 0;  // windows in a row with less than it needs of its promise
    int worst = 0;
};

struct Gpu {
    explicit Gpu(std::vector<Tenant> all) : tenants(std::move(all)), loop(acting()) {
        for (Tenant& tenant : tenants) tenant.percent = tenant.promised;
    }

    void step() {
        Window window;
        window.number = static_cast<std::uint64_t>(++now);
        window.length_s = 1;
        QuotaDevice device{"gpu0", 1e9, 0, {}};
        for (Tenant& tenant : tenants) {
            const double wanted = tenant.wants(now);
            const double busy = std::min(wanted, tenant.percent);
            tenant.got += busy;
            tenant.smooth += 0.13 * (busy / 100 - tenant.smooth);
            const bool is_short = busy + 1 < std::min(wanted, tenant.promised);
            tenant.short_for = is_short ? tenant.short_for + 1 : 0;
            tenant.worst = std::max(tenant.worst, tenant.short_for);
            device.users.push_back(user(tenant.name, tenant.smooth,
                                        static_cast<std::uint64_t>(tenant.percent), tenant.promised,
                                        wanted > busy ? 1 - busy / wanted : 0));
        }
        window.devices = {device};
        double sum = 0;
        for (const Decision& decision : loop.tick(window).decisions) {
            ++decisions;
            for (Tenant& tenant : tenants) {
                tenant.percent = after_of(decision, tenant.name, tenant.percent);
            }
        }
        for (const Tenant& tenant : tenants) sum += tenant.percent;
        REQUIRE(sum == 100);
    }

    std::vector<Tenant> tenants;
    Loop loop;
    int now = 0, decisions = 0;
};

double all_of_it(int) {
    return 100;
}

}  // namespace

TEST_SUITE("control.policies.compute_shares") {
    TEST_CASE(
        "time that is not used goes to tenants that are held up, in steps; what is unknown stays") {
        QuotaDevice device{"gpu0", 1e9, 0, {}};
        device.users = {user("busy", 0.20, 20, 20, 0.5), user("idle", 0.01, 70, 70, 0),
                        user("unseen", 0, 0, 0, 0)};
        const auto decision = propose_compute_shares(device, acting());
        REQUIRE(decision);
        CHECK(kind_of(*decision) == ActionKind::kComputeShare);
        CHECK(names_of(*decision) == std::vector<std::string>{"idle", "busy"});
        CHECK(sum(after_of(*decision)) == 90);
        CHECK(after_of(*decision)[1] == 45);  // a quarter of the device at once
        // No tenant misses anything, however little others use; or it is all in use.
        device.users[0].held_up = 0.04;
        CHECK_FALSE(propose_compute_shares(device, acting()));
        device.users[0].held_up = 0.5;
        device.users[1].usage = 0.65;
        CHECK_FALSE(propose_compute_shares(device, acting()));
        device.users[1].usage = 0.01;
        device.users[1].percent = 95;
        CHECK_FALSE(propose_compute_shares(device, acting()));
    }

    TEST_CASE("an idle vGPU keeps a per cent, also where no least share is asked for") {
        ControlConfig config = acting();
        config.share_min = 0;
        config.quota_step = 1;
        QuotaDevice device{"gpu0", 1e9, 0, {}};
        device.users = {user("busy", 1, 50, 50, 0.5), user("idle", 0, 50, 50, 0)};
        const auto decision = propose_compute_shares(device, config);
        REQUIRE(decision);
        CHECK(after_of(*decision, "busy", 0) == 99);
        CHECK(after_of(*decision, "idle", 0) == 1);
    }

    TEST_CASE("those that are held up share what is there by what they would use unhindered") {
        ControlConfig config = acting();
        config.quota_step = 1;
        QuotaDevice device{"gpu0", 1e9, 0, {}};
        // Both would use half: 0.25 / (1 - 0.5), 0.375 / (1 - 0.25). The idle one keeps 4, which is
        // a tenth of its third; of the other 46 each gets 23.
        device.users = {user("a", 0.25, 20, 20, 0.5), user("b", 0.375, 30, 30, 0.25),
                        user("idle", 0, 50, 50, 0)};
        const auto decision = propose_compute_shares(device, config);
        REQUIRE(decision);
        CHECK(after_of(*decision, "a", 0) == 43);
        CHECK(after_of(*decision, "b", 0) == 53);
        CHECK(after_of(*decision, "idle", 0) == 4);
    }

    TEST_CASE("a gain of five per cent is one, and a hold-up of a twentieth of the time is none") {
        QuotaDevice device{"gpu0", 1e9, 0, {}};
        // The idle one keeps 3 of 50.
        device.users = {user("busy", 0.4, 42, 42, 0.5), user("idle", 0, 8, 8, 0)};
        const auto decision = propose_compute_shares(device, acting());
        REQUIRE(decision);
        CHECK(after_of(*decision, "busy", 0) == 47);
        device.users[0].held_up = 0.05;
        CHECK_FALSE(propose_compute_shares(device, acting()));
        device.users = {user("busy", 0.4, 42, 42, 0.5), user("idle", 0, 7, 7, 0)};
        CHECK_FALSE(propose_compute_shares(device, acting()));
    }

    TEST_CASE("without a promise the share of now is one") {
        QuotaDevice device{"gpu0", 1e9, 0, {}};
        device.users = {user("busy", 0.20, 20, 0, 0.5), user("idle", 0.01, 70, 0, 0)};
        const auto decision = propose_compute_shares(device, acting());
        REQUIRE(decision);
        std::vector<double> promised;
        for (const Fact& fact : decision->facts) {
            if (fact.name.find("promised") != std::string::npos) promised.push_back(fact.value);
        }
        CHECK(promised == std::vector<double>{20, 70});
    }

    TEST_CASE(
        "promises beyond what there is count in proportion, and an idle one keeps its least") {
        QuotaDevice device{"gpu0", 1e9, 0, {}};
        // 50 per cent for promises of 100: 25 for each.
        device.users = {user("a", 0.2, 20, 50, 0.5), user("b", 0.3, 30, 50, 0)};
        const auto half = propose_share_returns(device, acting());
        REQUIRE(half);
        CHECK(after_of(*half, "a", 0) == 25);
        CHECK(after_of(*half, "b", 0) == 25);
        // One per cent too little is too little.
        device.users = {user("a", 0.5, 49, 50, 0.5), user("b", 0.5, 51, 50, 0.5)};
        const auto one = propose_share_returns(device, acting());
        REQUIRE(one);
        CHECK(after_of(*one, "a", 0) == 50);
        device.users = {user("a", 0.5, 50, 50, 0.5), user("b", 0.5, 50, 50, 0.5)};
        CHECK_FALSE(propose_share_returns(device, acting()));
        device.users = {user("owner", 0.2, 20, 50, 0.5), user("other", 0.6, 60, 30, 0.5),
                        user("idle", 0, 20, 20, 0)};
        const auto back = propose_share_returns(device, acting());
        REQUIRE(back);
        CHECK(after_of(*back, "owner", 0) >= 50);
        CHECK(after_of(*back, "idle", 0) == 4);
    }

    TEST_CASE("an owner that is held up gets its promise at once, and that is not judged") {
        QuotaDevice device{"gpu0", 1e9, 0, {}};
        device.users = {user("borrower", 0.9, 95, 50, 0.3), user("owner", 0.05, 5, 50, 0.9)};
        const auto back = propose_share_returns(device, acting());
        REQUIRE(back);
        CHECK(back->outcome == Outcome::kDone);
        CHECK(after_of(*back, "owner", 0) == 50);
        CHECK(names_of(*back).front() == "borrower");
        device.users[1].held_up = 0;
        CHECK_FALSE(propose_share_returns(device, acting()));
    }

    TEST_CASE("a tenant that rests for a minute or begins 5 minutes late gets its promise back") {
        const auto rests = [](int now) { return now > 100 && now <= 160 ? 0.0 : 100.0; };
        const auto late = [](int now) { return now < 300 ? 0.0 : 100.0; };
        for (const auto& wants : {std::function<double(int)>(rests), {late}}) {
            Gpu gpu({{"busy", 50, all_of_it}, {"owner", 50, wants}});
            double most = 0;
            for (int i = 0; i < 450; ++i) {
                gpu.step();
                most = std::max(most, gpu.tenants[0].percent);
            }
            CHECK(most == 95);  // what the other does not use is used
            CHECK(gpu.tenants[1].percent == 50);
            CHECK(gpu.tenants[1].worst <= 3);
        }
    }

    TEST_CASE("a tenant that wants 45 % in bursts is not starved by one that wants all") {
        for (const int period : {2, 6, 20, 60}) {
            CAPTURE(period);
            const auto bursts = [=](int now) { return now % period < period / 2 ? 45.0 : 0.0; };
            Gpu gpu({{"greedy", 50, all_of_it}, {"bursts", 50, bursts}});
            double wanted = 0;
            for (int i = 0; i < 600; ++i) {
                gpu.step();
                wanted += bursts(gpu.now);
            }
            CHECK(gpu.tenants[1].worst <= 3);
            CHECK(gpu.tenants[1].got >= 0.85 * wanted);
            CHECK(gpu.tenants[0].got >= 49 * 600);
        }
    }
}
