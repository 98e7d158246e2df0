#include "fabricd/control/policies/cache_policy.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include "fabricd/control/loop/host_loop.hpp"

using namespace fabricd;

namespace {

constexpr double kMiB = 1024.0 * 1024;
constexpr double kGiB = 1024 * kMiB;

ControlConfig acting() {
    ControlConfig config;
    config.mode = "on";
    config.actions = "cache";
    return config;
}

CacheWindow cache(const char* name, double quota, double stall_s, double refetched) {
    CacheWindow one;
    one.name = name;
    one.size = 8 * kGiB;
    one.quota = one.committed = quota;
    one.floor = kGiB;
    one.stall_s = stall_s;
    one.refetched = refetched;
    one.near = refetched / 2;
    one.readers = 4;
    return one;
}

CacheRoomWindow room(std::vector<CacheWindow> caches, double jobs, double lacked) {
    CacheRoomWindow window;
    window.caches = std::move(caches);
    window.length_s = 1;
    window.capacity = 16 * kGiB;
    window.used = jobs;
    for (const CacheWindow& one : window.caches) window.used += one.committed;
    window.lacked = lacked;
    return window;
}

double sum_of(const CacheRoomWindow& window) {
    double sum = 0;
    for (const CacheWindow& one : window.caches) sum += one.quota;
    return sum;
}

// As the daemon carries it out; false when a change is not of what is there.
bool apply(CacheRoomWindow& window, const Decision& decision) {
    const auto* action = action_as<CacheQuota>(decision);
    for (const auto& change : action->changes) {
        for (CacheWindow& one : window.caches) {
            if (one.name != change.name) continue;
            if (one.quota != static_cast<double>(change.before)) return false;
            one.quota = static_cast<double>(change.after);
            window.used += std::min(one.quota, one.size) - one.committed;
            one.committed = one.quota;
        }
    }
    return true;
}

std::optional<Decision> decide(const CacheRoomWindow& window, CacheMemory& memory,
                               const ControlConfig& config) {
    update(memory, window, config);
    auto gift = propose_cache_gifts(window, memory, config);
    return gift ? std::move(gift) : propose_cache_quotas(window, memory, config);
}

}  // namespace

