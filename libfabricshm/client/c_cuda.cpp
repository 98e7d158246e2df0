// The C ABI: arenas in a GPU's address space, and operations on its streams.

#include <algorithm>
#include <cstring>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/client/c_error.hpp"
#include "libfabricshm/client/cuda_seat.hpp"
#include "libfabricshm/client/handles.hpp"
#include "libfabricshm/include/fabricshm/cuda.h"

namespace fabricshm {

namespace {

static_assert(FABRICSHM_CUDA_RANKS_MAX == kernels::cuda::kMaxRanks);
static_assert(FABRICSHM_CUDA_FACTORS_BYTES >= sizeof(kernels::StepFactors));
static_assert(FABRICSHM_CUDA_FACTORS_BYTES == gpu::kFactorsBytes);

using kernels::cuda::CollectiveKind;

constexpr Bytes kMinStageBytes = 4096;
constexpr Bytes kStageUnit = 512;  // two halves, each of whole lines

template <typename Value>
bool is_below(Value value, int count) noexcept {
    return static_cast<int>(value) >= 0 && static_cast<int>(value) < count;
}

int check_arena(const char* function, const fabricshm_arena* arena) {
    if (arena == nullptr) return refuse("%s: arena is NULL", function);
    if (!arena->arena->session().is_foreign()) return FABRICSHM_OK;
    return fail({Errc::kClosed, 0, ""}, "arena '%s'", arena->arena->name().c_str());
}

int check_group(const char* function, const fabricshm_group* group) {
    if (group == nullptr) return refuse("%s: group is NULL", function);
    if (group->arena->session().is_foreign()) {
        return fail({Errc::kClosed, 0, ""}, "group '%s'", group->name.c_str());
    }
    return check_one_pool(function, *group);
}

int code_on_stream(const char* function, const fabricshm_group& group, const Result<void>& result) {
    if (result.ok()) return FABRICSHM_OK;
    return fail(result.error(), "%s in group '%s'", function, group.name.c_str());
}

// Calls work(the rank's seat).
template <typename Work>
int with_cuda_seat(const char* function, fabricshm_group* group, const Work& work) {
    return guarded(function, [&]() -> int {
        if (const int code = check_group(function, group); code != FABRICSHM_OK) return code;
        if (group->on_device == nullptr) {
            return fail(Error{Errc::kNotFound, 0, "it is not joined: fabricshm_cuda_join()"},
                        "group '%s'", group->name.c_str());
        }
        return code_on_stream(function, *group, work(*group->on_device));
    });
}

// Calls work(its place on its device).
template <typename Work>
int with_device(const char* function, fabricshm_group* group, const Work& work) {
    return with_cuda_seat(function, group, [&](CudaSeat& seat) { return work(*seat.group); });
}

TimePoint usual_deadline(const fabricshm_group& group) {
    return deadline_of(group.arena->session(), FABRICSHM_TIMEOUT_DEFAULT);
}

struct CudaCall {
    CollectiveKind kind;
    const void* input;
    void* output;
    std::uint64_t count;
    fabricshm_dtype dtype;
    fabricshm_op op;
    int root;
    void* stream;
};

int run_on_stream(const char* function, fabricshm_group* group, const CudaCall& given) {
    if (!is_below(given.dtype, kernels::kDTypeCount)) return refuse("%s: dtype", function);
    if (!is_below(given.op, kernels::kReduceOpCount)) return refuse("%s: op", function);
    // So that no product of it wraps.
    constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 48;
    if (given.count > kMaxCount) return refuse("%s: count is above 2^48", function);
    return with_device(function, group, [&](gpu::DeviceGroup& device) {
        gpu::DeviceCall call;
        call.kind = given.kind;
        call.dtype = static_cast<kernels::DType>(given.dtype);
        call.op = static_cast<kernels::ReduceOp>(given.op);
        call.root = given.root;
        call.count = given.count;
        call.input = given.input;
        call.output = given.output;
        return device.run(call, given.stream);
    });
}

kernels::Hyper cuda_hyper_of(const fabricshm_hyper& given) {
    kernels::Hyper hyper;
    hyper.learning_rate = given.learning_rate;
    hyper.beta1 = given.beta1;
    hyper.beta2 = given.beta2;
    hyper.epsilon = given.epsilon;
    hyper.weight_decay = given.weight_decay;
    hyper.momentum = given.momentum;
    hyper.dampening = given.dampening;
    hyper.nesterov = given.nesterov != 0;
    hyper.maximize = given.maximize != 0;
    return hyper;
}

bool is_step_type(fabricshm_dtype dtype) noexcept {
    return dtype == FABRICSHM_F32 || dtype == FABRICSHM_F16 || dtype == FABRICSHM_BF16;
}

int check_cuda_step(const char* function, const fabricshm_cuda_step* step) {
    if (step == nullptr) return refuse("%s: step is NULL", function);
    if (const int code =
            check_struct_size("step", step, step->struct_size, sizeof(fabricshm_cuda_step));
        code != FABRICSHM_OK) {
        return code;
    }
    if (!is_below(step->optimiser, kernels::kRuleCount)) {
        return refuse("%s: step->optimiser", function);
    }
    if (!is_step_type(step->gradient_dtype)) return refuse("%s: step->gradient_dtype", function);
    if (!is_step_type(step->publish_dtype)) return refuse("%s: step->publish_dtype", function);
    constexpr std::uint64_t kMaxTotal = std::uint64_t{1} << 48;
    return step->total <= kMaxTotal ? FABRICSHM_OK
                                    : refuse("%s: step->total is above 2^48", function);
}

gpu::DeviceStep translate(const fabricshm_cuda_step& given) {
    gpu::DeviceStep step;
    step.rule = static_cast<kernels::Rule>(given.optimiser);
    step.gradient_type = static_cast<kernels::DType>(given.gradient_dtype);
    step.publish_type = static_cast<kernels::DType>(given.publish_dtype);
    step.scale = given.scale;
    step.total = given.total;
    step.begin = given.begin;
    step.count = given.count;
    step.factors = given.factors;
    step.weights = given.weights;
    step.parameters = given.parameters;
    step.first = given.first;
    step.second = given.second;
    step.maximum = given.maximum;
    step.gradient = given.gradient;
    step.publish = given.publish;
    return step;
}

int check_cuda_options(const char* function, const fabricshm_cuda_options& options) {
    if (const int code = check_struct_size("options", &options, options.struct_size,
                                           sizeof(fabricshm_cuda_options));
        code != FABRICSHM_OK) {
        return code;
    }
    if (options.stage_bytes != 0 && options.stage_bytes < kMinStageBytes) {
        return refuse("%s: options->stage_bytes is below 4096", function);
    }
    return check_timeout(function, options.timeout_ms);
}

int take_seat(const char* function, fabricshm_group* group, const fabricshm_cuda_options* options,
              bool is_on_cpu) {
    return guarded(function, [&]() -> int {
        if (const int code = check_group(function, group); code != FABRICSHM_OK) return code;
        std::int64_t timeout_ms = FABRICSHM_TIMEOUT_DEFAULT;
        CudaSeatOptions wanted;
        wanted.is_on_cpu = is_on_cpu;
        if (options != nullptr) {
            if (const int code = check_cuda_options(function, *options); code != FABRICSHM_OK) {
                return code;
            }
            timeout_ms = options->timeout_ms;
            if (options->stage_bytes != 0) {
                wanted.stage_bytes = round_up(options->stage_bytes, kStageUnit);
            }
        }
        if (group->on_device != nullptr) {
            return fail(Error{Errc::kExists, 0, "join on a GPU"}, "group '%s'",
                        group->name.c_str());
        }
        wanted.timeout = timeout_of(group->arena->session(), timeout_ms);
        const TimePoint deadline = deadline_of(group->arena->session(), timeout_ms);
        auto taken = CudaSeat::take(group->arena, group->local(), wanted, deadline);
        if (!taken.ok()) return fail(taken.error(), "group '%s'", group->name.c_str());
        group->on_device = std::move(taken).value();
        return FABRICSHM_OK;
    });
}

}  // namespace

}  // namespace fabricshm

