// Optimiser steps in one pass: the ranks' gradients are added up and the parameters moved while all
// of it is in registers. Formulas: docs/optimisers.md.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.hpp"

namespace kernels {

// clang-format off
// The values are those of the C ABI; they never change. `first` is the momentum or the first moment,
// `second` the second moment, `maximum` its running maximum.
#define FABRIC_OPTIMISERS(ROW)                                                                  \
    /*  enumerator     value  in optim.h                  first  second maximum  name */         \
    ROW(kSgd,          0, FABRICSHM_SGD,            true,  false, false, "sgd")            \
    ROW(kAdam,         1, FABRICSHM_ADAM,           true,  true,  false, "adam")           \
    ROW(kAdamW,        2, FABRICSHM_ADAMW,          true,  true,  false, "adamw")          \
    ROW(kAdaBelief,    3, FABRICSHM_ADABELIEF,      true,  true,  false, "adabelief")      \
    ROW(kMaxAdaBelief, 4, FABRICSHM_MAX_ADABELIEF,  true,  true,  true,  "max_adabelief")
// clang-format on

#define FABRIC_ENUMERATOR(name, value, ...) name = value,
enum class Rule : std::uint8_t { FABRIC_OPTIMISERS(FABRIC_ENUMERATOR) };
#undef FABRIC_ENUMERATOR

struct RuleRow {
    Rule rule;
    bool first, second, maximum;
    const char* name;

    constexpr int states() const noexcept {
        return (first ? 1 : 0) + (second ? 1 : 0) + (maximum ? 1 : 0);
    }
};

#define FABRIC_ROW(rule, value, c, ...) {Rule::rule, __VA_ARGS__},
inline constexpr RuleRow kRuleRows[] = {FABRIC_OPTIMISERS(FABRIC_ROW)};
#undef FABRIC_ROW
inline constexpr int kRuleCount = sizeof kRuleRows / sizeof kRuleRows[0];

/// Only of a rule below kRuleCount.
constexpr const RuleRow& row_of(Rule rule) noexcept {
    return kRuleRows[static_cast<std::size_t>(rule)];
}

/// What a program chooses; the defaults are PyTorch's. Weight decay is decoupled, but for SGD and
/// Adam, which add it to the gradient.
struct Hyper {
    double learning_rate = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-8;
    double weight_decay = 0;
    double momentum = 0;  // SGD
    double dampening = 0;
    bool nesterov = false;
    bool maximize = false;
};

/// The name of a field that `rule` cannot be run with; nullptr: none.
const char* unusable_field(Rule rule, const Hyper& hyper) noexcept;

/// What one step multiplies by, worked out in f64 and rounded to f32 once.
struct StepFactors {
    float decay = 0;      // of the parameters, added to the gradient
    float keep = 1;       // what is left of the parameters: 1 - learning rate * weight decay
    float beta1 = 0;      // SGD: the momentum
    float one_less1 = 1;  // 1 - beta1; SGD: 1 - dampening
    float beta2 = 0;
    float one_less2 = 1;  // 1 - beta2
    float epsilon = 0;
    float root_less2 = 1;  // sqrt(1 - beta2^t)
    float less2 = 1;       // 1 - beta2^t
    float rate = 0;        // learning rate / (1 - beta1^t); SGD: learning rate
    bool nesterov = false;
    bool maximize = false;
    bool begins = false;  // SGD: the first step, which takes the gradient as momentum
};

/// `step` counts from 1.
StepFactors make_step_factors(Rule rule, const Hyper& hyper, std::uint64_t step) noexcept;

/// Where the old values go before new ones are stored, for a process that may be killed between:
/// an element i of the job is altered only when base + i < *logged, and the log then holds what it
/// was. Stores become visible in program order (x86), so that this holds for other processes
/// whenever the one that runs the job is stopped for good.
struct UndoLog {
    std::atomic<std::uint64_t>* logged = nullptr;  // rises tile by tile to base + count
    std::uint64_t base = 0;
    float* parameters = nullptr;  // `count` of the job each, those that the rule has
    float* first = nullptr;
    float* second = nullptr;
    float* maximum = nullptr;
};

/// One step of `count` elements. g = scale * (w0 * g0 + w1 * g1 + ...), each widened to f32 and
/// added in the order given, every product and sum rounded to f32; every instruction set gives the
/// same bits. A NaN or an infinity in a gradient spreads as IEEE 754 says.
struct OptimiseJob {
    Rule rule = Rule::kAdamW;
    StepFactors factors;
    DType gradient_type = DType::kF32;  // f32, f16, bf16
    const void* const* gradients = nullptr;
    int gradient_count = 0;          // 1 or more
    const float* weights = nullptr;  // one each; nullptr: all 1
    float scale = 1;
    float* parameters = nullptr;  // moved in place, as the states are
    float* first = nullptr;       // nullptr: the rule has none
    float* second = nullptr;
    float* maximum = nullptr;
    void* copy = nullptr;  // receives the new parameters, rounded to nearest even; nullptr: none
    DType copy_type = DType::kBF16;
    std::size_t count = 0;
    const UndoLog* undo = nullptr;  // nullptr: none is kept
    bool streaming = false;         // the working set exceeds the cache
};

/// Pure, thread-safe, no allocation. Arrays do not overlap; aligned to their elements.
void optimise(const OptimiseJob& job) noexcept;

/// Puts back what an optimise() that did not end had altered: of the elements in its log. May be
/// repeated. What is read: parameters, states, count and undo.
void undo(const OptimiseJob& job) noexcept;

/// What optimise() would merge, before it is scaled: for its norm.
struct MergeJob {
    DType gradient_type = DType::kF32;
    const void* const* gradients = nullptr;
    int gradient_count = 0;
    const float* weights = nullptr;
    std::size_t count = 0;
};

struct Merged {
    double square_sum = 0;  // in f64, in an order that depends on `count` alone
    bool finite = true;     // false: square_sum is not usable
};

Merged merge(const MergeJob& job) noexcept;

}  // namespace kernels
