// S111 to S113, and the smoothing and dividing that they share with the others.

#include <doctest/doctest.h>

#include <numeric>

#include "fabricd/control/stages/apportion.hpp"
#include "fabricd/control/stages/data_flow.hpp"
#include "fabricd/control/stages/gradients.hpp"
#include "fabricd/control/stages/imbalance.hpp"
#include "fabricd/control/stages/numbers.hpp"
#include "fabricd/control/stages/smoothing.hpp"
#include "tests/unit/control/adversarial.hpp"

using namespace fabricd;
using namespace control_test;

TEST_SUITE("control.stages.flow_stages") {
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

    TEST_CASE("a quantity that returns to where it was is believed at once") {
        const double weight = weight_of_half_life(5);
        Ewma smooth;
        for (int i = 0; i < 10; ++i) smooth.update(1.0, weight);
        CHECK_FALSE(smooth.update(2.0, weight));  // new: two windows
        CHECK(smooth.update(2.0, weight));
        CHECK_FALSE(smooth.is_return(2.0));   // is there
        CHECK_FALSE(smooth.is_return(1.2));   // never was
        CHECK_FALSE(smooth.is_return(0.89));  // outside of a tenth, which is the least band
        CHECK(smooth.is_return(0.91));
        CHECK(smooth.update(1.0, weight));
        CHECK(smooth.mean == doctest::Approx(1));
        CHECK(smooth.regimes == 2);
        CHECK_FALSE(smooth.update(1.0, weight));
        CHECK(smooth.update(2.1, weight));  // and back
        CHECK(smooth.mean == doctest::Approx(2.05).epsilon(0.001));
        // It was a glitch: one value is no level to return to.
        CHECK(smooth.update(1.0, weight));
        CHECK_FALSE(smooth.update(2.0, weight));
        CHECK_FALSE(smooth.update(1.0, weight));
        CHECK(smooth.regimes == 4);
    }

    TEST_CASE("a change that fell into two windows leaves no level behind") {
        const double weight = weight_of_half_life(5);
        Ewma smooth;
        for (int i = 0; i < 10; ++i) smooth.update(1.0, weight);
        smooth.update(1.4, weight);
        CHECK(smooth.update(1.9, weight));  // alone, for the two are not alike
        CHECK(smooth.mean == 1.9);
        CHECK_FALSE(smooth.update(4.0, weight));
        CHECK(smooth.update(4.0, weight));
        CHECK_FALSE(smooth.is_return(1.9));
        CHECK_FALSE(smooth.is_return(1.0));  // only the regime before counts
    }

    TEST_CASE("at their limits values are no outliers, and two of them alike") {
        // Binary fractions, so that four deviations are a quarter.
        Ewma smooth;
        smooth.mean = smooth.last = 1;
        smooth.deviation = 0.0625;
        smooth.values = 10;
        smooth.sound = {1, 0.0625, true};
        smooth.former = {1.25, 0, true};
        CHECK_FALSE(smooth.is_return(1.25));
        CHECK(smooth.is_return(1.2501));
        Ewma mixed = smooth;
        smooth.former.known = mixed.former.known = false;
        smooth.suspect = mixed.suspect = 2;
        smooth.suspect_side = mixed.suspect_side = 1;
        CHECK(smooth.update(2.25, 0.13));
        CHECK(smooth.mean == 0.25 * 2 + 0.75 * 2.25);
        CHECK(smooth.sound.known);
        CHECK(mixed.update(2.2501, 0.13));
        CHECK(mixed.mean == 2.2501);
        CHECK_FALSE(mixed.sound.known);
    }

    TEST_CASE("the second value of all may be far off without a new regime") {
        Ewma smooth;
        for (const double value : {1.0, 1.5, 1.0}) CHECK_FALSE(smooth.update(value, 0.13));
        CHECK(smooth.regimes == 0);
    }

    TEST_CASE("a new regime begins with a scatter of a tenth at most") {
        for (const double mean : {0.02, 50.0}) {
            Ewma smooth;
            smooth.mean = smooth.last = mean;
            smooth.deviation = 0.2 * mean;
            smooth.values = 10;
            smooth.sound = {mean, 0.2 * mean, true};
            smooth.update(2 * mean, 0.13);
            CHECK(smooth.update(2 * mean, 0.13));
            CHECK(smooth.deviation == doctest::Approx(0.2 * mean));
            CHECK(smooth.update(mean, 0.13));  // where it was: as it was there, at most a tenth
            CHECK(smooth.deviation == doctest::Approx(0.1 * mean));
        }
    }

    TEST_CASE("two levels in turn are changes, and no scatter around their middle") {
        const double weight = weight_of_half_life(5);
        for (const int turn : {3, 4, 5, 6, 20}) {
            CAPTURE(turn);
            Ewma smooth;
            for (int i = 0; i < 7; ++i) smooth.update(i % 2 == 0 ? 1.2 : 1.8, weight);
            // Begun in the middle, with a scatter in which both levels lie.
            for (int i = 0; i < 40 * turn; ++i) smooth.update(i / turn % 2 == 0 ? 1 : 2, weight);
            CHECK(smooth.deviation < 0.05);
            const std::uint32_t regimes = smooth.regimes;
            for (int i = 0; i < 10 * turn; ++i) smooth.update(i / turn % 2 == 0 ? 1 : 2, weight);
            CHECK(smooth.regimes == regimes + 10);
        }
    }

    TEST_CASE("a glitch bends neither the mean nor the scatter by more than the scatter allows") {
        const double weight = weight_of_half_life(5);
        for (const double glitch : {0.01, 1.5, 3.0, 1000.0}) {
            Ewma smooth;
            for (int i = 0; i < 50; ++i) smooth.update(1.0, weight);
            smooth.update(glitch, weight);
            CHECK(smooth.mean == doctest::Approx(1 + (glitch > 1 ? 0.1 : -0.1) * weight));
            CHECK(smooth.deviation <= 0.1 + 1e-12);
            CHECK(smooth.sound.mean == 1);  // a new regime remembers the old one without it
            CHECK(smooth.sound.deviation == 0);
        }
    }

    TEST_CASE("the scatter of normal numbers is their mean distance from the mean") {
        Numbers numbers(3);
        Ewma smooth;
        double sum = 0;
        const int rounds = 4000;
        for (int i = 0; i < rounds; ++i) {
            double normal = -6;
            for (int k = 0; k < 12; ++k) normal += numbers.uniform();
            smooth.update(10 + 0.5 * normal, weight_of_half_life(20));
            sum += smooth.deviation;
        }
        CHECK(sum / rounds == doctest::Approx(0.5 * 0.798).epsilon(0.05));
        CHECK(smooth.regimes == 0);
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
            const auto any = gradient_noise_scale(numbers.adversarial(), numbers.adversarial(),
                                                  numbers.adversarial(), numbers.adversarial());
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
            const auto any =
                imbalance_of(numbers.several(1 + numbers.below(9), &Numbers::adversarial));
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

    TEST_CASE("balanced shares let all ranks end together, with what each step costs them anyway") {
        const double speeds[] = {100, 100, 50, 25};
        const double none[] = {0, 0, 0, 0};
        const auto plain = balanced_shares(speeds, none, 0).value();
        for (std::size_t i = 0; i < 4; ++i)
            CHECK(plain[i] / speeds[i] == doctest::Approx(1.0 / 275));
        const double fixed[] = {0.1, 0, 0.1, 0.02};
        const auto shares = balanced_shares(speeds, fixed, 0).value();
        for (std::size_t i = 0; i < 4; ++i) {
            CHECK((shares[i] + fixed[i]) / speeds[i] == doctest::Approx(1.22 / 275));
        }
        // One whose fixed part alone is too much stays on the floor; the others end together.
        const double too_much[] = {0, 0, 0, 1};
        const auto floored = balanced_shares(speeds, too_much, 0.4).value();
        CHECK(floored[3] == doctest::Approx(0.1));
        CHECK(floored[0] == doctest::Approx(0.9 * 100 / 250));
        CHECK(floored[2] == doctest::Approx(0.9 * 50 / 250));
    }

    TEST_CASE("balanced shares sum to 1, rise with speed, fall with fixed costs, keep the floor") {
        Numbers numbers(4);
        for (int i = 0; i < kRounds; ++i) {
            const std::size_t ranks = 1 + numbers.below(9);
            auto speeds = numbers.several(ranks, &Numbers::adversarial);
            std::vector<double> fixed(ranks);
            for (double& part : fixed) part = 3 * numbers.uniform();
            const double floor = numbers.uniform() * 0.5;
            if (const auto any = balanced_shares(speeds, fixed, floor)) {
                CHECK(sum(*any) == doctest::Approx(1));
                CHECK(usable(*any));
            }
            speeds = numbers.several(ranks, &Numbers::plausible);
            speeds[0] = 1;
            const auto shares = balanced_shares(speeds, fixed, floor).value();
            for (std::size_t k = 0; k < ranks; ++k) {
                if (speeds[k] == 0) CHECK(shares[k] == 0);
                if (speeds[k] > 0) CHECK(shares[k] >= floor / static_cast<double>(ranks) - 1e-12);
            }
            speeds[0] *= 2;
            CHECK(balanced_shares(speeds, fixed, floor)->front() >= shares[0] - 1e-9);
            speeds[0] /= 2;
            fixed[0] += 1;
            CHECK(balanced_shares(speeds, fixed, floor)->front() <= shares[0] + 1e-9);
        }
        CHECK_FALSE(balanced_shares({}, {}, 0));
        const double nobody[] = {0, 0};
        CHECK_FALSE(balanced_shares(nobody, nobody, 0));
        const double some[] = {1, 1};
        CHECK_FALSE(balanced_shares(some, some, 1));
    }

    TEST_CASE("whole units sum up and are within one of their exact part") {
        Numbers numbers(6);
        for (int i = 0; i < kRounds; ++i) {
            const auto weights = numbers.several(1 + numbers.below(9), &Numbers::adversarial);
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
        // Beyond 2^53 a double is some units more or less than they are: 2^60 + 129 becomes 127
        // more, 2^60 + 127 becomes as many less, and 2^64 - 1 what no integer is.
        const std::vector<double> one = {1};
        for (const std::uint64_t units : {(1ULL << 60) + 129, (1ULL << 60) + 127, ~0ULL}) {
            CAPTURE(units);
            CHECK(whole_units(units, one) == std::vector<std::uint64_t>{units});
            const auto halves = whole_units(units, even);
            CHECK(halves[0] <= units);
            CHECK(halves[1] == units - halves[0]);
        }
    }

    TEST_CASE("filling under caps gives all that fits and never more than a cap") {
        Numbers numbers(7);
        for (int i = 0; i < kRounds; ++i) {
            const std::size_t count = 1 + numbers.below(9);
            const auto weights = numbers.several(count, &Numbers::adversarial);
            const auto caps = numbers.several(count, &Numbers::plausible);
            const double total = numbers.plausible();
            const auto parts = fill_under_caps(total, weights, caps);
            for (std::size_t k = 0; k < count; ++k) {
                CHECK(parts[k] >= 0);
                CHECK(parts[k] <= caps[k] * (1 + 1e-12));
            }
            CHECK(sum(parts) == doctest::Approx(std::min(total, sum(caps))).epsilon(1e-9));
            // In whole units nothing is lost to rounding.
            std::vector<double> floors = caps;
            for (double& cap : floors) cap = std::floor(cap);
            const auto whole = whole_under_caps(total, weights, caps);
            CHECK(sum(whole) == std::min(std::floor(total), sum(floors)));
            for (std::size_t k = 0; k < count; ++k) {
                CHECK(whole[k] == std::floor(whole[k]));
                CHECK(whole[k] <= floors[k]);
            }
        }
    }
}
