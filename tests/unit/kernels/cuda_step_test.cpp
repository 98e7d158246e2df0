// The body of the CUDA optimiser step, run on the CPU, against the scalar kernel.

#include "kernels/cuda/step_body.hpp"

#include "tests/support/cpu_grid.hpp"
#include "tests/unit/kernels/optimise_compare.hpp"

namespace {

using kernels_test::Step;
using kernels_test::StepRun;
using test_support::address_of;

void step_as_grid(const kernels::OptimiseJob& job) {
    kernels::cuda::StepArgs args = {};
    args.group.world = 1;
    args.rule = job.rule;
    args.gradient_type = job.gradient_type;
    args.publish_type = job.copy_type;
    args.gradient_count = job.gradient_count;
    args.scale = job.scale;
    args.total = args.count = job.count;
    args.factors = address_of(&job.factors);
    args.weights = address_of(job.weights);
    args.parameters = address_of(job.parameters);
    args.first = address_of(job.first);
    args.second = address_of(job.second);
    args.maximum = address_of(job.maximum);
    for (int g = 0; g < job.gradient_count; ++g) args.gradients[g] = address_of(job.gradients[g]);
    args.publish = address_of(job.copy);
    test_support::run_serial(
        [&](test_support::SerialGrid& grid) { kernels::cuda::step_body(grid, args); });
}

}  // namespace

TEST_SUITE("kernels.cuda_step") {
    TEST_CASE("every rule, type, size and alignment gives the bits of the scalar kernel") {
        for (const kernels::RuleRow& row : kernels::kRuleRows) {
            for (const kernels::DType gradients : kernels::kGradientTypes) {
                for (std::size_t count = 0; count <= 120; ++count) {
                    Step step{.rule = row.rule, .gradients = gradients};
                    step.count = count <= 100 ? count : count * 17;
                    step.gradient_count = 1 + static_cast<int>(count % 11);
                    step.misalignment = count % 3 == 0 ? 0 : count % 5;
                    step.weighted = count % 2 != 0;
                    step.copy = static_cast<int>(count % 3) - 1;
                    step.without_first = row.rule == kernels::Rule::kSgd && count % 7 == 0;
                    step.content = count % 4 == 1 ? kernels_test::Content::kSpecial
                                                  : kernels_test::Content::kOrdinary;
                    step.number = 1 + count % 4;
                    step.seed = count;
                    step.hyper = kernels_test::busy_hyper(row.rule, count);
                    if (step.without_first) step.hyper.momentum = step.hyper.dampening = 0;
                    if (step.without_first) step.hyper.nesterov = false;
                    StepRun reference(step), run(step);
                    optimise_with(*kernels::kernel_set(0), reference.job());
                    step_as_grid(run.job());
                    const bool same = run.bits() == reference.bits() && run.guards_intact();
                    CHECK((same ? "" : step.text()) == "");
                }
            }
        }
    }
}
