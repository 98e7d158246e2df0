// Optimiser steps in one pass: the gradients of all ranks are added up and parameters and state
// moved while they are in the cache, so that no merged gradient goes through memory.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.hpp"

namespace kernels {

// clang-format off
// The values never change, so a new rule comes last. `first` is the momentum or the first moment,
// `second` the second moment, `maximum` the greatest corrected second moment so far.
#define FABRIC_OPTIMISERS(ROW)                                           \
    /*  enumerator     value  in fabricshm.h       first  second maximum  name */ \
    ROW(kSgd,          0, FABRICSHM_SGD,           true,  false, false,   "sgd")            \
    ROW(kAdam,         1, FABRICSHM_ADAM,          true,  true,  false,   "adam")           \
    ROW(kAdamW,        2, FABRICSHM_ADAMW,         true,  true,  false,   "adamw")          \
    ROW(kAdaBelief,    3, FABRICSHM_ADABELIEF,     true,  true,  false,   "adabelief")      \
    ROW(kMaxAdaBelief, 4, FABRICSHM_MAX_ADABELIEF, true,  true,  true,    "max_adabelief")
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

/// What a program chooses; the defaults are PyTorch's. Which rules read what:
struct Hyper {
    double learning_rate = 1e-3;
    double beta1 = 0.9;  // all but SGD
    double beta2 = 0.999;
    double epsilon = 1e-8;
    // Adam and SGD add it to the gradient (L2), AdamW takes it from the parameters (decoupled).
    double weight_decay = 0;
    double momentum = 0;  // SGD
    double dampening = 0;
    bool nesterov = false;
    bool maximize = false;
    bool decoupled = true;  // AdaBelief and max-AdaBelief: as AdamW; false: as Adam
};

/// The name of a field that `rule` cannot be run with; nullptr: none. Each alone, and nesterov,
/// which needs a momentum and no dampening.
const char* unusable_field(Rule rule, const Hyper& hyper) noexcept;

/// What one step multiplies by, worked out in f64 and rounded to f32 once. SGD: `beta1` is the
/// momentum and `one_less1` 1 - dampening.
struct StepFactors {
    float decay = 0;  // of the parameters, added to the gradient; 0: nothing is added
    float keep = 1;   // what is left of the parameters: 1 - learning rate * weight decay
    float beta1 = 0;
    float one_less1 = 1;  // 1 - beta1
    float beta2 = 0;
    float one_less2 = 1;  // 1 - beta2
    float epsilon = 0;
    float less2 = 1;       // 1 - beta2^t
    float root_less2 = 1;  // its square root
    float rate = 0;        // learning rate / (1 - beta1^t); SGD: learning rate
    bool nesterov = false;
    bool maximize = false;
    bool begins = false;  // SGD: takes the gradient as momentum (first step, or momentum 0)
};

/// Once per step, on the host. `step` counts from 1.
StepFactors make_step_factors(Rule rule, const Hyper& hyper, std::uint64_t step) noexcept;

/// Where old values are kept for the case that the process is killed in the midst of optimise().
/// Element i of the job is altered only while base + i < *logged, and the arrays then hold what it
/// was. Other processes find it so whenever this one is stopped for good (the order of its stores:
/// see optimise.cpp). The caller stores `base` into `*logged` before a job; chunks that share a log
/// keep it in the cache (docs/kernels.md has the sizes that were tried).
struct UndoLog {
    std::atomic<std::uint64_t>* logged = nullptr;  // rises to base + count of the job
    // `count` of the job each, those that the job has.
    float* parameters = nullptr;
    float* first = nullptr;
    float* second = nullptr;
    float* maximum = nullptr;
    std::uint64_t base = 0;
};

/// One step of `count` elements. The merged gradient is g = scale * (w0 * g0 + w1 * g1 + ...): each
/// gradient is widened to f32 exactly, then every product and sum is rounded to f32, in the order
/// given. Divisions and roots are exact (rounded once). docs/optimisers.md has the formulas.
/// - Every instruction set, chunking and alignment gives the same bits.
/// - NaN and infinity in a gradient spread as IEEE 754 says, into state and parameters; to skip
/// such
///   a step is the caller's, see merge(). What is not a number is stored as the NaN of reduce.hpp.
/// - Denormals are kept, unless the caller's MXCSR flushes them.
struct OptimiseJob {
    Rule rule = Rule::kAdamW;
    StepFactors factors;
    DType gradient_type = DType::kF32;       // f32, f16, bf16
    const void* const* gradients = nullptr;  // gradient_count pointers, aligned to the element only
    int gradient_count = 0;                  // 1 or more
    const float* weights = nullptr;          // one each; nullptr: all 1
    float scale = 1;                         // 1 / ranks, 1 / loss scale, clip coefficient
    float* parameters = nullptr;             // in place, as the state is
    float* first = nullptr;                  // those the rule has; SGD without momentum may do
    float* second = nullptr;                 // without `first`
    float* maximum = nullptr;
    void* copy = nullptr;  // receives the new parameters, rounded to nearest even; nullptr: none
    DType copy_type = DType::kBF16;  // f16, bf16
    std::size_t count = 0;
    const UndoLog* undo = nullptr;  // nullptr: none is kept
    bool streaming = false;         // the working set exceeds the cache: fetch ahead
};

/// Runs the job. Arrays do not overlap. Pure, thread-safe, no allocation, 2 KiB of stack. A type of
/// gradients or copies that is not listed, or a momentum without `first`, is a bug of the caller
/// and aborts.
void optimise(const OptimiseJob& job) noexcept;

/// Puts back what an interrupted optimise() altered: the elements in its log. Idempotent. Reads
/// `parameters`, state, `count` and `undo` of the job only. A copy is not put back: it is the
/// parameters, rounded.
void undo(const OptimiseJob& job) noexcept;

/// The merged gradient by itself, as in OptimiseJob: for its norm, or for its use elsewhere.
struct MergeJob {
    DType gradient_type = DType::kF32;
    const void* const* gradients = nullptr;
    int gradient_count = 0;
    const float* weights = nullptr;
    float scale = 1;
    void* destination = nullptr;  // f32, may be one of f32 gradients; nullptr: only the norm
    std::size_t count = 0;
    bool streaming = false;
};

struct Merged {
    // Of the merged values, in f64: the sum of every sixteenth square, from the first on, then of
    // the sixteen sums. So it depends on `count`, but not on the instruction set or on alignment.
    // NaN or infinite where a value is; f32 squares cannot reach infinity otherwise.
    double square_sum = 0;
    bool finite = true;  // all values are
};

/// As optimise().
Merged merge(const MergeJob& job) noexcept;

}  // namespace kernels
