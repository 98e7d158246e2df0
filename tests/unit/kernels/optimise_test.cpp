#include "kernels/optimise.hpp"

#include <cmath>
#include <limits>

#include "tests/unit/kernels/optimise_arrays.hpp"
#include "tests/unit/kernels/optimise_oracle.hpp"

using namespace kernels_test;
using kernels::DType;
using kernels::Hyper;
using kernels::Rule;

namespace {

constexpr int kSteps = 20;

double gradient_value(OptimiseArrays& arrays, DType type, int source, std::size_t at) {
    if (type == DType::kF32) {
        float value;
        std::memcpy(&value, arrays.gradient(source) + at * sizeof value, sizeof value);
        return value;
    }
    std::uint16_t code;
    std::memcpy(&code, arrays.gradient(source) + at * sizeof code, sizeof code);
    return half_value(code, type == DType::kF16 ? 5 : 8);
}

struct Options {
    const char* text;
    Hyper hyper;
    bool weighted = false;
    float scale = 1;
};

std::vector<Options> options_of(Rule rule) {
    Hyper plain;
    plain.learning_rate = 0.01;
    Hyper decays = plain, climbs = plain;
    decays.weight_decay = 0.1;
    climbs.maximize = true;
    std::vector<Options> all = {{"plain", plain},
                                {"weight decay", decays},
                                {"maximize", climbs},
                                {"weights", plain, true},
                                {"scale", decays, true, 0.25F}};
    if (rule != Rule::kSgd) {
        Hyper others = decays;
        others.beta1 = 0.8;
        others.beta2 = 0.95;
        others.epsilon = 1e-4;
        all.push_back({"betas and epsilon", others});
        return all;
    }
    Hyper momentum = decays;
    momentum.momentum = 0.9;
    Hyper dampened = momentum, nesterov = momentum;
    dampened.dampening = 0.3;
    nesterov.nesterov = true;
    all.push_back({"momentum", momentum});
    all.push_back({"dampening", dampened});
    all.push_back({"nesterov", nesterov});
    return all;
}

// How far the parameters of 20 steps are from float64, in units of 2^-24 (half the distance of
// floats near 1, which is what one rounding may cost).
double distance_from_oracle(const kernels::KernelSet& set, Rule rule, DType type,
                            const Options& options) {
    OptimiseCase what{.rule = rule, .gradient_type = type, .gradients = 3, .count = 70};
    what.misalignment = 1;
    OptimiseArrays arrays(what);
    std::vector<OracleElement> oracle(what.count);
    for (int state = 1; state < 4; ++state) {
        std::fill_n(arrays.values(state), what.count, 0.0F);
    }
    for (std::size_t i = 0; i < what.count; ++i) oracle[i].theta = arrays.values(0)[i];
    const float weights[] = {0.5F, 0.2F, 0.3F};
    for (int t = 1; t <= kSteps; ++t) {
        arrays.refill_gradients(t);
        for (std::size_t i = 0; i < what.count; ++i) {
            double g = 0;
            for (int source = 0; source < 3; ++source) {
                const double weight = options.weighted ? weights[source] : 1.0;
                g += weight * gradient_value(arrays, type, source, i);
            }
            oracle_step(rule, options.hyper, t, options.scale * g, oracle[i]);
        }
        auto job = arrays.job(kernels::make_step_factors(rule, options.hyper, t));
        job.weights = options.weighted ? weights : nullptr;
        job.scale = options.scale;
        kernels::optimise_with(set, job);
    }
    double farthest = 0;
    for (std::size_t i = 0; i < what.count; ++i) {
        const double off = std::abs(arrays.values(0)[i] - oracle[i].theta);
        farthest = std::max(farthest, std::ldexp(off, 24));
    }
    return farthest;
}

}  // namespace

