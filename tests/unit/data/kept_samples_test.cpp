#include "fabricd/data/plan/kept_samples.hpp"

#include <doctest/doctest.h>

#include <algorithm>
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

    TEST_CASE("one that is fetched ahead takes the place of those that the epoch has read") {
        KeptSamples kept(100);
        std::vector<std::uint32_t> gone;
        for (const std::uint32_t sample : {1U, 2U, 3U, 4U}) REQUIRE(kept.keep(sample, 25));
        CHECK(!kept.exchange(5, 25, gone));
        kept.set_spare(3);
        kept.set_spare(3);
        kept.set_spare(2);
        kept.set_spare(9);
        CHECK(kept.spare() == 50);
        CHECK(!kept.exchange(5, 51, gone));
        CHECK(gone.empty());
        CHECK(kept.has(3));
        CHECK(kept.exchange(5, 25, gone));
        CHECK(gone == std::vector<std::uint32_t>{3});
        CHECK(kept.exchange(5, 25, gone));  // it is there
        CHECK(kept.used() == 100);
        // One that came so goes before others, though it was read after them.
        kept.set_spare(5);
        CHECK(kept.exchange(6, 25, gone));
        CHECK(gone == std::vector<std::uint32_t>{3, 5});
        // An epoch that is announced reads it.
        kept.set_needed(2);
        CHECK(kept.spare() == 0);
        CHECK(!kept.exchange(7, 25, gone));
        kept.set_spare(2);
        kept.drop(2);
        CHECK(kept.spare() == 0);
        CHECK(kept.exchange(7, 25, gone));
        CHECK(gone.size() == 2);
        // A smaller budget: spare ones first.
        kept.set_spare(6);
        kept.resize(75);
        std::uint32_t sample = 0;
        REQUIRE(kept.next_to_go(sample));
        CHECK(sample == 6);
    }

    // By a model of its own: what an epoch changes, and what it never does.
    TEST_CASE("an epoch that exchanges loses none that it has still to read, and keeps as many") {
        constexpr std::uint32_t kCount = 1000, kFits = 300;
        for (const std::uint32_t depth : {1U, 10U, 100U, 1000U}) {
            CAPTURE(depth);
            KeptSamples kept(kFits);
            for (std::uint32_t sample = 0; sample < kFits; ++sample) REQUIRE(kept.keep(sample, 1));
            for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
                const auto order = sample_order({kCount, epoch, true});
                std::vector<bool> was_kept(kCount), is_there(kCount), is_read(kCount);
                for (const auto sample : order) {
                    was_kept[sample] = is_there[sample] = kept.has(sample);
                    kept.set_needed(sample);
                }
                std::uint32_t ahead = 0, fetches = 0, begun = 0;
                for (std::uint32_t at = 0; at < kCount; ++at) {
                    ahead = std::max(ahead, at);
                    for (; ahead < kCount && ahead < at + depth; ++ahead) {
                        if (is_there[order[ahead]] || kept.has(order[ahead])) continue;
                        std::vector<std::uint32_t> gone;
                        if (!kept.exchange(order[ahead], 1, gone)) break;
                        for (const auto one : gone) {
                            CHECK(is_read[one]);
                            is_there[one] = false;
                        }
                        is_there[order[ahead]] = true;
                        ++fetches;
                    }
                    begun += is_there[order[at]] ? 0 : 1;  // fetched when it was read
                    is_read[order[at]] = true;
                    kept.set_spare(order[at]);
                }
                CHECK(fetches + begun == kCount - kFits);
                std::uint32_t changed = 0;
                for (std::uint32_t sample = 0; sample < kCount; ++sample) {
                    changed += was_kept[sample] && !kept.has(sample) ? 1 : 0;
                }
                CHECK(kept.used() == kFits);
                CHECK(changed <= depth);
            }
        }
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
