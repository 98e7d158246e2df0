// What optimiser steps have in common on all instruction sets: the factors of a step, the order of
// the passes over a block, and the log.

#include "kernels/optimise.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/half.hpp"
#include "kernels/cpu/kernel_set.hpp"

namespace kernels {

namespace {

bool is_share(double value) noexcept {
    return value >= 0 && value < 1;
}

bool is_rate(double value) noexcept {
    return value >= 0 && std::isfinite(value);
}

// A bug of the caller, see the header.
int valid(int index) noexcept {
    if (index < 0) std::abort();
    return index;
}

// The arrays that a job alters, next to those that keep what they were.
struct Kept {
    float* array;
    float* log;
};
constexpr int kKeptCount = 4;

void find_kept(const OptimiseJob& job, Kept (&kept)[kKeptCount]) noexcept {
    const UndoLog& log = *job.undo;
    kept[0] = {job.parameters, log.parameters};
    kept[1] = {job.first, log.first};
    kept[2] = {job.second, log.second};
    kept[3] = {job.maximum, log.maximum};
}

// Between stores that another process has to find in this order, whenever this one is stopped. x86
// keeps the order of stores, so that only the compiler has to be held.
void keep_store_order() noexcept {
#if defined(__x86_64__)
    std::atomic_signal_fence(std::memory_order_seq_cst);
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

void log_block(const OptimiseJob& job, const Kept (&kept)[kKeptCount], std::size_t at,
               std::size_t count) noexcept {
    for (const Kept& of : kept) {
        if (of.array != nullptr) std::memcpy(of.log + at, of.array + at, count * sizeof(float));
    }
    keep_store_order();
    // Relaxed, between the two fences: what was is in the log before it, and nothing of the block
    // is altered until after it.
    job.undo->logged->store(job.undo->base + at + count, std::memory_order_relaxed);
    keep_store_order();
}

void advance(StepPart& part, std::size_t count) noexcept {
    part.parameters += count;
    if (part.first != nullptr) part.first += count;
    if (part.second != nullptr) part.second += count;
    if (part.maximum != nullptr) part.maximum += count;
}

StepPart step_of(const OptimiseJob& job, const float* gradient) noexcept {
    const RuleRow& row = row_of(job.rule);
    StepPart part = {};
    part.factors = job.factors;
    part.gradient = gradient;
    part.parameters = job.parameters;
    part.first = row.first ? job.first : nullptr;
    part.second = row.second ? job.second : nullptr;
    part.maximum = row.maximum ? job.maximum : nullptr;
    part.fetch_ahead = job.streaming;
    return part;
}

bool in_place(const MergeJob& job) noexcept {
    const auto end = job.gradients + job.gradient_count;
    return std::find(job.gradients, end, job.destination) != end;
}

}  // namespace

const char* unusable_field(Rule rule, const Hyper& hyper) noexcept {
    if (!is_rate(hyper.learning_rate)) return "learning_rate";
    if (!is_rate(hyper.weight_decay)) return "weight_decay";
    if (rule == Rule::kSgd) {
        if (!is_rate(hyper.momentum)) return "momentum";
        if (!std::isfinite(hyper.dampening)) return "dampening";
        const bool can_nesterov = hyper.momentum > 0 && hyper.dampening == 0;
        return hyper.nesterov && !can_nesterov ? "nesterov" : nullptr;
    }
    if (!is_share(hyper.beta1)) return "beta1";
    if (!is_share(hyper.beta2)) return "beta2";
    return is_rate(hyper.epsilon) ? nullptr : "epsilon";
}

StepFactors make_step_factors(Rule rule, const Hyper& hyper, std::uint64_t step) noexcept {
    const auto rounded = [](double value) { return static_cast<float>(value); };
    StepFactors f;
    f.maximize = hyper.maximize;
    const bool belief = rule == Rule::kAdaBelief || rule == Rule::kMaxAdaBelief;
    if (rule == Rule::kAdamW || (belief && hyper.decoupled)) {
        f.keep = rounded(1 - hyper.learning_rate * hyper.weight_decay);
    } else {
        f.decay = rounded(hyper.weight_decay);
    }
    if (rule == Rule::kSgd) {
        f.rate = rounded(hyper.learning_rate);
        f.beta1 = rounded(hyper.momentum);
        f.one_less1 = rounded(1 - hyper.dampening);
        f.begins = step == 1 || hyper.momentum == 0;
        f.nesterov = hyper.nesterov;
        return f;
    }
    const auto t = static_cast<double>(step);
    const double less2 = 1 - std::pow(hyper.beta2, t);
    f.beta1 = rounded(hyper.beta1);
    f.one_less1 = rounded(1 - hyper.beta1);
    f.beta2 = rounded(hyper.beta2);
    f.one_less2 = rounded(1 - hyper.beta2);
    f.epsilon = rounded(hyper.epsilon);
    f.less2 = rounded(less2);
    f.root_less2 = rounded(std::sqrt(less2));
    f.rate = rounded(hyper.learning_rate / (1 - std::pow(hyper.beta1, t)));
    return f;
}

void optimise_with(const KernelSet& set, const OptimiseJob& job) noexcept {
    const MergeFunction merge_block = set.optimise->merge[valid(gradient_index(job.gradient_type))];
    const StepFunction step_block = set.optimise->step[static_cast<int>(job.rule)];
    const NarrowFunction narrow_block =
        job.copy != nullptr ? set.optimise->narrow[valid(copy_index(job.copy_type))] : nullptr;
    if (job.rule == Rule::kSgd && job.first == nullptr && job.factors.beta1 != 0) std::abort();
    alignas(64) float gradient[kBlockElements];
    // The other direction is the gradient's sign, which changes no rounding.
    const float scale = job.factors.maximize ? -job.scale : job.scale;
    MergePart merged = {job.gradients, job.gradient_count, job.weights, scale, 0, 0, job.streaming};
    StepPart part = step_of(job, gradient);
    Kept kept[kKeptCount] = {};
    if (job.undo != nullptr) find_kept(job, kept);
    for (std::size_t at = 0; at < job.count; at += part.count) {
        merged.at = at;
        merged.count = part.count = std::min(kBlockElements, job.count - at);
        merge_block(merged, gradient);
        if (job.undo != nullptr) log_block(job, kept, at, part.count);
        step_block(part);
        if (narrow_block != nullptr) {
            narrow_block(part.parameters, part.count, static_cast<std::uint16_t*>(job.copy) + at);
        }
        advance(part, part.count);
    }
}

void undo(const OptimiseJob& job) noexcept {
    // Acquire: what was logged by another process is visible with it.
    const std::uint64_t logged = job.undo->logged->load(std::memory_order_acquire);
    if (logged <= job.undo->base) return;
    const std::size_t count = std::min<std::uint64_t>(logged - job.undo->base, job.count);
    Kept kept[kKeptCount];
    find_kept(job, kept);
    for (const Kept& of : kept) {
        if (of.array != nullptr) std::memcpy(of.array, of.log, count * sizeof(float));
    }
}

Merged merge_with(const KernelSet& set, const MergeJob& job) noexcept {
    const MergeFunction merge_block = set.optimise->merge[valid(gradient_index(job.gradient_type))];
    alignas(64) float sum[kBlockElements];
    alignas(64) double lanes[kSumLanes] = {};
    const bool past_cache = job.streaming && job.destination != nullptr && !in_place(job);
    const CopyFunction copy = past_cache ? set.copy_streaming : set.copy_cached;
    MergePart part = {job.gradients, job.gradient_count, job.weights, job.scale, 0, 0,
                      job.streaming};
    for (std::size_t at = 0; at < job.count; at += part.count) {
        part.at = at;
        part.count = std::min(kBlockElements, job.count - at);
        merge_block(part, sum);
        if (job.destination != nullptr) {
            void* to = static_cast<float*>(job.destination) + at;
            copy(&to, 1, sum, part.count * sizeof(float));
        }
        // Squares of 0 change no sum: the last lanes may be filled up with them.
        const std::size_t lines = (part.count + kSumLanes - 1) / kSumLanes * kSumLanes;
        std::fill(sum + part.count, sum + lines, 0.0f);
        set.optimise->add_squares(sum, lines, lanes);
    }
    Merged merged;
    for (const double lane : lanes) merged.square_sum += lane;
    merged.finite = std::isfinite(merged.square_sum);
    // A quiet NaN without payload, whatever the order of operands was.
    if (std::isnan(merged.square_sum)) merged.square_sum = bits_as<double>(kNanF64);
    return merged;
}

}  // namespace kernels