TEST_SUITE("control.cache_policy") {
    TEST_CASE("what jobs lacked does not go back to the cache") {
        const ControlConfig config = acting();
        CacheRoomWindow window = room({cache("data", 8 * kGiB, 2, kGiB)}, 8 * kGiB, kGiB);
        CacheMemory memory;
        const auto decision = decide(window, memory, config);
        REQUIRE(decision);
        CHECK(decision->outcome == Outcome::kDone);
        CHECK(decision->reason == "1024 MiB were lacking to jobs: caches keep 1024 MiB less");
        REQUIRE(apply(window, *decision));
        CHECK(window.caches[0].quota == 7 * kGiB);
        // The cache's readers wait, and it gets nothing until no request has lacked any for a
        // while.
        window.lacked = 0;
        window.used -= kGiB;  // the job has it, or has ended
        for (int i = 1; i < config.cool_down; ++i) CHECK_FALSE(decide(window, memory, config));
        const auto again = decide(window, memory, config);
        REQUIRE(again);
        CHECK(action_as<CacheQuota>(*again)->changes[0].after > 7 * kGiB);
    }

    TEST_CASE("a cache without stalls, or without a byte that comes again, gets nothing") {
        const ControlConfig config = acting();
        for (const auto& one : {cache("data", 4 * kGiB, 0.01, kGiB), cache("data", 4 * kGiB, 2, 0),
                                cache("data", 8 * kGiB, 2, kGiB)}) {
            CacheMemory memory;
            for (int i = 0; i < 100; ++i) CHECK_FALSE(decide(room({one}, 0, 0), memory, config));
        }
        CacheMemory memory;
        const CacheRoomWindow window = room({cache("data", 4 * kGiB, 2, kGiB)}, 0, 0);
        for (int i = 1; i < config.cool_down; ++i) CHECK_FALSE(decide(window, memory, config));
        CHECK(decide(window, memory, config));
    }

    // A silo whose fetches last two and a half windows: bytes count where a fetch begins.
    TEST_CASE("a cache whose fetches last longer than a window gets more, too") {
        const ControlConfig config = acting();
        CacheMemory memory;
        int windows = 0;
        for (int half = 0; windows < 100; ++windows, half += 2) {
            const bool begins = half % 5 < 2;
            const auto one = cache("data", 4 * kGiB, 4, begins ? kMiB : 0);
            if (decide(room({one}, 0, 0), memory, config)) break;
        }
        CHECK(windows >= config.cool_down - 1);
        CHECK(windows < config.cool_down + 5 * config.imbalance_windows);
        // Where readers do not wait in between it begins again.
        memory = {};
        for (int i = 0; i < 100; ++i) {
            const auto one = cache("data", 4 * kGiB, i % 3 != 0 ? 4 : 0, i % 3 == 1 ? kMiB : 0);
            CHECK_FALSE(decide(room({one}, 0, 0), memory, config));
        }
    }

    TEST_CASE("one cache gets from another what that one gives, where nothing is free") {
        const ControlConfig config = acting();
        CacheRoomWindow window =
            room({cache("idle", 8 * kGiB, 0, 0), cache("busy", 4 * kGiB, 3, kGiB)}, 4 * kGiB, 0);
        CacheMemory memory;
        const double before = sum_of(window);
        int decisions = 0;
        for (int i = 0; i < 400; ++i) {
            const auto decision = decide(window, memory, config);
            if (!decision) continue;
            ++decisions;
            REQUIRE(apply(window, *decision));
            CHECK(sum_of(window) == before);
            CHECK(window.caches[0].quota >= window.caches[0].floor);
        }
        CHECK(decisions > 0);
        CHECK(window.caches[1].quota == 8 * kGiB);
    }

    TEST_CASE("no number makes a decision that can't be") {
        const ControlConfig config = acting();
        for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN(),
                                 std::numeric_limits<double>::infinity()}) {
            for (double CacheWindow::*field :
                 {&CacheWindow::quota, &CacheWindow::floor, &CacheWindow::stall_s,
                  &CacheWindow::refetched, &CacheWindow::size, &CacheWindow::committed}) {
                CacheRoomWindow window = room({cache("data", 4 * kGiB, 2, kGiB)}, 0, kGiB);
                window.caches[0].*field = bad;
                CacheMemory memory;
                memory.demand = kGiB;
                CHECK_FALSE(propose_cache_gifts(window, memory, config));
                memory.calm = 1000;
                memory.caches["data"].stalled = 1000;
                CHECK_FALSE(propose_cache_quotas(window, memory, config));
            }
        }
    }

    TEST_CASE("random hosts: sums, minima and steps hold, and constant input comes to rest") {
        for (unsigned seed = 0; seed < 300; ++seed) {
            CAPTURE(seed);
            std::mt19937 random(seed);
            const auto part = [&] { return static_cast<double>(random() % 1000) / 1000; };
            ControlConfig config = acting();
            config.quota_step = 0.05 + part() / 2;
            config.cache_min = part() / 2;
            std::vector<CacheWindow> caches;
            for (unsigned i = 0; i < 1 + random() % 4; ++i) {
                caches.push_back(cache(std::string(1, char('a' + i)).c_str(),
                                       std::round(part() * 8 * 64) * 16 * kMiB * 2,
                                       part() < 0.5 ? 0 : 4 * part(), part() < 0.3 ? 0 : kGiB));
                caches.back().quota = caches.back().committed =
                    std::min(caches.back().quota, caches.back().size);
                caches.back().floor = std::min(kGiB * part(), caches.back().quota);
            }
            CacheRoomWindow window =
                room(caches, part() * 4 * kGiB, part() < 0.5 ? 0 : kGiB * part());
            window.capacity = std::max(window.capacity, window.used);
            CacheMemory memory;
            std::vector<int> direction(caches.size(), 0);
            int turns = 0, last = -1;
            for (int i = 0; i < 2000; ++i) {
                const auto decision = decide(window, memory, config);
                if (!decision) continue;
                last = i;
                const CacheRoomWindow before = window;
                REQUIRE(apply(window, *decision));
                const double jobs = std::max(
                    before.used -
                        [&] {
                            double sum = 0;
                            for (const auto& one : before.caches) sum += one.committed;
                            return sum;
                        }(),
                    0.0);
                CHECK(sum_of(window) <= std::max(sum_of(before), window.capacity - jobs) + 1);
                for (std::size_t c = 0; c < window.caches.size(); ++c) {
                    const CacheWindow& was = before.caches[c];
                    const double change = window.caches[c].quota - was.quota;
                    if (change == 0) continue;
                    CHECK(std::abs(change) <=
                          std::max(config.quota_step * was.quota, 16 * kMiB) + 1);
                    if (change < 0) {
                        CHECK(window.caches[c].quota >= was.floor);
                        CHECK(window.caches[c].quota >= config.cache_min * was.size);
                    }
                    CHECK(window.caches[c].quota <= was.size);
                    const int way = change > 0 ? 1 : -1;
                    turns += direction[c] == -way ? 1 : 0;
                    direction[c] = way;
                }
            }
            // Stalls and demand stay what they are: nothing goes to and fro.
            CHECK(turns == 0);
            CHECK(last < 1900);
        }
    }

    TEST_CASE("in the loop a gift is done, and more memory is judged and shown with its facts") {
        const ControlConfig config = acting();
        HostLoop loop(config);
        std::uint64_t last_id = 0;
        Window window;
        window.length_s = 1;
        window.room = room({cache("data", 8 * kGiB, 2, kGiB)}, 8 * kGiB, kGiB);
        loop.pace().begin();
        auto told = loop.tick(window, 0.1, last_id);
        REQUIRE(told.decisions.size() == 1);
        CHECK(kind_of(told.decisions[0].action) == ActionKind::kCacheQuota);
        CHECK(told.decisions[0].outcome == Outcome::kDone);
        CHECK(told.decisions[0].facts.size() == 8);
        REQUIRE(apply(window.room, told.decisions[0]));
        window.room.lacked = 0;
        window.room.used -= kGiB;
        std::optional<Decision> grows;
        std::optional<DecisionOutcome> outcome;
        for (int i = 0; i < 60 && !outcome; ++i) {
            loop.pace().begin();
            told = loop.tick(window, 0.1, last_id);
            for (const auto& one : told.outcomes) outcome = one;
            if (told.decisions.empty()) continue;
            grows = told.decisions[0];
            REQUIRE(apply(window.room, *grows));
        }
        REQUIRE(grows);
        CHECK(grows->outcome == Outcome::kPending);
        REQUIRE(outcome);
        CHECK(outcome->id == grows->id);
        CHECK(outcome->outcome == Outcome::kUnjudged);  // no job trained
    }
}
