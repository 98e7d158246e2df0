// Shared by the tests of optimiser steps: gradients, parameters and states with guard bytes around
// them, and the jobs over them.

#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/kernel_set.hpp"
#include "kernels/optimise.hpp"
#include "tests/unit/kernels/reduce_compare.hpp"

namespace kernels_test {

inline constexpr kernels::Rule kRules[] = {kernels::Rule::kSgd, kernels::Rule::kAdam,
                                           kernels::Rule::kAdamW, kernels::Rule::kAdaBelief,
                                           kernels::Rule::kMaxAdaBelief};
inline constexpr kernels::DType kGradients[] = {kernels::DType::kF32, kernels::DType::kF16,
                                                kernels::DType::kBF16};

/// The sets that this processor can run, the scalar one first.
inline std::vector<const kernels::KernelSet*> available_sets() {
    std::vector<const kernels::KernelSet*> sets;
    for (int i = 0; const kernels::KernelSet* set = kernels::kernel_set(i); ++i) {
        if (set->available()) sets.push_back(set);
    }
    return sets;
}

/// What a step works on.
struct OptimiseCase {
    kernels::Rule rule = kernels::Rule::kAdamW;
    kernels::DType gradient_type = kernels::DType::kF32;
    int gradients = 2;
    std::size_t count = 0;
    std::size_t misalignment = 0;  // in elements, of array i: this times (i + 1)
    bool copies = false;
    kernels::DType copy_type = kernels::DType::kBF16;
    bool logs = false;
    Content content = Content::kOrdinary;
    std::uint64_t seed = 1;

    std::string text() const {
        return std::string(kernels::row_of(rule).name) +
               " gradients=" + std::to_string(static_cast<int>(gradient_type)) + "x" +
               std::to_string(gradients) + " count=" + std::to_string(count) +
               " misalignment=" + std::to_string(misalignment) + " seed=" + std::to_string(seed);
    }
};

/// The arrays of one; the same seed gives the same values.
class OptimiseArrays {
  public:
    explicit OptimiseArrays(const OptimiseCase& what) : what_(what) {
        Random random(what.seed);
        const std::size_t width = kernels::size_of(what.gradient_type);
        for (int i = 0; i < what.gradients; ++i) {
            gradients_.push_back(make(width));
            fill(gradients_.back(), what.gradient_type, what.content, 9, random);
            sources_.push_back(gradients_.back().data());
        }
        for (int i = 0; i < 4; ++i) {
            values_.push_back(make(sizeof(float)));
            logs_.push_back(make(sizeof(float)));
            fill(values_.back(), kernels::DType::kF32, what.content, 9, random);
        }
        copy_.push_back(make(2));
        if (what.content == Content::kOrdinary) begin_states();
    }

    /// The job over elements from `from` on; `undo`, `weights` and all else as the caller says.
    kernels::OptimiseJob job(const kernels::StepFactors& factors, std::size_t from = 0,
                             std::size_t count = SIZE_MAX) {
        const kernels::RuleRow& row = kernels::row_of(what_.rule);
        kernels::OptimiseJob job;
        job.rule = what_.rule;
        job.factors = factors;
        job.gradient_type = what_.gradient_type;
        const std::size_t width = kernels::size_of(what_.gradient_type);
        for (int i = 0; i < what_.gradients; ++i) {
            sources_[i] = gradients_[i].data() + from * width;
        }
        job.gradients = sources_.data();
        job.gradient_count = what_.gradients;
        job.parameters = values(0) + from;
        job.first = row.first ? values(1) + from : nullptr;
        job.second = row.second ? values(2) + from : nullptr;
        job.maximum = row.maximum ? values(3) + from : nullptr;
        job.copy = what_.copies ? copy_[0].data() + from * 2 : nullptr;
        job.copy_type = what_.copy_type;
        job.count = std::min(count, what_.count - from);
        if (what_.logs) job.undo = &log(from);
        return job;
    }

    /// Parameters, first, second, maximum.
    float* values(int which) { return reinterpret_cast<float*>(values_[which].data()); }
    float* old(int which) { return reinterpret_cast<float*>(logs_[which].data()); }
    std::uint16_t* copy() { return reinterpret_cast<std::uint16_t*>(copy_[0].data()); }
    unsigned char* gradient(int which) { return gradients_[which].data(); }
    std::uint64_t logged() const { return logged_->load(std::memory_order_relaxed); }
    std::size_t count() const { return what_.count; }

    void set_gradient(int which, std::size_t at, float value) {
        REQUIRE(what_.gradient_type == kernels::DType::kF32);
        std::memcpy(gradient(which) + at * sizeof value, &value, sizeof value);
    }
    void refill_gradients(std::uint64_t seed) {
        Random random(seed);
        for (Buffer& gradient : gradients_) {
            fill(gradient, what_.gradient_type, what_.content, 9, random);
        }
    }

    bool guards_intact() const {
        for (const auto* all : {&gradients_, &values_, &logs_, &copy_}) {
            for (const Buffer& buffer : *all) {
                if (!buffer.guards_intact()) return false;
            }
        }
        return true;
    }

    /// The same bits everywhere; a NaN is a NaN, its sign and payload are the processor's choice.
    bool same_as(const OptimiseArrays& other) const {
        for (int i = 0; i < 4; ++i) {
            if (!same<std::uint32_t>(values_[i], other.values_[i], 0x7f800000u)) return false;
        }
        const bool half = what_.copy_type == kernels::DType::kF16;
        return same<std::uint16_t>(copy_[0], other.copy_[0], half ? 0x7c00u : 0x7f80u);
    }

  private:
    Buffer make(std::size_t width) {
        return {what_.count * width, what_.misalignment * ++made_ * width % 64};
    }

    // A first moment of any sign, a second one that is not negative, and its maximum.
    void begin_states() {
        for (std::size_t i = 0; i < what_.count; ++i) {
            values(2)[i] = std::abs(values(2)[i]);
            values(3)[i] = 2 * std::abs(values(3)[i]);
        }
    }

    kernels::UndoLog& log(std::size_t from) {
        logged_->store(0, std::memory_order_relaxed);
        undo_.logged = logged_.get();
        undo_.base = 0;
        undo_.parameters = old(0) + from;
        undo_.first = old(1) + from;
        undo_.second = old(2) + from;
        undo_.maximum = old(3) + from;
        return undo_;
    }

    template <class Bits>
    bool same(const Buffer& a, const Buffer& b, Bits infinity) const {
        const auto magnitude = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);
        for (std::size_t at = 0; at < a.size(); at += sizeof(Bits)) {
            Bits first, second;
            std::memcpy(&first, a.data() + at, sizeof first);
            std::memcpy(&second, b.data() + at, sizeof second);
            const bool nan = (first & magnitude) > infinity && (second & magnitude) > infinity;
            if (first != second && !nan) return false;
        }
        return true;
    }

    OptimiseCase what_;
    std::size_t made_ = 0;
    std::vector<Buffer> gradients_, values_, logs_, copy_;
    std::vector<const void*> sources_;
    std::unique_ptr<std::atomic<std::uint64_t>> logged_ =
        std::make_unique<std::atomic<std::uint64_t>>(0);
    kernels::UndoLog undo_;
};

}  // namespace kernels_test
