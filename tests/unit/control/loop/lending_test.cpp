// Promises of a divided whole: the plan of a window, what is remembered, and days of tenants that
// come and go in simulated time.

#include "fabricd/control/stages/lending.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "fabricd/control/policies/host_policy.hpp"
#include "fabricd/control/policies/pool_policy.hpp"
#include "fabricd/control/policies/promises.hpp"
#include "tests/support/decision_values.hpp"
#include "tests/unit/control/emulated_host.hpp"

using namespace control_test;

namespace {

constexpr double kMiB = 1024 * 1024;
constexpr double kGiB = 1024 * kMiB;

/// A tenant that asks for memory until it has what it wants, and gives back what it does not.
struct Tenant {
    const char* name;
    double promised;
    std::function<double(int)> wants;  // bytes, by window
    double quota = 0, used = 0;
    int short_for = 0;  // windows in a row in which it has less than it needs of its promise
    int worst = 0;
};

/// Tenants of one pool or one GPU, and the loop that divides it: a second per window.
struct Host {
    Host(std::vector<Tenant> all, double memory, bool is_gpu) : tenants(std::move(all)) {
        ControlConfig config = acting();
        loop.emplace(config);
        for (Tenant& tenant : tenants) tenant.quota = tenant.promised;
        room = is_gpu ? memory : quotas();
        gpu = is_gpu;
        device_memory = memory;
    }

    double quotas() const {
        return std::accumulate(tenants.begin(), tenants.end(), 0.0,
                               [](double sum, const Tenant& one) { return sum + one.quota; });
    }

    void step() {
        Window window;
        window.number = static_cast<std::uint64_t>(++now);
        window.length_s = 1;
        QuotaDevice device{"gpu0", device_memory, 0, {}};
        for (Tenant& tenant : tenants) {
            const double wanted = tenant.wants(now);
            const bool is_short = tenant.quota < std::min(wanted, tenant.promised);
            tenant.short_for = is_short ? tenant.short_for + 1 : 0;
            tenant.worst = std::max(tenant.worst, tenant.short_for);
            tenant.used = std::min(wanted, tenant.quota);
            QuotaWindow user;
            user.name = tenant.name;
            user.quota = tenant.quota;
            user.used = tenant.used;
            user.denied = wanted - tenant.used;
            user.promised = tenant.promised;
            user.speed = gpu ? 1 : 10;
            device.users.push_back(user);
        }
        if (gpu) window.devices = {device};
        if (!gpu) {
            window.pool.devices = device.users;
            window.pool.most.assign(tenants.size(), device_memory);
        }
        const double before = quotas();
        for (const Decision& decision : loop->tick(window).decisions) {
            ++decisions;
            for (Tenant& tenant : tenants) {
                tenant.quota = after_of(decision, tenant.name, tenant.quota);
            }
        }
        // What one gives another one gets: to the byte.
        REQUIRE(quotas() >= before);
        REQUIRE(quotas() <= room);
        for (const Tenant& tenant : tenants) REQUIRE(tenant.quota >= tenant.used);
    }

    std::vector<Tenant> tenants;
    std::optional<Loop> loop;
    double room = 0, device_memory = 0;
    bool gpu = false;
    int now = 0, decisions = 0;
};

Holder holder(double promised, double held, double in_use, double asks = 0) {
    return {promised, held, in_use, in_use, asks};
}

}  // namespace

