// Shared by the tests of optimiser steps: the arrays of one job, and one comparison of a kernel set
// with the scalar reference.

#pragma once

#include <string>
#include <vector>

#include "tests/unit/kernels/reduce_compare.hpp"

namespace kernels_test {

/// What a step is made with. Misalignment is in elements: array a starts so many times (a + 1) past
/// a line.
struct Step {
    kernels::Rule rule = kernels::Rule::kAdamW;
    kernels::DType gradients = kernels::DType::kF32;
    std::size_t count = 0;
    int gradient_count = 2;
    std::size_t misalignment = 0;
    bool weighted = false;
    bool logged = false;
    bool streaming = false;
    int copy = -1;  // index of kCopyTypes; -1: none
    bool without_first = false;
    Content content = Content::kOrdinary;
    kernels::Hyper hyper = {};
    std::uint64_t number = 3;  // of the step
    std::uint64_t seed = 1;

    std::string text() const {
        return std::string(row_of(rule).name) + " of " + row_of(gradients).name + ": " +
               std::to_string(gradient_count) + " x " + std::to_string(count) + " elements, " +
               std::to_string(misalignment) + " past a line, weighted " + std::to_string(weighted) +
               ", logged " + std::to_string(logged) + ", copy " + std::to_string(copy) +
               ", content " + std::to_string(static_cast<int>(content)) + ", seed " +
               std::to_string(seed);
    }
};

/// The hyperparameters that exercise every factor of a rule.
inline kernels::Hyper busy_hyper(kernels::Rule rule, std::uint64_t seed) {
    kernels::Hyper hyper = {};
    hyper.learning_rate = 0.01;
    hyper.weight_decay = seed % 3 == 0 ? 0 : 0.05;
    hyper.epsilon = 1e-6;
    hyper.decoupled = seed % 4 != 1;
    hyper.maximize = seed % 5 == 4;
    if (rule == kernels::Rule::kSgd) {
        hyper.momentum = 0.9;
        hyper.nesterov = seed % 2 == 0;
        hyper.dampening = hyper.nesterov ? 0 : 0.1;
    }
    return hyper;
}

/// A job with its arrays; the same step has the same contents.
class StepRun {
  public:
    explicit StepRun(const Step& step) : step_(step) {
        Random random(step.seed);
        for (int g = 0; g < step.gradient_count; ++g) {
            const std::size_t width = size_of(step.gradients);
            gradients_.emplace_back(step.count * width, misalignment(width));
            fill(gradients_.back(), step.gradients, step.content, 4, random);
            sources_.push_back(gradients_.back().data());
            weights_.push_back(0.25f + static_cast<float>(random() % 8) / 7);
        }
        const kernels::RuleRow& row = row_of(step.rule);
        const int arrays = 1 + (step.without_first ? 0 : row.states());
        for (int a = 0; a < arrays; ++a) {
            moved_.emplace_back(step.count * sizeof(float), misalignment(sizeof(float)));
            fill(moved_.back(), kernels::DType::kF32, step.content, 8, random);
            if (a > 1) make_positive(moved_.back());
            if (step.logged) logs_.emplace_back(step.count * sizeof(float), misalignment(4));
        }
        if (step.copy >= 0) moved_.emplace_back(step.count * 2, misalignment(2));
    }

    /// The job of elements [at, at + count).
    kernels::OptimiseJob job(std::size_t at, std::size_t count) {
        kernels::OptimiseJob job;
        job.rule = step_.rule;
        job.factors = kernels::make_step_factors(step_.rule, step_.hyper, step_.number);
        job.gradient_type = step_.gradients;
        moved_sources_.clear();
        for (const void* source : sources_) {
            moved_sources_.push_back(static_cast<const char*>(source) +
                                     at * size_of(step_.gradients));
        }
        job.gradients = moved_sources_.data();
        job.gradient_count = step_.gradient_count;
        job.weights = step_.weighted ? weights_.data() : nullptr;
        job.scale = 0.7f;
        float** const arrays[] = {&job.parameters, &job.first, &job.second, &job.maximum};
        float** const logs[] = {&log_.parameters, &log_.first, &log_.second, &log_.maximum};
        for (std::size_t a = 0; a < array_count(); ++a) {
            *arrays[a] = floats(moved_[a]) + at;
            if (step_.logged) *logs[a] = floats(logs_[a]) + at;
        }
        log_.logged = &logged_;
        log_.base = at;
        job.undo = step_.logged ? &log_ : nullptr;
        if (step_.copy >= 0) {
            job.copy_type = kernels::kCopyTypes[step_.copy];
            job.copy = moved_.back().data() + at * 2;
        }
        job.count = count;
        job.streaming = step_.streaming;
        return job;
    }
    kernels::OptimiseJob job() { return job(0, step_.count); }

    std::size_t array_count() const { return moved_.size() - (step_.copy >= 0 ? 1 : 0); }
    float* array(std::size_t a) { return floats(moved_[a]); }
    float* log(std::size_t a) { return floats(logs_[a]); }
    std::uint64_t logged() const { return logged_.load(std::memory_order_relaxed); }
    const std::uint16_t* copy() {
        return reinterpret_cast<const std::uint16_t*>(moved_.back().data());
    }
    const std::vector<const void*>& gradients() const { return sources_; }
    const std::vector<float>& weights() const { return weights_; }

