// Collectives between processes, many more of them than cores.

#include <doctest/doctest.h>

#include "tests/support/collective_cases.hpp"
#include "tests/support/ranks.hpp"

using namespace fabricshm;
using namespace test_support;

namespace {

int failures(int world, Bytes per_rank, std::vector<CollectiveCase> cases) {
    return failures_in_processes(world, per_rank, [&](RankContext& context) {
        for (const CollectiveCase& wanted : cases) {
            if (!run_case(context, wanted)) return false;
        }
        return true;
    });
}

std::vector<CollectiveCase> all_kinds(std::initializer_list<std::uint64_t> counts,
                                      Placement placement) {
    std::vector<CollectiveCase> cases;
    for (int kind = 0; kind < kKindCount; ++kind) {
        if (is_message(static_cast<Kind>(kind)) || kind == static_cast<int>(Kind::kBarrier)) {
            continue;
        }
        for (const std::uint64_t count : counts) {
            CollectiveCase wanted;
            wanted.kind = static_cast<Kind>(kind);
            wanted.count = count;
            wanted.placement = placement;
            cases.push_back(wanted);
        }
    }
    return cases;
}

const std::initializer_list<std::uint64_t> kCounts = {0, 1, 100, 3000, 100003};

}  // namespace

TEST_SUITE("multiproc.collective") {
    // A case for each place, since the virtual machines run one on each kind of pool.
    TEST_CASE("four processes agree on every kind, with buffers in the arena") {
        CHECK(failures(4, 64 * kMiB, all_kinds(kCounts, Placement::kArena)) == 0);
    }

    TEST_CASE("four processes agree on every kind, with private buffers") {
        CHECK(failures(4, 64 * kMiB, all_kinds(kCounts, Placement::kPrivate)) == 0);
    }

    TEST_CASE("four processes agree on every kind, with one buffer in the arena and one private") {
        CHECK(failures(4, 64 * kMiB, all_kinds(kCounts, Placement::kMixed)) == 0);
    }

    TEST_CASE("four processes agree on every kind, in place") {
        CHECK(failures(4, 64 * kMiB, all_kinds(kCounts, Placement::kInPlace)) == 0);
    }

    TEST_CASE("large buffers are claimed chunk by chunk and stored past the cache") {
        std::vector<CollectiveCase> cases = all_kinds({1'500'001}, Placement::kArena);
        for (CollectiveCase& wanted : cases) {
            // Kinds with a part per rank reach the same size with smaller parts.
            if (!row_of(wanted.kind).takes_counts) wanted.count = 5'000'003;
        }
        CHECK(failures(3, 128 * kMiB, cases) == 0);
    }

    TEST_CASE("64 processes run collectives on a few cores") {
        CHECK(failures(64, 2 * kMiB, all_kinds({1, 40, 1000}, Placement::kArena)) == 0);
        CHECK(failures(64, 2 * kMiB, all_kinds({3, 1000}, Placement::kPrivate)) == 0);
    }

    TEST_CASE("thousands of operations of changing sizes never mix their bytes") {
        std::vector<CollectiveCase> cases;
        std::uint64_t state = 12345;
        for (int i = 0; i < 1500; ++i) {
            state = state * 6364136223846793005 + 1442695040888963407;
            CollectiveCase wanted;
            const auto kind = (state >> 33) % 10;  // all but the barrier and messages
            wanted.kind = kind < 8    ? static_cast<Kind>(kind)
                          : kind == 8 ? Kind::kScan
                                      : Kind::kExscan;
            wanted.count = (state >> 40) % (i % 10 == 0 ? 20000 : 300);
            wanted.placement = static_cast<Placement>((state >> 20) % 4);
            wanted.root = static_cast<int>((state >> 50) % 3);
            cases.push_back(wanted);
        }
        CHECK(failures(3, 16 * kMiB, cases) == 0);
    }
}