using namespace fabricshm;

extern "C" {

int fabricshm_cuda_available(void) {
    return guarded("fabricshm_cuda_available", [&]() -> int {
        const auto driver = gpu::Driver::find();
        if (!driver.ok()) return fail(driver.error(), "CUDA");
        if (gpu::embedded_kernels().reduce != nullptr) return FABRICSHM_OK;
        return fail(explain({Errc::kUnsupported, 0, "find kernels"},
                            "this library was built without nvcc and has no kernels"),
                    "CUDA");
    });
}

int fabricshm_cuda_attach(fabricshm_arena* arena, int device) {
    return guarded("fabricshm_cuda_attach", [&]() -> int {
        if (const int code = check_arena("fabricshm_cuda_attach", arena); code != 0) return code;
        const auto done = attach_to_device(*arena->arena, device, gpu::embedded_kernels());
        if (done.ok()) return FABRICSHM_OK;
        return fail(done.error(), "arena '%s'", arena->arena->name().c_str());
    });
}

int fabricshm_cuda_detach(fabricshm_arena* arena) {
    return guarded("fabricshm_cuda_detach", [&]() -> int {
        if (const int code = check_arena("fabricshm_cuda_detach", arena); code != 0) return code;
        const auto done = detach_from_device(*arena->arena);
        if (done.ok()) return FABRICSHM_OK;
        return fail(done.error(), "arena '%s'", arena->arena->name().c_str());
    });
}

int fabricshm_cuda_pointer(fabricshm_arena* arena, uint64_t offset, uint64_t bytes,
                           void** pointer) {
    return guarded("fabricshm_cuda_pointer", [&]() -> int {
        const char* function = "fabricshm_cuda_pointer";
        if (const int code = check_arena(function, arena); code != FABRICSHM_OK) return code;
        if (pointer == nullptr) return refuse("%s: pointer is NULL", function);
        if (!arena->arena->holds(offset, bytes)) {
            return refuse("%s: offset and bytes are not inside of the arena", function);
        }
        const auto found = arena_on_device(*arena->arena);
        if (!found.ok()) return fail(found.error(), "arena '%s'", arena->arena->name().c_str());
        *pointer = reinterpret_cast<void*>(found.value()->base() + offset);
        return FABRICSHM_OK;
    });
}

int fabricshm_cuda_join(fabricshm_group* group, const fabricshm_cuda_options* options) {
    return take_seat("fabricshm_cuda_join", group, options, false);
}

int fabricshm_cuda_join_cpu(fabricshm_group* group, const fabricshm_cuda_options* options) {
    return take_seat("fabricshm_cuda_join_cpu", group, options, true);
}

int fabricshm_cuda_leave(fabricshm_group* group) {
    return guarded("fabricshm_cuda_leave", [&]() -> int {
        const char* function = "fabricshm_cuda_leave";
        if (const int code = check_group(function, group); code != FABRICSHM_OK) return code;
        if (group->on_device == nullptr) {
            return fail(Error{Errc::kNotFound, 0, "leave a GPU"}, "group '%s'",
                        group->name.c_str());
        }
        return code_on_stream(
            function, *group,
            CudaSeat::leave(std::move(group->on_device), group->local(),
                            timeout_of(group->arena->session(), FABRICSHM_TIMEOUT_DEFAULT)));
    });
}

int fabricshm_cuda_export(fabricshm_group* group, void* pointer, uint64_t bytes, uint32_t* ranks) {
    return with_cuda_seat("fabricshm_cuda_export", group, [&](CudaSeat& seat) -> Result<void> {
        FABRIC_TRY(const std::uint32_t reached,
                   seat.export_memory(group->local(), pointer, bytes, usual_deadline(*group)));
        if (ranks != nullptr) *ranks = reached;
        return {};
    });
}

int fabricshm_cuda_unexport(fabricshm_group* group) {
    return with_cuda_seat("fabricshm_cuda_unexport", group, [&](CudaSeat& seat) {
        return seat.unexport(group->local(), usual_deadline(*group));
    });
}

int fabricshm_allreduce_on_stream(fabricshm_group* group, const void* input, void* output,
                                  uint64_t count, fabricshm_dtype dtype, fabricshm_op op,
                                  void* stream) {
    return run_on_stream("fabricshm_allreduce_on_stream", group,
                         {CollectiveKind::kAllReduce, input, output, count, dtype, op, 0, stream});
}

int fabricshm_reduce_scatter_on_stream(fabricshm_group* group, const void* input, void* output,
                                       uint64_t count, fabricshm_dtype dtype, fabricshm_op op,
                                       void* stream) {
    return run_on_stream(
        "fabricshm_reduce_scatter_on_stream", group,
        {CollectiveKind::kReduceScatter, input, output, count, dtype, op, 0, stream});
}

int fabricshm_all_gather_on_stream(fabricshm_group* group, const void* input, void* output,
                                   uint64_t count, fabricshm_dtype dtype, void* stream) {
    return run_on_stream(
        "fabricshm_all_gather_on_stream", group,
        {CollectiveKind::kAllGather, input, output, count, dtype, FABRICSHM_SUM, 0, stream});
}

int fabricshm_broadcast_on_stream(fabricshm_group* group, void* buffer, uint64_t count,
                                  fabricshm_dtype dtype, int root, void* stream) {
    return run_on_stream(
        "fabricshm_broadcast_on_stream", group,
        {CollectiveKind::kBroadcast, buffer, buffer, count, dtype, FABRICSHM_SUM, root, stream});
}

int fabricshm_barrier_on_stream(fabricshm_group* group, void* stream) {
    return run_on_stream(
        "fabricshm_barrier_on_stream", group,
        {CollectiveKind::kBarrier, nullptr, nullptr, 0, FABRICSHM_U8, FABRICSHM_SUM, 0, stream});
}

int fabricshm_cuda_factors(fabricshm_optimiser optimiser, const fabricshm_hyper* hyper,
                           uint64_t step, void* factors) {
    const char* function = "fabricshm_cuda_factors";
    if (hyper == nullptr) return refuse("%s: hyper is NULL", function);
    if (factors == nullptr) return refuse("%s: factors is NULL", function);
    if (!is_below(optimiser, kernels::kRuleCount)) return refuse("%s: optimiser", function);
    if (step == 0) return refuse("%s: step is 0", function);
    const auto rule = static_cast<kernels::Rule>(optimiser);
    const kernels::Hyper chosen = cuda_hyper_of(*hyper);
    if (const char* field = kernels::unusable_field(rule, chosen); field != nullptr) {
        return refuse("%s: hyper->%s", function, field);
    }
    const kernels::StepFactors made = kernels::make_step_factors(rule, chosen, step);
    std::memset(factors, 0, FABRICSHM_CUDA_FACTORS_BYTES);
    std::memcpy(factors, &made, sizeof made);
    return FABRICSHM_OK;
}

int fabricshm_step_on_stream(fabricshm_group* group, const fabricshm_cuda_step* step,
                             void* stream) {
    const char* function = "fabricshm_step_on_stream";
    if (const int code = check_cuda_step(function, step); code != FABRICSHM_OK) return code;
    return with_device(function, group, [&](gpu::DeviceGroup& device) {
        return device.step(translate(*step), stream);
    });
}

int fabricshm_cuda_status(fabricshm_group* group) {
    return with_device("fabricshm_cuda_status", group,
                       [](gpu::DeviceGroup& device) { return device.status(); });
}

int fabricshm_cuda_wait(fabricshm_group* group, void* stream, int64_t timeout_ms) {
    const char* function = "fabricshm_cuda_wait";
    if (const int code = check_timeout(function, timeout_ms); code != FABRICSHM_OK) return code;
    return with_device(function, group, [&](gpu::DeviceGroup& device) {
        return device.wait(stream, deadline_of(group->arena->session(), timeout_ms));
    });
}

int fabricshm_cuda_abort(fabricshm_group* group) {
    return with_device("fabricshm_cuda_abort", group, [&](gpu::DeviceGroup& device) {
        device.abort(group->rank());
        return Result<void>();
    });
}

}  // extern "C"
