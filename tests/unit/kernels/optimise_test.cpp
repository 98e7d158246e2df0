#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/half.hpp"
#include "tests/unit/kernels/optimise_compare.hpp"

namespace {

using kernels::DType;
using kernels::Hyper;
using kernels::Rule;
using kernels_test::Content;
using kernels_test::Step;
using kernels_test::StepRun;

constexpr double kUlp = 0x1p-24;  // half a unit in the last place of 1

// One element, as the textbooks have it and in f64: moments are corrected, not the rate, and no
// factor is made in advance.
struct Element {
    double p, m, v, s;
};

struct Oracle {
    Rule rule;
    Hyper h;
    std::uint64_t t;

    Element step(Element e, double g) const {
        if (h.maximize) g = -g;
        const bool belief = rule == Rule::kAdaBelief || rule == Rule::kMaxAdaBelief;
        if (rule == Rule::kAdamW || (belief && h.decoupled)) {
            e.p -= h.learning_rate * h.weight_decay * e.p;
        } else {
            g += h.weight_decay * e.p;
        }
        if (rule == Rule::kSgd) return sgd(e, g);
        e.m += (1 - h.beta1) * (g - e.m);
        const double deviation = belief ? g - e.m : g;
        e.v = h.beta2 * e.v + (1 - h.beta2) * std::pow(deviation, 2) + (belief ? h.epsilon : 0);
        const double corrected = e.v / (1 - std::pow(h.beta2, t));
        e.s = std::max(e.s, corrected);
        const double below = std::sqrt(rule == Rule::kMaxAdaBelief ? e.s : corrected) + h.epsilon;
        e.p -= h.learning_rate * (e.m / (1 - std::pow(h.beta1, t))) / below;
        return e;
    }

  private:
    Element sgd(Element e, double g) const {
        e.m = t == 1 ? g : h.momentum * e.m + (1 - h.dampening) * g;
        e.p -= h.learning_rate * (h.nesterov ? g + h.momentum * e.m : e.m);
        return e;
    }
};

double value_of(DType type, const void* gradients, std::size_t i) {
    if (type == DType::kF32) return static_cast<const float*>(gradients)[i];
    const std::uint16_t half = static_cast<const std::uint16_t*>(gradients)[i];
    return type == DType::kF16 ? kernels::f16_to_f32(half) : kernels::bf16_to_f32(half);
}

Element element_of(StepRun& run, std::size_t i) {
    Element e = {run.array(0)[i], 0, 0, 0};
    if (run.array_count() > 1) e.m = run.array(1)[i];
    if (run.array_count() > 2) e.v = run.array(2)[i];
    if (run.array_count() > 3) e.s = run.array(3)[i];
    return e;
}

// The largest deviation from the oracle, in units that rounding each operation explains: inputs are
// between 1/2 and 2, so no intermediate value is above 64.
double worst_deviation(const Step& step, StepRun& run) {
    std::vector<Element> right(step.count);
    const Oracle oracle{step.rule, step.hyper, step.number};
    for (std::size_t i = 0; i < step.count; ++i) {
        double g = 0;
        for (int source = 0; source < step.gradient_count; ++source) {
            const double weight = step.weighted ? run.weights()[source] : 1;
            g += weight * value_of(step.gradients, run.gradients()[source], i);
        }
        right[i] = oracle.step(element_of(run, i), g * 0.7f);
    }
    kernels::optimise(run.job());
    double worst = 0;
    for (std::size_t i = 0; i < step.count; ++i) {
        const Element e = element_of(run, i);
        const auto off = [](double a, double b) { return std::abs(a - b) / (1 + std::abs(b)); };
        worst = std::max({worst, off(e.p, right[i].p), off(e.m, right[i].m)});
        if (run.array_count() > 2) worst = std::max(worst, off(e.v, right[i].v));
        if (run.array_count() > 3) worst = std::max(worst, off(e.s, right[i].s));
    }
    return worst;
}

// A job of five elements that are all the same, and what became of the first.
struct Small {
    float gradient = 0, parameter = 1, first = 0, second = 0, maximum = 0;
    std::uint16_t copy = 0;

