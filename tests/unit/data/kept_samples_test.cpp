#include "fabricd/data/plan/kept_samples.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "fabricd/data/plan/sample_order.hpp"

using namespace fabricd;

TEST_SUITE("data.kept_samples") {
    TEST_CASE("what fits stays, what does not fit goes, and a smaller one may still fit") {
        KeptSamples kept(100);
        CHECK(kept.keep(1, 60));
        CHECK(!kept.keep(2, 41));
        CHECK(kept.keep(3, 40));
        CHECK(kept.keep(1, 60));  // it is there
        CHECK(kept.used() == 100);
        kept.drop(1);
        kept.drop(7);
        CHECK(kept.used() == 40);
        CHECK(!kept.has(1));
        CHECK(!kept.keep(4, ~Bytes{0}));
        CHECK(kept.keep(2, 41));
    }

    TEST_CASE("a smaller budget names samples until the rest fits") {
        KeptSamples kept(1000);
        for (std::uint32_t sample = 0; sample < 10; ++sample) REQUIRE(kept.keep(sample, 100));
        kept.resize(350);
        std::uint32_t sample = 0;
        int gone = 0;
        while (kept.next_to_go(sample)) {
            CHECK(kept.has(sample));
            kept.drop(sample);
            ++gone;
        }
        CHECK(gone == 7);
        CHECK(kept.used() == 300);
    }

    // Counted by hand for orders of all kinds: after the first epoch the hits are the share that
    // fits, which is as many as any cache of that size can have.
    TEST_CASE("each epoch after the first hits exactly what is kept") {
        constexpr std::uint32_t kSamples = 1000;
        for (const std::uint32_t fits : {0U, 1U, 100U, 500U, 900U, 1000U, 2000U}) {
            CAPTURE(fits);
            KeptSamples kept(Bytes{fits} * 10);
            for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
                std::uint32_t hits = 0;
                for (const std::uint32_t sample : sample_order({kSamples, epoch, true})) {
                    hits += kept.has(sample) ? 1 : 0;
                    if (!kept.has(sample)) kept.keep(sample, 10);
                }
                CHECK(hits == (epoch == 0 ? 0 : std::min(fits, kSamples)));
            }
        }
    }
}
