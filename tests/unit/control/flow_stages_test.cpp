// S111 to S113, and the smoothing and dividing that they share with the others.

#include <doctest/doctest.h>

#include <numeric>

#include "fabricd/control/apportion.hpp"
#include "fabricd/control/numbers.hpp"
#include "fabricd/control/s111_gradients.hpp"
#include "fabricd/control/s112_imbalance.hpp"
#include "fabricd/control/s113_data_flow.hpp"
#include "fabricd/control/smoothing.hpp"
#include "tests/unit/control/awkward.hpp"

using namespace fabricd;
using namespace control_test;

TEST_SUITE("control.flow_stages") {
    TEST_CASE("an old value counts half after the half-life") {
        Ewma smooth;
        const double weight = weight_of_half_life(5);
        for (int i = 0; i < 100; ++i) smooth.update(1.0, weight);
        // Below the least outlier, so that no new regime begins.
        for (int i = 0; i < 5; ++i) smooth.update(1.08, weight);
        CHECK(smooth.mean == doctest::Approx(1.04).epsilon(0.001));
        CHECK(smooth.regimes == 0);
    }

    TEST_CASE("a lasting change is believed after two windows, a glitch never") {
        Ewma smooth;
        const double weight = weight_of_half_life(5);
        for (int i = 0; i < 20; ++i) smooth.update(1.0, weight);
        CHECK_FALSE(smooth.update(3.0, weight));
        CHECK_FALSE(smooth.update(1.0, weight));
        CHECK(smooth.mean < 1.3);
        CHECK_FALSE(smooth.update(2.0, weight));
        CHECK(smooth.update(2.0, weight));
        CHECK(smooth.mean == doctest::Approx(2.0));
    }

    TEST_CASE("smoothing survives any input") {
        Numbers numbers(1);
        Ewma smooth;
        Trend trend;
        for (int i = 0; i < kRounds; ++i) {
            const double value = numbers.below(4) == 0 ? std::nan("") : numbers.plausible();
            smooth.update(value, weight_of_half_life(5));
            trend.update(value, 0.13, 0.07);
            CHECK(usable(smooth.mean));
            CHECK(usable(smooth.deviation));
            CHECK(std::isfinite(trend.forecast(1)));
        }
    }

    TEST_CASE("Holt's method foretells a straight line") {
        GradientMetrics metrics;
        for (int i = 0; i < 200; ++i) {
            metrics =
                observe_gradients(metrics, {2.0 * i, 1, 5 - 0.01 * i, std::nan("")}, 0.3, 0.1);
        }
        CHECK(metrics.compute_s.forecast(1) == doctest::Approx(400).epsilon(0.01));
        CHECK(metrics.norm.slope == doctest::Approx(-0.01).epsilon(0.01));
        CHECK(metrics.bytes.values == 0);
    }

    TEST_CASE("the gradient noise scale is that of a gradient with known noise") {
        // |G|^2 = 4, tr(noise) = 100: |G_b|^2 = 4 + 100 / b.
        const auto scale = gradient_noise_scale(4 + 100.0 / 10, 4 + 100.0 / 40, 10, 40);
        REQUIRE(scale);
        CHECK(*scale == doctest::Approx(25));
        CHECK_FALSE(gradient_noise_scale(1, 1, 40, 40));
        Numbers numbers(2);
        for (int i = 0; i < kRounds; ++i) {
            const auto any = gradient_noise_scale(numbers.awkward(), numbers.awkward(),
                                                  numbers.awkward(), numbers.awkward());
            CHECK((!any || usable(*any)));
        }
    }

    TEST_CASE("imbalance is the share of device time lost to waiting") {
        const double times[] = {1, 1, 1, 2};
        CHECK(imbalance_of(times)->index == doctest::Approx(1 - 1.25 / 2));
        const double even[] = {3, 3, 3};
        CHECK(imbalance_of(even)->index == doctest::Approx(0));
        CHECK(imbalance_of(even)->variation == doctest::Approx(0));
        CHECK_FALSE(imbalance_of({}));
    }

    TEST_CASE(
        "imbalance lies between 0 and 1, does not depend on the unit, and grows with the "
        "slowest") {
        Numbers numbers(3);
        for (int i = 0; i < kRounds; ++i) {
            const auto any = imbalance_of(numbers.several(1 + numbers.below(9), &Numbers::awkward));
            if (any) CHECK((any->index >= 0 && any->index < 1 && usable(any->variation)));
            auto times = numbers.several(2 + numbers.below(8), &Numbers::plausible);
            times.push_back(1);
            const double before = imbalance_of(times)->index;
            for (double& time : times) time *= 1000;
            CHECK(imbalance_of(times)->index == doctest::Approx(before));
            *std::max_element(times.begin(), times.end()) *= 2;
            CHECK(imbalance_of(times)->index >= before - 1e-12);
        }
    }

    TEST_CASE("balanced shares let all ranks end together, and minimise the data-flow cost") {
        const double speeds[] = {100, 100, 50, 25};
        const double loads[] = {0, 1, 0, 0};
        const auto shares = balanced_shares(speeds, loads, 0).value();
        for (std::size_t i = 0; i < 4; ++i) {
            CHECK(shares[i] * (1 + loads[i]) / speeds[i] == doctest::Approx(1.0 / 225));
        }
    }

    TEST_CASE("balanced shares sum to 1, rise with speed, fall with load and keep the floor") {
        Numbers numbers(4);
        for (int i = 0; i < kRounds; ++i) {
            const std::size_t ranks = 1 + numbers.below(9);
            auto speeds = numbers.several(ranks, &Numbers::awkward);
            auto loads = numbers.several(ranks, &Numbers::plausible);
            const double floor = numbers.uniform() * 0.5;
            if (const auto any = balanced_shares(speeds, loads, floor)) {
                CHECK(sum(*any) == doctest::Approx(1));
                CHECK(usable(*any));
            }
            speeds = numbers.several(ranks, &Numbers::plausible);
            speeds[0] = 1;
            const auto shares = balanced_shares(speeds, loads, floor).value();
            for (std::size_t k = 0; k < ranks; ++k) {
                if (speeds[k] == 0) CHECK(shares[k] == 0);
                if (speeds[k] > 0) CHECK(shares[k] >= floor / static_cast<double>(ranks) - 1e-12);
            }
            speeds[0] *= 2;
            CHECK(balanced_shares(speeds, loads, floor)->front() >= shares[0] - 1e-12);
            speeds[0] /= 2;
            loads[0] += 1;
            CHECK(balanced_shares(speeds, loads, floor)->front() <= shares[0] + 1e-12);
        }
        CHECK_FALSE(balanced_shares({}, {}, 0));
        const double nobody[] = {0, 0};
        CHECK_FALSE(balanced_shares(nobody, nobody, 0));
    }

    TEST_CASE("the data-flow cost counts what a slow and busy node receives") {
        const double bytes[] = {0, 10, 20, 0};
        const double speeds[] = {2, 5};
        const double loads[] = {1, 0};
        CHECK(flow_cost(bytes, speeds, loads).value() == doctest::Approx(20.0 * 2 / 2 + 10.0 / 5));
        const double stopped[] = {2, 0};
        CHECK_FALSE(flow_cost(bytes, stopped, loads));
    }

    TEST_CASE("a transport takes each rank from its old share to the new one") {
        Numbers numbers(5);
        for (int i = 0; i < kRounds / 10; ++i) {
            const std::size_t ranks = 2 + numbers.below(9);
            const auto before = shares_of(numbers.several(ranks, &Numbers::plausible));
            const auto after = shares_of(numbers.several(ranks, &Numbers::plausible));
            const auto cost = numbers.several(ranks * ranks, &Numbers::plausible);
            for (const auto& prices : {std::vector<double>{}, cost}) {
                auto shares = before;
                double moved = 0;
                for (const FlowMove& move : cheapest_transport(before, after, prices)) {
                    shares[move.from] -= move.part;
                    shares[move.to] += move.part;
                    moved += move.part;
                }
                for (std::size_t k = 0; k < ranks; ++k) {
                    CHECK(shares[k] == doctest::Approx(after[k]).epsilon(1e-6));
                }
                CHECK(moved == doctest::Approx(moved_part(before, after)).epsilon(1e-6));
            }
        }
    }

    TEST_CASE("with prices the transport is the cheapest there is, also against a greedy one") {
        // Greedy takes 0 -> 2 for 1 and is left with 1 -> 3 for 100.
        const double before[] = {0.5, 0.5, 0, 0};
        const double after[] = {0, 0, 0.5, 0.5};
        const double cost[] = {0, 0, 1, 2, 0, 0, 2, 100, 0, 0, 0, 0, 0, 0, 0, 0};
        double price = 0;
        for (const FlowMove& move : cheapest_transport(before, after, cost)) {
            price += move.part * cost[move.from * 4 + move.to];
        }
        CHECK(price == doctest::Approx(0.5 * 2 + 0.5 * 2));
        const double bad[] = {0.5, std::nan(""), 0, 0};
        CHECK(cheapest_transport(bad, after, cost).empty());
    }

    TEST_CASE("whole units sum up and are within one of their exact part") {
        Numbers numbers(6);
        for (int i = 0; i < kRounds; ++i) {
            const auto weights = numbers.several(1 + numbers.below(9), &Numbers::awkward);
            const std::uint64_t units = numbers.below(1000);
            const auto parts = whole_units(units, weights);
            CHECK(std::accumulate(parts.begin(), parts.end(), std::uint64_t{0}) == units);
            const auto shares = shares_of(weights);
            for (std::size_t k = 0; k < parts.size(); ++k) {
                const double exact = shares[k] * static_cast<double>(units);
                CHECK(std::abs(static_cast<double>(parts[k]) - exact) < 1 + 1e-9);
            }
        }
        CHECK(whole_units(7, {}).empty());
        const double even[] = {1, 1};
        CHECK(whole_units(~0ULL, even)[0] + whole_units(~0ULL, even)[1] == ~0ULL);
    }

    TEST_CASE("filling under caps gives all that fits and never more than a cap") {
        Numbers numbers(7);
        for (int i = 0; i < kRounds; ++i) {
            const std::size_t count = 1 + numbers.below(9);
            const auto weights = numbers.several(count, &Numbers::awkward);
            const auto caps = numbers.several(count, &Numbers::plausible);
            const double total = numbers.plausible();
            const auto parts = fill_under_caps(total, weights, caps);
            for (std::size_t k = 0; k < count; ++k) {
                CHECK(parts[k] >= 0);
                CHECK(parts[k] <= caps[k] * (1 + 1e-12));
            }
            CHECK(sum(parts) == doctest::Approx(std::min(total, sum(caps))).epsilon(1e-9));
        }
    }
}