    void step(Rule rule, const Hyper& hyper, std::uint64_t number, bool with_first = true) {
        float g[5], p[5], m[5], v[5], s[5];
        std::uint16_t c[5];
        const auto fill = [](float(&array)[5], float value) { std::fill(array, array + 5, value); };
        fill(g, gradient), fill(p, parameter), fill(m, first), fill(v, second), fill(s, maximum);
        const void* gradients[] = {g};
        kernels::OptimiseJob job;
        job.rule = rule;
        job.factors = kernels::make_step_factors(rule, hyper, number);
        job.gradients = gradients;
        job.gradient_count = 1;
        job.parameters = p;
        job.first = with_first ? m : nullptr;
        job.second = v;
        job.maximum = s;
        job.copy = c;
        job.count = 5;
        kernels::optimise(job);
        parameter = p[4], first = m[4], second = v[4], maximum = s[4], copy = c[4];
    }
};

std::string put_in_steps(Step step, std::size_t chunk) {
    StepRun run(step);
    for (std::size_t at = 0; at < step.count; at += chunk) {
        kernels::optimise(run.job(at, std::min(chunk, step.count - at)));
    }
    return run.bits();
}

}  // namespace

TEST_SUITE("kernels.optimise") {
    TEST_CASE("every instruction set gives the bits of the scalar reference") {
        for (const kernels::KernelSet* set : kernels_test::available_sets()) {
            kernels_test::check_all_shapes(*set);
        }
    }

    TEST_CASE("merging gives the same values, norm and verdict on every instruction set") {
        for (const kernels::KernelSet* set : kernels_test::available_sets()) {
            kernels_test::check_same_merge(*set);
        }
    }

    TEST_CASE("a step is the formula's, computed apart in f64, but for rounding") {
        for (const kernels::RuleRow& row : kernels::kRuleRows) {
            for (const DType gradients : kernels::kGradientTypes) {
                for (std::uint64_t seed = 0; seed < 40; ++seed) {
                    Step step{.rule = row.rule, .gradients = gradients, .count = 300};
                    step.gradient_count = 1 + static_cast<int>(seed % 4);
                    step.weighted = seed % 2 != 0;
                    step.hyper = kernels_test::busy_hyper(row.rule, seed);
                    step.number = seed % 6 == 0 ? 1 : seed * seed;
                    step.seed = seed;
                    StepRun run(step);
                    INFO(step.text());
                    CHECK(worst_deviation(step, run) < 32 * kUlp);
                }
            }
        }
    }

    TEST_CASE("chunks of any size give the bits of one job") {
        for (const kernels::RuleRow& row : kernels::kRuleRows) {
            Step step{.rule = row.rule, .count = 1300, .gradient_count = 9, .misalignment = 1};
            step.hyper = kernels_test::busy_hyper(row.rule, 2);
            step.copy = 1;
            const std::string whole = put_in_steps(step, step.count);
            for (const std::size_t chunk : {1, 7, 16, 255, 256, 257, 1000}) {
                CHECK(put_in_steps(step, chunk) == whole);
            }
        }
    }

    TEST_CASE("the copy is the new parameters, rounded to nearest even") {
        for (int type = 0; type < kernels::kCopyTypeCount; ++type) {
            Step step{.count = 999, .copy = type, .content = Content::kSpecial};
            StepRun run(step);
            kernels::optimise(run.job());
            bool same = true;
            for (std::size_t i = 0; i < step.count; ++i) {
                const float p = run.array(0)[i];
                const bool f16 = kernels::kCopyTypes[type] == DType::kF16;
                same = same &&
                       run.copy()[i] == (f16 ? kernels::f32_to_f16(p) : kernels::f32_to_bf16(p));
            }
            CHECK(same);
        }
    }

    TEST_CASE("SGD takes its first gradient as momentum, undampened") {
        Small small{.gradient = 2, .first = 77};
        Hyper hyper{.learning_rate = 0.5, .momentum = 0.5, .dampening = 0.5};
        small.step(Rule::kSgd, hyper, 1);
        CHECK(small.first == 2);
        CHECK(small.parameter == 0);
        small.step(Rule::kSgd, hyper, 2);
        CHECK(small.first == 2);  // 0.5 * 2 + 0.5 * 2
        CHECK(small.parameter == -1);
        hyper.dampening = 0;
        hyper.nesterov = true;
        small.step(Rule::kSgd, hyper, 3);
        CHECK(small.first == 3);
        CHECK(small.parameter == -1 - 0.5f * 3.5f);
    }

    TEST_CASE("SGD without momentum needs no state, and leaves the gradient in it if it is there") {
        const Hyper hyper{.learning_rate = 0.25, .weight_decay = 0.5};
        Small small{.gradient = 2, .parameter = 4, .first = 9};
        small.step(Rule::kSgd, hyper, 5, false);
        CHECK(small.parameter == 3);
        CHECK(small.first == 9);
        small.step(Rule::kSgd, hyper, 6);
        CHECK(small.parameter == 3 - 0.25f * 3.5f);
        CHECK(small.first == 3.5f);
    }

    TEST_CASE(
        "weight decay is in the gradient or of the parameters, as the rule and the program say") {
        const auto moved = [](Rule rule, bool decoupled) {
            Hyper hyper{.learning_rate = 0.5, .weight_decay = 0.5};
            hyper.decoupled = decoupled;
            Small small{.gradient = 0, .parameter = 4};
            small.step(rule, hyper, 1);
            return small;
        };
        CHECK(moved(Rule::kAdamW, false).parameter == 3);
        CHECK(moved(Rule::kAdamW, false).first == 0);
        CHECK(moved(Rule::kAdam, true).first == 0.2f);
        for (const Rule rule : {Rule::kAdaBelief, Rule::kMaxAdaBelief}) {
            CHECK(moved(rule, true).parameter == 3);
            CHECK(moved(rule, true).first == 0);
            CHECK(moved(rule, false).first == 0.2f);
        }
    }

    TEST_CASE("the maximum of max-AdaBelief never falls") {
        const Hyper hyper{.beta1 = 0, .beta2 = 0.5, .epsilon = 0.25};
        Small small{.gradient = 1, .maximum = 0};
        small.step(Rule::kMaxAdaBelief, hyper, 1);
        CHECK(small.maximum == 0.5f);  // epsilon / (1 - 0.5): the deviation from m is 0
        small.second = 0;
        small.step(Rule::kMaxAdaBelief, hyper, 2);
        CHECK(small.maximum == 0.5f);
        CHECK(small.second == 0.25f);
    }

    TEST_CASE("what is not a number spreads, and is one and the same") {
        constexpr float kInfinity = std::numeric_limits<float>::infinity();
        for (const kernels::RuleRow& row : kernels::kRuleRows) {
            for (const std::uint32_t bits : {0x7f800001u, 0xffc01234u}) {
                Small small{.gradient = kernels::bits_as<float>(bits)};
                small.step(row.rule, {.momentum = 0.9}, 1);
                CHECK(kernels::bits_as<std::uint32_t>(small.parameter) == kernels::kNanF32);
                CHECK(kernels::bits_as<std::uint32_t>(small.first) == kernels::kNanF32);
                CHECK(small.copy == kernels::kNanBF16);
                if (row.second) CHECK(std::isnan(small.second));
                if (row.maximum) CHECK(std::isnan(small.maximum));
            }
            Small small{.gradient = kInfinity};
            small.step(row.rule, {.momentum = 0.9}, 1);
            CHECK(small.first == kInfinity);
            // Infinity by infinity, but for SGD.
            CHECK(std::isnan(small.parameter) == (row.rule != Rule::kSgd));
        }
    }

    TEST_CASE("the factors of a step are made in f64") {
        const Hyper hyper{.learning_rate = 0.1, .beta1 = 0.9, .beta2 = 0.999, .weight_decay = 0.3};
        const auto adamw = kernels::make_step_factors(Rule::kAdamW, hyper, 2);
        CHECK(adamw.keep == static_cast<float>(1 - 0.1 * 0.3));
        CHECK(adamw.decay == 0);
        CHECK(adamw.one_less1 == static_cast<float>(1 - 0.9));
        CHECK(adamw.less2 == static_cast<float>(1 - std::pow(0.999, 2.0)));
        CHECK(adamw.root_less2 == static_cast<float>(std::sqrt(1 - std::pow(0.999, 2.0))));
        CHECK(adamw.rate == static_cast<float>(0.1 / (1 - std::pow(0.9, 2.0))));
        // Far from 1, where f32 powers would have lost it, and beyond what f32 can count.
        CHECK(kernels::make_step_factors(Rule::kAdam, hyper, 1ull << 40).rate == 0.1f);
    }

    TEST_CASE("options that a rule cannot be run with are named") {
        const auto named = [](Rule rule, const Hyper& hyper) {
            const char* field = kernels::unusable_field(rule, hyper);
            return std::string(field == nullptr ? "" : field);
        };
        const double nan = std::nan("");
        for (const kernels::RuleRow& row : kernels::kRuleRows) {
            CHECK(named(row.rule, {}) == "");
            CHECK(named(row.rule, {.learning_rate = -1}) == "learning_rate");
            CHECK(named(row.rule, {.learning_rate = nan}) == "learning_rate");
            CHECK(named(row.rule, {.weight_decay = INFINITY}) == "weight_decay");
            const bool sgd = row.rule == Rule::kSgd;
            CHECK(named(row.rule, {.beta1 = 1}) == (sgd ? "" : "beta1"));
            CHECK(named(row.rule, {.beta2 = -0.1}) == (sgd ? "" : "beta2"));
            CHECK(named(row.rule, {.epsilon = nan}) == (sgd ? "" : "epsilon"));
            CHECK(named(row.rule, {.momentum = -1}) == (sgd ? "momentum" : ""));
            CHECK(named(row.rule, {.dampening = nan}) == (sgd ? "dampening" : ""));
            CHECK(named(row.rule, {.nesterov = true}) == (sgd ? "nesterov" : ""));
        }
        CHECK(named(Rule::kSgd, {.momentum = 0.9, .nesterov = true}) == "");
    }

    TEST_CASE("the square sum is that of the values, and finite exactly when all of them are") {
        Step step{.count = 777, .gradient_count = 3, .seed = 5};
        StepRun run(step);
        kernels::MergeJob job;
        job.gradients = run.gradients().data();
        job.gradient_count = 3;
        job.count = step.count;
        std::vector<float> values(step.count);
        job.destination = values.data();
        const kernels::Merged merged = kernels::merge(job);
        long double right = 0;
        for (const float value : values) right += static_cast<long double>(value) * value;
        CHECK(merged.finite);
        CHECK(std::abs(merged.square_sum - static_cast<double>(right)) < 1e-13 * merged.square_sum);

        std::fill(values.begin(), values.end(), std::numeric_limits<float>::max());
        const void* sources[] = {values.data()};
        job.gradients = sources;
        job.gradient_count = 1;
        CHECK(kernels::merge(job).finite);
        for (const float value : {HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
            for (const std::size_t at : {0, 255, 256, 770, 776}) {
                std::vector<float> one(values);
                one[at] = value;
                sources[0] = one.data();
                job.destination = one.data();
                CHECK_FALSE(kernels::merge(job).finite);
            }
        }
    }
}
