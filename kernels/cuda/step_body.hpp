// Reduction and optimiser step in one pass over a span: each thread adds up the gradients of its
// elements, in the order of ranks, and moves parameters and state. Elements and rules are those of
// the scalar kernel, so the bits are, too.

#pragma once

#include "kernels/cpu/step_scalar.hpp"
#include "kernels/cuda/group_body.hpp"

namespace kernels::cuda {

namespace detail {

struct StepOperands {
    const StepArgs* args;
    StepFactors factors;
    float scale;
    int gradient_count;
    const Address* gradients;
    const Address* outputs;  // 0: takes no parameters
    int output_count;
};

// `kCount` floats, or what is widened to them, are one access.
template <std::uint64_t kCount, class Grid>
constexpr void load_floats(Grid& grid, Address from, float (&to)[kCount]) {
    struct Floats {
        float value[kCount];
    };
    using Access = std::conditional_t<kCount == 1, float, Vector16>;
    const auto loaded = std::bit_cast<Floats>(grid.template load<Access>(from));
    for (std::uint64_t k = 0; k < kCount; ++k) to[k] = loaded.value[k];
}

template <std::uint64_t kCount, class Grid>
constexpr void store_floats(Grid& grid, Address to, const float (&from)[kCount]) {
    struct Floats {
        float value[kCount];
    };
    Floats floats = {};
    for (std::uint64_t k = 0; k < kCount; ++k) floats.value[k] = from[k];
    grid.store(to, std::bit_cast<std::conditional_t<kCount == 1, float, Vector16>>(floats));
}

template <std::uint64_t kCount>
struct Halves {
    using Access = std::conditional_t<kCount == 1, std::uint16_t, std::uint64_t>;
    std::uint16_t value[kCount];
};

// Element `at` of a buffer of `type` and those behind it.
template <std::uint64_t kCount, class Grid>
constexpr void load_as_floats(Grid& grid, DType type, Address base, std::uint64_t at,
                              float (&to)[kCount]) {
    if (type == DType::kF32) return load_floats(grid, base + at * 4, to);
    using Access = typename Halves<kCount>::Access;
    const auto halves = std::bit_cast<Halves<kCount>>(grid.template load<Access>(base + at * 2));
    for (std::uint64_t k = 0; k < kCount; ++k) {
        to[k] = type == DType::kF16 ? f16_to_f32(halves.value[k]) : bf16_to_f32(halves.value[k]);
    }
}

template <std::uint64_t kCount, class Grid>
constexpr void store_as(Grid& grid, DType type, Address base, std::uint64_t at,
                        const float (&from)[kCount]) {
    if (type == DType::kF32) return store_floats(grid, base + at * 4, from);
    Halves<kCount> halves = {};
    for (std::uint64_t k = 0; k < kCount; ++k) {
        halves.value[k] = type == DType::kF16 ? f32_to_f16(from[k]) : f32_to_bf16(from[k]);
    }
    grid.store(base + at * 2, std::bit_cast<typename Halves<kCount>::Access>(halves));
}

template <class Grid>
constexpr float weight_of(Grid& grid, const StepArgs& args, int gradient) {
    if (args.weights == 0) return 1;
    return grid.template load<float>(args.weights + static_cast<std::uint64_t>(gradient) * 4);
}

constexpr void step_one(const StepArgs& args, const StepFactors& factors, float gradient,
                        float* parameter, float* first, float* second, float* maximum) {
    switch (args.rule) {
        case Rule::kSgd:
            return scalar::step_sgd(factors, gradient, parameter,
                                    args.first != 0 ? first : nullptr);
        case Rule::kAdam:
            return scalar::step_moments<Rule::kAdam>(factors, gradient, parameter, first, second,
                                                     nullptr);
        case Rule::kAdamW:
            return scalar::step_moments<Rule::kAdamW>(factors, gradient, parameter, first, second,
                                                      nullptr);
        case Rule::kAdaBelief:
            return scalar::step_moments<Rule::kAdaBelief>(factors, gradient, parameter, first,
                                                          second, nullptr);
        case Rule::kMaxAdaBelief:
            return scalar::step_moments<Rule::kMaxAdaBelief>(factors, gradient, parameter, first,
                                                             second, maximum);
    }
}

template <std::uint64_t kCount, class Grid>
constexpr void step_at(Grid& grid, const StepOperands& job, std::uint64_t at) {
    const StepArgs& args = *job.args;
    float sum[kCount] = {}, gradient[kCount] = {};
    for (int g = 0; g < job.gradient_count; ++g) {
        const float weight = weight_of(grid, args, g);
        load_as_floats(grid, args.gradient_type, job.gradients[g], args.begin + at, gradient);
        for (std::uint64_t k = 0; k < kCount; ++k) {
            sum[k] = scalar::add_gradient(sum[k], weight, gradient[k], g == 0);
        }
    }
    float parameter[kCount] = {}, first[kCount] = {}, second[kCount] = {}, maximum[kCount] = {};
    const bool has_second = args.rule != Rule::kSgd, has_maximum = args.rule == Rule::kMaxAdaBelief;
    const std::uint64_t offset = at * sizeof(float);
    load_floats(grid, args.parameters + offset, parameter);
    if (args.first != 0) load_floats(grid, args.first + offset, first);
    if (has_second) load_floats(grid, args.second + offset, second);
    if (has_maximum) load_floats(grid, args.maximum + offset, maximum);
    for (std::uint64_t k = 0; k < kCount; ++k) {
        step_one(args, job.factors, scalar::one_nan(sum[k] * job.scale), &parameter[k], &first[k],
                 &second[k], &maximum[k]);
    }
    store_floats(grid, args.parameters + offset, parameter);
    if (args.first != 0) store_floats(grid, args.first + offset, first);
    if (has_second) store_floats(grid, args.second + offset, second);
    if (has_maximum) store_floats(grid, args.maximum + offset, maximum);
    for (int o = 0; o < job.output_count; ++o) {
        if (job.outputs[o] == 0) continue;
        store_as(grid, args.publish_type, job.outputs[o], args.begin + at, parameter);
    }
}

// Four elements at a time, where all of an operand's four are one aligned access.
constexpr Cut cut_step(const StepOperands& job) {
    const StepArgs& args = *job.args;
    bool alike = true;
    for (const Address array : {args.first, args.second, args.maximum}) {
        alike = alike && (array == 0 || aligned_alike(args.parameters, array));
    }
    Cut cut = cut_span(args.parameters, args.count, sizeof(float), alike);
    const auto check = [&](Address base, DType type) {
        const std::uint64_t size = type == DType::kF32 ? 4 : 2;
        const Address start = base + (args.begin + cut.head) * size;
        if (base != 0 && start % (4 * size) != 0) alike = false;
    };
    for (int g = 0; g < job.gradient_count; ++g) check(job.gradients[g], args.gradient_type);
    for (int o = 0; o < job.output_count; ++o) check(job.outputs[o], args.publish_type);
    return alike ? cut : cut_span(args.parameters, args.count, sizeof(float), false);
}

template <class Grid>
constexpr void step_span(Grid& grid, const StepArgs& args, const Address* gradients,
                         int gradient_count, const Address* outputs, int output_count,
                         Worker worker) {
    const auto factors = grid.template load<StepFactors>(args.factors);
    // The other direction is the gradient's sign, which changes no rounding.
    const float scale = factors.maximize ? -args.scale : args.scale;
    const StepOperands job = {&args,     factors, scale,       gradient_count,
                              gradients, outputs, output_count};
    share_span(
        cut_step(job), args.count, worker, [&](std::uint64_t i) { step_at<4>(grid, job, i); },
        [&](std::uint64_t i) { step_at<1>(grid, job, i); });
}

constexpr Call call_of(const StepArgs& args) {
    Call call = {};
    for (const std::uint64_t value :
         {static_cast<std::uint64_t>(CollectiveKind::kStep), static_cast<std::uint64_t>(args.rule),
          static_cast<std::uint64_t>(args.gradient_type),
          static_cast<std::uint64_t>(args.publish_type), args.total}) {
        call.signature = mix(call.signature, value);
    }
    call.element_bytes = args.gradient_type == DType::kF32 ? 4 : 2;
    call.input_bytes = args.total * call.element_bytes;
    call.output_element_bytes = args.publish_type == DType::kF32 ? 4 : 2;
    call.output_bytes = args.total * call.output_element_bytes;
    call.only_input_of = -1;
    call.input = args.gradients[args.group.rank];
    call.output = args.publish;
    call.shown_input = args.shown_gradient;
    call.shown_output = args.shown_publish;
    return call;
}

}  // namespace detail

/// A step by itself, or with a group: then gradients come from all ranks and parameters go to all.
/// A share that is outside the whole is a bug of the host, which checks it.
template <class Grid>
constexpr void step_body(Grid& grid, const StepArgs& args) {
    const GroupArgs& group = args.group;
    const auto step_alone = [&](Worker worker) {
        detail::step_span(grid, args, args.gradients, args.gradient_count, &args.publish,
                          args.publish != 0 ? 1 : 0, worker);
    };
    if (group.block == 0 && group.grid == 0) return step_alone(worker_of_grid(grid));
    if (group.block == 0) {
        const Opened alone =
            begin_grid(grid, group.grid, [&] { return pass_gate(grid, group.status); });
        if (alone.works) step_alone(alone.worker);
        return end_grid(grid, gate_of(group), [] {});
    }
    const Opened opened = open_operation(grid, group, detail::call_of(args),
                                         [](auto&, std::uint64_t) -> Report { return 0; });
    if (opened.works) {
        detail::step_span(
            grid, args,
            reinterpret_cast<const Address*>(FABRIC_MEMBER(group.grid, GridWords, inputs)),
            group.world,
            reinterpret_cast<const Address*>(FABRIC_MEMBER(group.grid, GridWords, outputs)),
            group.world, opened.worker);
    }
    close_operation(grid, group);
}

}  // namespace kernels::cuda