    /// Parameters, state and copy.
    std::string bits() const {
        std::string all;
        for (const Buffer& buffer : moved_) {
            all.append(reinterpret_cast<const char*>(buffer.data()), buffer.size());
        }
        return all;
    }
    bool guards_intact() const {
        for (const auto* list : {&gradients_, &moved_, &logs_}) {
            for (const Buffer& buffer : *list) {
                if (!buffer.guards_intact()) return false;
            }
        }
        return true;
    }

  private:
    static float* floats(Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }
    std::size_t misalignment(std::size_t width) {
        return step_.misalignment * ++arrays_made_ * width % 64;
    }
    // Second moments are not negative.
    static void make_positive(Buffer& buffer) {
        for (std::size_t i = 3; i < buffer.size(); i += 4) buffer.data()[i] &= 0x7f;
    }

    Step step_;
    std::size_t arrays_made_ = 0;
    std::vector<Buffer> gradients_, moved_, logs_;
    std::vector<const void*> sources_, moved_sources_;
    std::vector<float> weights_;
    kernels::UndoLog log_;
    std::atomic<std::uint64_t> logged_{0};
};

/// The sets of this build that can run here, the scalar one first.
inline std::vector<const kernels::KernelSet*> available_sets() {
    std::vector<const kernels::KernelSet*> sets;
    for (int i = 0; kernels::kernel_set(i) != nullptr; ++i) {
        if (kernels::kernel_set(i)->available()) sets.push_back(kernels::kernel_set(i));
    }
    return sets;
}

/// `set` gives the bits of the scalar reference, and writes nowhere else.
inline void check_same_bits(const kernels::KernelSet& set, const Step& step) {
    StepRun reference(step), run(step);
    optimise_with(*kernels::kernel_set(0), reference.job());
    optimise_with(set, run.job());
    const bool same = run.bits() == reference.bits() && run.guards_intact() &&
                      reference.guards_intact() && run.logged() == (step.logged ? step.count : 0);
    const std::string text = same ? "" : std::string(set.name) + ", " + step.text();
    CHECK(text == "");
}

/// Every rule, type and number of elements, with all that a job may have, switched on in turn.
inline void check_all_shapes(const kernels::KernelSet& set) {
    for (const kernels::RuleRow& row : kernels::kRuleRows) {
        for (const kernels::DType gradients : kernels::kGradientTypes) {
            for (std::size_t count = 0; count <= 76; ++count) {
                // The last ones are around one, two and four blocks.
                constexpr std::size_t kLong[] = {255, 256, 257, 511, 513, 1029};
                Step step{.rule = row.rule, .gradients = gradients};
                step.count = count <= 70 ? count : kLong[count - 71];
                step.gradient_count = 1 + static_cast<int>(count % 11);
                step.misalignment = count % 5;
                step.weighted = count % 2 != 0;
                step.logged = count % 3 == 0;
                step.streaming = count % 4 == 0;
                step.copy = static_cast<int>(count % 3) - 1;
                step.without_first = row.rule == kernels::Rule::kSgd && count % 7 == 0;
                step.number = 1 + count % 4;
                step.seed = count;
                step.hyper = busy_hyper(row.rule, count);
                if (step.without_first) step.hyper.momentum = step.hyper.dampening = 0;
                if (step.without_first) step.hyper.nesterov = false;
                for (const Content content :
                     {Content::kOrdinary, Content::kSpecial, Content::kRandomBits}) {
                    step.content = content;
                    check_same_bits(set, step);
                }
            }
        }
    }
}

/// merge() of `set` gives the bits of the scalar reference: values, in place too, and the sum.
inline void check_same_merge(const kernels::KernelSet& set) {
    for (const kernels::DType gradients : kernels::kGradientTypes) {
        for (std::size_t count = 0; count <= 600; count += count < 40 ? 1 : 97) {
            Step step{.gradients = gradients, .count = count, .misalignment = count % 4};
            step.gradient_count = 1 + static_cast<int>(count % 19);
            step.content = count % 2 == 0 ? Content::kOrdinary : Content::kSpecial;
            step.seed = count;
            StepRun reference(step), run(step);
            const auto merge = [&](const kernels::KernelSet& with, StepRun& arrays, bool in_place) {
                kernels::MergeJob job;
                job.gradient_type = gradients;
                job.gradients = arrays.gradients().data();
                job.gradient_count = step.gradient_count;
                job.weights = count % 3 == 0 ? nullptr : arrays.weights().data();
                job.scale = 0.3f;
                job.count = count;
                job.streaming = count % 2 != 0;
                job.destination = arrays.array(0);
                if (in_place) job.destination = const_cast<void*>(arrays.gradients().back());
                const kernels::Merged merged = merge_with(with, job);
                job.destination = nullptr;
                const kernels::Merged norm_only = merge_with(with, job);
                // In place the second merge is of other values.
                if (!in_place) {
                    CHECK(std::memcmp(&merged.square_sum, &norm_only.square_sum, 8) == 0);
                }
                return merged;
            };
            for (const bool in_place : {false, true}) {
                if (in_place && gradients != kernels::DType::kF32) continue;
                const kernels::Merged right = merge(*kernels::kernel_set(0), reference, in_place);
                const kernels::Merged merged = merge(set, run, in_place);
                CHECK(std::memcmp(&merged.square_sum, &right.square_sum, 8) == 0);
                CHECK(merged.finite == right.finite);
                CHECK(run.bits() == reference.bits());
                CHECK(run.guards_intact());
                const void* last = run.gradients().back();
                CHECK(std::memcmp(last, reference.gradients().back(), count * size_of(gradients)) ==
                      0);
            }
        }
    }
}

}  // namespace kernels_test
