#include <cmath>
#include <limits>

#include "tests/unit/kernels/optimise_arrays.hpp"
#include "tests/unit/kernels/optimise_oracle.hpp"

using namespace kernels_test;
using kernels::DType;

namespace {

kernels::MergeJob merge_job(const kernels::OptimiseJob& job) {
    kernels::MergeJob merge;
    merge.gradient_type = job.gradient_type;
    merge.gradients = job.gradients;
    merge.gradient_count = job.gradient_count;
    merge.weights = job.weights;
    merge.count = job.count;
    return merge;
}

// Products and sums are rounded to f32, squares are not rounded at all.
long double square_sum(OptimiseArrays& arrays, DType type, int gradients, const float* weights) {
    long double sum = 0;
    const std::size_t width = kernels::size_of(type);
    for (std::size_t i = 0; i < arrays.count(); ++i) {
        float merged = 0;
        for (int source = 0; source < gradients; ++source) {
            float value;
            if (type == DType::kF32) {
                std::memcpy(&value, arrays.gradient(source) + i * width, width);
            } else {
                std::uint16_t code;
                std::memcpy(&code, arrays.gradient(source) + i * width, width);
                value = static_cast<float>(half_value(code, type == DType::kF16 ? 5 : 8));
            }
            const float product = weights == nullptr ? value : weights[source] * value;
            merged = source == 0 ? product : merged + product;
        }
        sum += static_cast<long double>(merged) * merged;
    }
    return sum;
}

}  // namespace

TEST_SUITE("kernels.optimise_merge") {
    TEST_CASE("the square sum is that of the merged gradient, and the same on all sets") {
        const float weights[] = {0.1F, 0.7F, 0.2F};
        for (const DType type : kGradients) {
            for (const std::size_t count : {0U, 1U, 15U, 16U, 127U, 128U, 129U, 300U, 20001U}) {
                for (int gradients = 1; gradients <= 3; ++gradients) {
                    for (const float* weighted : {static_cast<const float*>(nullptr), weights}) {
                        OptimiseCase what{.gradient_type = type, .count = count};
                        what.gradients = gradients;
                        what.misalignment = count % 2;
                        OptimiseArrays arrays(what);
                        auto job = arrays.job(kernels::StepFactors{});
                        job.weights = weighted;
                        const long double right = square_sum(arrays, type, gradients, weighted);
                        const kernels::Merged first =
                            kernels::merge_with(*kernels::kernel_set(0), merge_job(job));
                        // A lane adds up a sixteenth of the squares, each sum off by 2^-53.
                        const long double bound =
                            right * (static_cast<long double>(count) / 16 + 17) * 0x1p-53L;
                        CAPTURE(what.text());
                        CHECK(std::abs(first.square_sum - right) <= bound);
                        for (const kernels::KernelSet* set : available_sets()) {
                            const kernels::Merged merged =
                                kernels::merge_with(*set, merge_job(job));
                            CHECK(merged.finite);
                            CHECK(merged.square_sum == first.square_sum);
                        }
                    }
                }
            }
        }
    }

    TEST_CASE("an infinity or a NaN is found wherever it is") {
        const float bad[] = {INFINITY, -INFINITY, NAN, -NAN};
        for (const kernels::KernelSet* set : available_sets()) {
            for (std::size_t at = 0; at < 300; ++at) {
                for (int source = 0; source < 2; ++source) {
                    OptimiseArrays arrays(OptimiseCase{.count = 300});
                    arrays.set_gradient(source, at, bad[(at + source) % 4]);
                    const auto merged =
                        kernels::merge_with(*set, merge_job(arrays.job(kernels::StepFactors{})));
                    if (merged.finite) FAIL_CHECK(std::string(set->name) << " at " << at);
                }
            }
        }
    }

    TEST_CASE("gradients of 16 bits that are not finite are found, too") {
        for (const kernels::KernelSet* set : available_sets()) {
            for (const DType type : {DType::kF16, DType::kBF16}) {
                const std::uint16_t infinite = type == DType::kF16 ? 0x7c00 : 0x7f80;
                for (std::size_t at = 0; at < 300; ++at) {
                    OptimiseArrays arrays(OptimiseCase{.gradient_type = type, .count = 300});
                    const auto code = static_cast<std::uint16_t>(infinite + at % 2);
                    std::memcpy(arrays.gradient(0) + at * 2, &code, 2);
                    const auto merged =
                        kernels::merge_with(*set, merge_job(arrays.job(kernels::StepFactors{})));
                    if (merged.finite) FAIL_CHECK(std::string(set->name) << " at " << at);
                }
            }
        }
    }

    TEST_CASE("finite gradients whose sum is too large are not finite") {
        for (const kernels::KernelSet* set : available_sets()) {
            OptimiseArrays arrays(OptimiseCase{.count = 40});
            const float largest = std::numeric_limits<float>::max();
            arrays.set_gradient(0, 33, largest);
            const auto job = arrays.job(kernels::StepFactors{});
            CHECK(kernels::merge_with(*set, merge_job(job)).finite);
            arrays.set_gradient(1, 33, largest);
            CHECK_FALSE(kernels::merge_with(*set, merge_job(job)).finite);
        }
    }
}