TEST_SUITE("kernels.optimise") {
    TEST_CASE("20 steps of every rule, gradient type and option stay next to float64") {
        double farthest = 0;
        for (const kernels::KernelSet* set : available_sets()) {
            for (const Rule rule : kRules) {
                for (const DType type : kGradients) {
                    for (const Options& options : options_of(rule)) {
                        CAPTURE(set->name);
                        CAPTURE(kernels::row_of(rule).name);
                        CAPTURE(static_cast<int>(type));
                        CAPTURE(options.text);
                        const double off = distance_from_oracle(*set, rule, type, options);
                        // Parameters and steps below 2: 20 stores round by half a unit of 2^-23
                        // each at the most, and what is stored is off by as little.
                        CHECK(off < 2 * kSteps);
                        farthest = std::max(farthest, off);
                    }
                }
            }
        }
        MESSAGE("farthest: " << farthest << " of 2^-24");
    }

    TEST_CASE("all sets give the same bits for 0 to 300 elements at odd addresses") {
        const auto sets = available_sets();
        Hyper hyper;
        hyper.weight_decay = 0.1;
        hyper.momentum = 0.9;
        const float weights[] = {0.25F, 0.5F, 0.125F, 1.5F};
        for (const Rule rule : kRules) {
            for (const DType type : kGradients) {
                for (std::size_t count = 0; count <= 300; ++count) {
                    OptimiseCase what{.rule = rule, .gradient_type = type, .count = count};
                    what.gradients = 1 + static_cast<int>(count % 4);
                    what.misalignment = count % 3 == 0 ? 0 : 1 + count % 7;
                    what.copies = count % 2 == 0;
                    what.copy_type = count % 4 == 0 ? DType::kF16 : DType::kBF16;
                    what.logs = count % 5 == 0;
                    what.content = count % 2 == 0 ? Content::kOrdinary : Content::kSpecial;
                    what.seed = count + 1;
                    std::vector<OptimiseArrays> runs;
                    for (const kernels::KernelSet* set : sets) {
                        OptimiseArrays& arrays = runs.emplace_back(what);
                        auto job = arrays.job(kernels::make_step_factors(rule, hyper, 3));
                        if (count % 3 != 1) job.weights = weights;
                        job.scale = 0.37F;
                        job.streaming = count % 6 < 3;
                        kernels::optimise_with(*set, job);
                        const bool right = arrays.guards_intact() && arrays.same_as(runs.front());
                        if (!right) FAIL_CHECK(std::string(set->name) << ": " << what.text());
                    }
                }
            }
        }
    }

    TEST_CASE("where a job is cut does not matter") {
        for (const kernels::KernelSet* set : available_sets()) {
            for (const Rule rule : kRules) {
                OptimiseCase what{.rule = rule, .count = 700};
                what.copies = true;
                const auto factors = kernels::make_step_factors(rule, Hyper{}, 2);
                OptimiseArrays whole(what);
                kernels::optimise_with(*set, whole.job(factors));
                for (const std::size_t piece : {1U, 7U, 16U, 127U, 128U, 129U, 300U, 699U}) {
                    OptimiseArrays cut(what);
                    for (std::size_t at = 0; at < what.count; at += piece) {
                        kernels::optimise_with(*set, cut.job(factors, at, piece));
                    }
                    const bool same = cut.same_as(whole);
                    if (!same)
                        FAIL_CHECK(std::string(set->name)
                                   << ": " << what.text() << " by " << piece);
                }
            }
        }
    }

    TEST_CASE("a log or stores past the cache change no bit of the result") {
        for (const kernels::KernelSet* set : available_sets()) {
            for (const Rule rule : kRules) {
                OptimiseCase what{.rule = rule, .gradient_type = DType::kBF16, .count = 5000};
                what.copies = true;
                const auto factors = kernels::make_step_factors(rule, Hyper{}, 2);
                OptimiseArrays plain(what);
                kernels::optimise_with(*set, plain.job(factors));
                what.logs = true;
                OptimiseArrays logged(what);
                auto job = logged.job(factors);
                job.streaming = true;
                kernels::optimise_with(*set, job);
                CHECK(logged.same_as(plain));
                CHECK(logged.logged() == what.count);
            }
        }
    }

    TEST_CASE("a copy is the new parameters, rounded to nearest even") {
        const NearestHalf f16(5), bf16(8);
        constexpr std::size_t kCount = 20000;
        for (const kernels::KernelSet* set : available_sets()) {
            for (const DType type : {DType::kF16, DType::kBF16}) {
                OptimiseCase what{.rule = Rule::kSgd, .gradients = 1, .count = kCount};
                what.copies = true;
                what.copy_type = type;
                OptimiseArrays arrays(what);
                Random random(17);
                for (std::size_t i = 0; i < kCount; ++i) {
                    auto bits = static_cast<std::uint32_t>(random());
                    // Every other one is near f16's range; many are ties or one off.
                    if (i % 2 == 0) bits = (bits & 0x8fffffffU) + 0x30000000U;
                    if (i % 3 == 0) bits = (bits & 0xffffe000U) | 0x1000U;
                    if (i % 3 == 1) bits = (bits & 0xffff0000U) | (0x7fffU + bits % 3);
                    std::memcpy(arrays.values(0) + i, &bits, sizeof bits);
                    arrays.set_gradient(0, i, 0);
                }
                // A rate of 0 keeps parameters as they are.
                kernels::optimise_with(*set, arrays.job(kernels::StepFactors{.begins = true}));
                int wrong = 0;
                for (std::size_t i = 0; i < kCount; ++i) {
                    const float value = arrays.values(0)[i];
                    const std::uint16_t code = arrays.copy()[i];
                    const NearestHalf& nearest = type == DType::kF16 ? f16 : bf16;
                    const int exponent_bits = type == DType::kF16 ? 5 : 8;
                    const bool right = std::isnan(value)
                                           ? std::isnan(half_value(code, exponent_bits))
                                           : code == nearest(value);
                    wrong += right ? 0 : 1;
                }
                CAPTURE(set->name);
                CAPTURE(static_cast<int>(type));
                CHECK(wrong == 0);
            }
        }
    }

    TEST_CASE("a gradient that is not finite reaches its own element and no other") {
        constexpr std::size_t kCount = 150;
        for (const kernels::KernelSet* set : available_sets()) {
            for (const Rule rule : kRules) {
                for (std::size_t at = 0; at < kCount; ++at) {
                    const OptimiseCase what{.rule = rule, .count = kCount};
                    OptimiseArrays clean(what), dirty(what);
                    const auto factors = kernels::make_step_factors(rule, Hyper{}, 2);
                    const bool nan = at % 2 == 0;
                    dirty.set_gradient(1, at, nan ? NAN : INFINITY);
                    kernels::optimise_with(*set, clean.job(factors));
                    kernels::optimise_with(*set, dirty.job(factors));
                    const kernels::RuleRow& row = kernels::row_of(rule);
                    const bool has[] = {true, row.first, row.second, row.maximum};
                    bool spreads = true;
                    for (int i = 0; i < 4; ++i) {
                        if (!has[i]) continue;
                        const float value = dirty.values(i)[at];
                        spreads = spreads && (nan ? std::isnan(value) : !std::isfinite(value));
                        dirty.values(i)[at] = clean.values(i)[at];
                    }
                    if (!spreads)
                        FAIL_CHECK(std::string(set->name) << ": " << what.text() << " at " << at);
                    CHECK(dirty.same_as(clean));
                }
            }
        }
    }

    // The condition of AdaBelief's convergence proof: sqrt(v_hat)/rate must not fall. Large
    // gradients of both signs first, then equal ones: nothing deviates any more.
    TEST_CASE("where belief grows AdaBelief's effective rate rises, and max-AdaBelief's never") {
        for (const kernels::KernelSet* set : available_sets()) {
            for (const Rule rule : {Rule::kAdaBelief, Rule::kMaxAdaBelief}) {
                const OptimiseCase what{.rule = rule, .gradients = 1, .count = 40};
                OptimiseArrays arrays(what);
                for (int i = 1; i < 4; ++i) std::fill_n(arrays.values(i), what.count, 0.0F);
                Hyper hyper;
                hyper.beta2 = 0.9;
                int falls = 0;
                std::vector<double> before(what.count, 0);
                for (int t = 1; t <= 60; ++t) {
                    const float size = t > 10 ? 0.01F : (t % 2 == 0 ? 5.0F : -5.0F);
                    for (std::size_t i = 0; i < what.count; ++i) arrays.set_gradient(0, i, size);
                    const auto factors = kernels::make_step_factors(rule, hyper, t);
                    kernels::optimise_with(*set, arrays.job(factors));
                    for (std::size_t i = 0; i < what.count; ++i) {
                        const double v_hat = rule == Rule::kMaxAdaBelief
                                                 ? arrays.values(3)[i]
                                                 : arrays.values(2)[i] / (1 - std::pow(0.9, t));
                        const double now = std::sqrt(v_hat) / hyper.learning_rate;
                        falls += now < before[i] ? 1 : 0;
                        before[i] = now;
                    }
                }
                CAPTURE(set->name);
                if (rule == Rule::kMaxAdaBelief) {
                    CHECK(falls == 0);
                } else {
                    CHECK(falls > 40 * 40);
                }
            }
        }
    }

    TEST_CASE("every field that a rule cannot be run with is named") {
        const double nan = NAN, infinite = std::numeric_limits<double>::infinity();
        struct Wrong {
            Rule rule;
            const char* field;
            double Hyper::*member;
            std::vector<double> values;
        };
        const std::vector<double> not_rates = {-1e-9, nan, infinite, -infinite};
        const std::vector<double> not_shares = {-1e-9, 1, 1.5, nan, infinite};
        std::vector<Wrong> wrong;
        for (const Rule rule : kRules) {
            CHECK(kernels::unusable_field(rule, Hyper{}) == nullptr);
            wrong.push_back({rule, "learning_rate", &Hyper::learning_rate, not_rates});
            wrong.push_back({rule, "weight_decay", &Hyper::weight_decay, not_rates});
            if (rule == Rule::kSgd) {
                wrong.push_back({rule, "momentum", &Hyper::momentum, not_rates});
                wrong.push_back({rule, "dampening", &Hyper::dampening, {nan, infinite, -infinite}});
            } else {
                wrong.push_back({rule, "beta1", &Hyper::beta1, not_shares});
                wrong.push_back({rule, "beta2", &Hyper::beta2, not_shares});
                wrong.push_back({rule, "epsilon", &Hyper::epsilon, not_rates});
            }
        }
        for (const Wrong& one : wrong) {
            for (const double value : one.values) {
                Hyper hyper;
                hyper.*one.member = value;
                const char* field = kernels::unusable_field(one.rule, hyper);
                REQUIRE(field != nullptr);
                CHECK(std::string(field) == one.field);
            }
        }
    }

    TEST_CASE("Nesterov's step needs a momentum that is not dampened") {
        const auto usable = [](double momentum, double dampening) {
            Hyper hyper;
            hyper.nesterov = true;
            hyper.momentum = momentum;
            hyper.dampening = dampening;
            return kernels::unusable_field(Rule::kSgd, hyper) == nullptr;
        };
        CHECK(usable(0.9, 0));
        CHECK_FALSE(usable(0, 0));
        CHECK_FALSE(usable(0.9, 0.1));
    }
}
