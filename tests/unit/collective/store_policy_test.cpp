#include "libfabricshm/collective/store_policy.hpp"

#include <doctest/doctest.h>

using namespace fabricshm;
using namespace std::chrono_literals;

namespace {

// A machine on which the two ways take so long. Returns how many operations went past the cache.
struct Machine {
    Duration cached;
    Duration past;
};

int run(StorePolicy& policy, int cell, const Machine& machine, int operations) {
    int past = 0;
    for (int i = 0; i < operations; ++i) {
        const bool now = policy.past_cache(cell);
        past += now ? 1 : 0;
        policy.ran(cell, now ? machine.past : machine.cached);
    }
    return past;
}

constexpr Machine kNear{100us, 150us};
constexpr Machine kFar{300us, 100us};

}  // namespace

TEST_SUITE("collective.store_policy") {
    TEST_CASE("the faster way is found and kept, whichever it is") {
        const int cell = StorePolicy::cell_of(StorePlace::kSlots, Kind::kAllreduce, 1 * kMiB);
        for (const bool first : {false, true}) {
            CAPTURE(first);
            StorePolicy near;
            near.begin_with(cell, first, false);
            run(near, cell, kNear, 100);
            CHECK(run(near, cell, kNear, 10'000) < 100);
            StorePolicy far;
            far.begin_with(cell, first, true);
            run(far, cell, kFar, 100);
            CHECK(run(far, cell, kFar, 10'000) > 9'900);
        }
    }

    TEST_CASE("a machine that changes is followed") {
        StorePolicy policy;
        const int cell = StorePolicy::cell_of(StorePlace::kSlots, Kind::kAllreduce, 64 * kKiB);
        run(policy, cell, kNear, 5'000);
        CHECK_FALSE(policy.past_cache(cell));
        run(policy, cell, kFar, 1'100);  // a trial comes at least once in 1024 operations
        CHECK(run(policy, cell, kFar, 50) == 50);
        run(policy, cell, kNear, 1'100);
        CHECK(run(policy, cell, kNear, 50) == 0);
    }

    TEST_CASE("cores that move apart are noticed by the time that operations take") {
        StorePolicy policy;
        const int cell = StorePolicy::cell_of(StorePlace::kSlots, Kind::kAllreduce, 2 * kMiB);
        run(policy, cell, kNear, 20'000);  // trials have become rare
        run(policy, cell, kFar, 28);       // the rest of a window, two others, and a trial
        CHECK(run(policy, cell, kFar, 50) == 50);
    }

    TEST_CASE("a difference within the noise changes nothing") {
        StorePolicy policy;
        const int cell = StorePolicy::cell_of(StorePlace::kOutputs, Kind::kAllGather, 8 * kMiB);
        policy.begin_with(cell, true, false);
        CHECK(run(policy, cell, {95us, 100us}, 10'000) > 9'900);
    }

    TEST_CASE("a sixth is reason enough to leave the first choice, but for ranks that take turns") {
        const int cell = StorePolicy::cell_of(StorePlace::kOutputs, Kind::kAllreduce, 8 * kMiB);
        const Machine machine{120us, 100us};
        StorePolicy alone;
        alone.begin_with(cell, false, false);
        run(alone, cell, machine, 100);
        CHECK(run(alone, cell, machine, 10'000) > 9'900);
        StorePolicy crowded;
        crowded.begin_with(cell, false, true);
        CHECK(run(crowded, cell, machine, 10'000) < 1'000);
    }

    TEST_CASE("operations that were slow by chance do not decide") {
        StorePolicy policy;
        const int cell = StorePolicy::cell_of(StorePlace::kSlots, Kind::kAllreduce, kMiB);
        for (int i = 0; i < 10'000; ++i) {
            const bool now = policy.past_cache(cell);
            const Duration took = now ? kNear.past : kNear.cached;
            policy.ran(cell, i % 3 == 0 ? 20 * took : took);
        }
        CHECK(run(policy, cell, kNear, 1'000) < 20);
    }

    TEST_CASE("cells are apart, small operations have none, and huge ones share the last") {
        const auto cell = [](StorePlace place, Kind kind, Bytes bytes) {
            return StorePolicy::cell_of(place, kind, bytes);
        };
        CHECK(cell(StorePlace::kSlots, Kind::kAllreduce, 8 * kKiB - 1) == -1);
        CHECK(cell(StorePlace::kSlots, Kind::kAllreduce, 8 * kKiB) == 0);
        CHECK(cell(StorePlace::kOutputs, Kind::kAllreduce, 512 * kKiB - 1) == -1);
        CHECK(cell(StorePlace::kSlots, Kind::kSend, kMiB) == -1);
        std::vector<bool> taken(kStoreCells);
        for (const auto place :
             {StorePlace::kSlots, StorePlace::kOutputs, StorePlace::kSharedOutput}) {
            for (int kind = 0; kind < kStoreKinds; ++kind) {
                for (Bytes bytes = 512 * kKiB; bytes <= 64 * kGiB; bytes *= 2) {
                    const int at = cell(place, static_cast<Kind>(kind), bytes);
                    REQUIRE(at >= 0);
                    REQUIRE(at < kStoreCells);
                    CHECK_FALSE(taken[static_cast<std::size_t>(at)]);
                    taken[static_cast<std::size_t>(at)] = true;
                    CHECK(StorePolicy::least_bytes(at) == bytes);
                }
            }
        }
        CHECK(cell(StorePlace::kSlots, Kind::kBarrier, ~Bytes{0}) < kStoreCells);
    }

    TEST_CASE("what rank 0 shows is what the others see, cell by cell") {
        GroupHeader header{};
        show_past_cache(header, 0, true);
        show_past_cache(header, 63, true);
        show_past_cache(header, 64, true);
        show_past_cache(header, kStoreCells - 1, true);
        show_past_cache(header, 63, false);
        CHECK(shown_past_cache(header, 0));
        CHECK_FALSE(shown_past_cache(header, 63));
        CHECK(shown_past_cache(header, 64));
        CHECK_FALSE(shown_past_cache(header, 65));
        CHECK(shown_past_cache(header, kStoreCells - 1));
    }
}