TEST_SUITE("control.loop.lending") {
    TEST_CASE(
        "one that needs its promise gets loans back first, then what is free, then a loan itself") {
        // The second has borrowed from the first; the third uses little of its own.
        const Holder three[] = {holder(100, 20, 20, 80), holder(100, 180, 130, 50),
                                holder(100, 100, 10)};
        CHECK(give_back(three, 310) == std::vector<double>{100, 130, 80});
        // Neither what is in use nor a promise of one that asks for it can be taken.
        const Holder full[] = {holder(100, 20, 20, 80), holder(100, 180, 180),
                               holder(100, 100, 100)};
        CHECK(give_back(full, 300) == std::vector<double>{20, 180, 100});
        // No holder is owed anything.
        const Holder content[] = {holder(100, 100, 100, 50), holder(100, 100, 0)};
        CHECK(give_back(content, 200) == std::vector<double>{100, 100});
    }

    TEST_CASE(
        "one that wants more than its promise gets what is free, and what others do not use") {
        const Holder three[] = {holder(100, 100, 100, 60), holder(100, 100, 10),
                                holder(50, 90, 60)};
        CHECK(lend(three, 310) == std::vector<double>{160, 90, 60});
        const Holder alone[] = {holder(100, 100, 100, 60)};
        CHECK(lend(alone, 130) == std::vector<double>{130});
        // No more than it could have at all.
        Holder small = alone[0];
        small.most = 110;
        CHECK(lend({&small, 1}, 300) == std::vector<double>{110});
    }

    TEST_CASE("quotas that do not fit any more shrink as far as they are not in use") {
        const Holder three[] = {holder(100, 140, 100), holder(100, 100, 10),
                                holder(50, 60, 60, 20)};
        CHECK(sum(fit(three, 200)) == 200);
        CHECK(sum(fit(three, 10)) == 170);
    }

    TEST_CASE("what is given is what is taken, in pairs, whatever the numbers") {
        Numbers numbers(17);
        for (int i = 0; i < kRounds; ++i) {
            std::vector<Holder> holders(1 + numbers.below(6));
            double held = 0;
            for (Holder& one : holders) {
                one.promised = std::floor(1e9 * numbers.uniform());
                one.held = std::floor(1e9 * numbers.uniform());
                one.in_use = std::floor(one.held * numbers.uniform());
                one.keeps = one.in_use + std::floor(1e8 * numbers.uniform());
                one.asks = numbers.below(2) == 0 ? 0 : 1e9 * numbers.uniform();
                one.weight = numbers.plausible();
                held += one.held;
            }
            const double room = std::floor(held * (0.8 + 0.4 * numbers.uniform()));
            for (const auto& after : {give_back(holders, room), lend(holders, room)}) {
                CHECK(sum(after) >= held);
                CHECK(sum(after) <= std::max(room, held));
                for (std::size_t k = 0; k < holders.size(); ++k) {
                    CHECK(after[k] == std::floor(after[k]));
                    CHECK(after[k] >= holders[k].in_use);
                    if (holders[k].asks == 0) CHECK(after[k] <= holders[k].held);
                }
            }
            const auto returned = give_back(holders, room);
            const auto lent = lend(holders, room);
            for (std::size_t k = 0; k < holders.size(); ++k) {
                const Holder& one = holders[k];
                // Of promises only loans are taken, unless it asks for nothing.
                if (one.asks > 0) CHECK(returned[k] >= std::min(one.held, one.promised));
                if (one.asks > 0) CHECK(lent[k] >= one.held);
            }
            CHECK(sum(fit(holders, room)) <= std::max(room, held));
        }
    }

    TEST_CASE("a promise is what the file says until others than the loop set the quota") {
        Promises promises;
        QuotaWindow user;
        user.name = "a";
        const auto see = [&](double quota) {
            user.quota = quota;
            user.promised = 64;
            promises.complete({&user, 1}, 5);
            return user.promised;
        };
        CHECK(see(10) == 64);  // of a daemon before this one, which had lent it
        Decision lent;
        lent.action = Quota{{{"a", 10, 5}}};
        promises.note(lent);
        CHECK(see(5) == 64);
        promises.note(lent);
        CHECK(see(10) == 64);  // it could not be carried out
        CHECK(see(20) == 20);
        CHECK(see(20) == 20);
    }

    TEST_CASE("two tenants that take turns never keep a third from its promise") {
        for (const bool gpu : {false, true}) {
            CAPTURE(gpu);
            const auto turn = [](int half) {
                return [half](int now) { return now / 20 % 2 == half ? 120 * kMiB : 0; };
            };
            const auto idle_until_400 = [](int now) { return now < 400 ? 0 : 64 * kMiB; };
            Host host({{"x", 64 * kMiB, turn(0)},
                       {"y", 64 * kMiB, turn(1)},
                       {"third", 64 * kMiB, idle_until_400}},
                      192 * kMiB, gpu);
            double least = 1e300;
            for (int i = 0; i < 600; ++i) {
                host.step();
                least = std::min(least, host.tenants[2].quota);
            }
            CHECK(least >= 6 * kMiB);
            CHECK(host.tenants[2].worst <= 3);
            CHECK(host.tenants[2].quota >= 64 * kMiB);
            for (const Tenant& tenant : host.tenants) CHECK(tenant.worst <= 3);
        }
    }

    TEST_CASE("of four vGPUs of 20 GiB the idle ones lend and get back, and nothing is lost") {
        const auto from = [](int begin, double bytes) {
            return [=](int now) { return now < begin ? 0.0 : bytes; };
        };
        Host host({{"asks", 20 * kGiB, [](int now) { return now < 300 ? 70 * kGiB : 15 * kGiB; }},
                   {"b", 20 * kGiB, from(300, 18 * kGiB)},
                   {"c", 20 * kGiB, from(350, 20 * kGiB)},
                   {"d", 20 * kGiB, from(1000, 0)}},
                  80 * kGiB, true);
        for (int i = 0; i < 290; ++i) {
            host.step();
            REQUIRE(host.quotas() == 80 * kGiB);
        }
        CHECK(host.tenants[0].used > 68 * kGiB);
        for (int i = 0; i < 200; ++i) {
            host.step();
            REQUIRE(host.quotas() == 80 * kGiB);
        }
        CHECK(host.tenants[1].quota >= 18 * kGiB);
        CHECK(host.tenants[2].quota >= 20 * kGiB);
        for (const Tenant& tenant : host.tenants) CHECK(tenant.worst <= 3);
    }

    TEST_CASE("a tenant that asks gets what is free together with what was lent") {
        // 10 are free, 20 were lent to the second one, of whose own nothing is left.
        Holder needy = holder(10, 10, 10, 30);
        const std::vector<Holder> both = {needy, holder(10, 30, 10)};
        CHECK(lend(both, 50) == std::vector<double>{40, 10});
    }

    TEST_CASE("a quota's room is the device less the larger of the two reserves") {
        ControlConfig config = acting();
        const auto room = [&](double of_device, double of_config) {
            config.quota_reserve = static_cast<fabricshm::Bytes>(of_config);
            QuotaDevice device{"gpu0", 8e9, of_device, {}};
            device.users.push_back({"a", 1e9, 1e9, 1e9, 1, 0, 0, 0, 1, 0});
            const auto decision = propose_quotas(device, config);
            REQUIRE(decision);
            CHECK(decision->reason == "954 MiB were refused on gpu0");
            return decision->facts.back().value;
        };
        CHECK(room(1e9, 2e9) == 6e9);
        CHECK(room(3e9, 2e9) == 5e9);
        CHECK(room(0, 0) == 8e9);
    }

    TEST_CASE("one unusable number of a device is no proposal") {
        QuotaDevice device{"gpu0", 8e9, 0, {}};
        device.users.push_back({"a", 1e9, 1e9, 1e9, 1, 0, 0, 0, 1, 0});
        REQUIRE(propose_quotas(device, acting()));
        for (double* number :
             {&device.memory, &device.reserve, &device.users[0].speed, &device.users[0].used,
              &device.users[0].delay, &device.users[0].priority}) {
            const double before = *number;
            for (const double unusable : {std::nan(""), -1.0}) {
                *number = unusable;
                CHECK_FALSE(propose_quotas(device, acting()));
            }
            *number = before;
        }
    }

    TEST_CASE("several that ask share by priority, and one beyond its quota asks for all it uses") {
        QuotaDevice device{"gpu0", 2.2e9, 0, {}};
        device.users.push_back({"a", 1e9, 1e9, 1e9, 1, 0, 0, 0, 3, 0});
        device.users.push_back({"b", 1e9, 1e9, 1e9, 1, 0, 0, 0, 1, 0});
        const auto shared = propose_quotas(device, acting());
        REQUIRE(shared);
        CHECK(after_of(*shared, "a", 0) == doctest::Approx(1.15e9));
        CHECK(after_of(*shared, "b", 0) == doctest::Approx(1.05e9));
        // More than a step, since it is there already.
        QuotaDevice beyond{"gpu0", 8e9, 0, {}};
        beyond.users.push_back({"a", 1e9, 2e9, 1, 1, 0, 0, 0, 1, 0});
        const auto decision = propose_quotas(beyond, acting());
        REQUIRE(decision);
        CHECK(after_of(*decision, "a", 0) == doctest::Approx(2e9));
    }

    TEST_CASE("what is reclaimed is what its own user does not use") {
        Decision undone;
        undone.id = 4;
        undone.action = Quota{{{"giver", 300, 200}, {"other", 200, 150}, {"taker", 100, 250}}};
        std::vector<QuotaWindow> users(3);
        users[0] = {"giver", 200, 20};
        users[1] = {"other", 150, 150};
        users[2] = {"taker", 250, 160};
        // 60 of the 150 that it got are in use: of 100 and 50 three fifths go back.
        const auto back = taking_back(undone, users);
        REQUIRE(back);
        CHECK(back->undoes == 4);
        CHECK(after_of(*back, "taker", 0) == 160);
        CHECK(after_of(*back, "giver", 0) == 260);
        CHECK(after_of(*back, "other", 0) == 180);
        // A use that is not known may be all of it.
        users[2].used = std::nan("");
        CHECK_FALSE(taking_back(undone, users));
    }

    TEST_CASE("a quota of nothing is not set, since it would be none at all") {
        ControlConfig config = acting();
        config.quota_filled = 1;
        config.quota_min = 0;
        QuotaDevice device{"gpu0", 100 * kMiB, 0, {}};
        // Together more than the device: what is not used shrinks to nothing.
        device.users.push_back({"used", 100 * kMiB, 100 * kMiB, 0, 1, 0, 0, 0, 1, 0});
        device.users.push_back({"idle", 8 * kMiB, 0, 0, 1, 0, 0, 0, 1, 0});
        for (const double more : {0.0, 1.0, 2.0}) {
            device.memory = 100 * kMiB + more;
            const auto decision = propose_quotas(device, config);
            REQUIRE(decision);
            CHECK(after_of(*decision, "idle", 0) == std::max(more, 1.0));
        }
    }

    TEST_CASE("one that lends all but the last byte gives what the taker gets, and no less") {
        ControlConfig config = acting();
        config.quota_min = 0;
        const QuotaWindow taker{"taker", 64 * kMiB, 64 * kMiB, 10 * kMiB, 1, 0, 0, 0, 1, 0};
        for (const double lent : {1.0, 2.0, 1 * kMiB}) {
            CAPTURE(lent);
            const QuotaWindow lender{"lender", lent, 0, 0, 1, 0, 0, 0, 1, 0};
            const double all = 64 * kMiB + lent;
            const auto vgpus = propose_quotas({"gpu0", all, 0, {taker, lender}}, config);
            const auto pool = propose_pool_quotas({{taker, lender}, {1e12, 1e12}}, config);
            CHECK(vgpus.has_value() == (lent > 1));
            CHECK(pool.has_value() == (lent > 1));
            for (const auto& decision : {vgpus, pool}) {
                if (!decision) continue;
                CHECK(after_of(*decision, "lender", 0) == 1);
                CHECK(after_of(*decision, "taker", 0) == all - 1);
            }
        }
    }
}
