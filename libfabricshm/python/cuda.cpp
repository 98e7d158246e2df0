#include "libfabricshm/python/cuda.hpp"

#include <mutex>
#include <utility>

#include "libfabricshm/python/errors.hpp"

namespace py = pybind11;

namespace fabricshm::python {
namespace {

template <typename Value = void>
Value* at(std::uintptr_t address) {
    return reinterpret_cast<Value*>(address);
}

}  // namespace

CudaGroup::CudaGroup(const Group& group, int device, std::uint64_t stage_bytes,
                     std::int64_t timeout_ms)
    : group_(group.handle()) {
    fabricshm_cuda_options options{};
    options.struct_size = sizeof options;
    options.stage_bytes = stage_bytes;
    options.timeout_ms = timeout_ms;
    const auto join = [&] {
        return without_lock([&] {
            std::lock_guard one_at_a_time(group_->calling);
            return fabricshm_cuda_join(group_->group, &options);
        });
    };
    const int attached =
        without_lock([&] { return fabricshm_cuda_attach(group_->arena->arena, device); });
    try {
        if (attached != FABRICSHM_EEXIST) check(attached);
    } catch (const py::error_already_set&) {
        (void)join();  // which fails on all ranks then, so that none waits for this one
        throw;
    }
    check(join());
}

py::bytes CudaGroup::factors(int optimiser, const fabricshm_hyper& hyper, std::uint64_t step) {
    char made[FABRICSHM_CUDA_FACTORS_BYTES] = {};
    check(fabricshm_cuda_factors(static_cast<fabricshm_optimiser>(optimiser), &hyper, step, made));
    return py::bytes(made, sizeof made);
}

const std::shared_ptr<GroupHandle>& CudaGroup::open() const {
    if (!group_) raise_closed("group on a device");
    return group_;
}

void CudaGroup::step(const Step& step, std::uintptr_t stream) const {
    fabricshm_cuda_step wanted{};
    wanted.struct_size = sizeof wanted;
    wanted.optimiser = static_cast<fabricshm_optimiser>(step.optimiser);
    wanted.gradient_dtype = static_cast<fabricshm_dtype>(step.gradient_dtype);
    wanted.publish_dtype = static_cast<fabricshm_dtype>(step.publish_dtype);
    wanted.scale = step.scale;
    wanted.total = step.total;
    wanted.begin = step.begin;
    wanted.count = step.count;
    wanted.factors = at(step.factors);
    wanted.parameters = at<float>(step.parameters);
    wanted.first = at<float>(step.first);
    wanted.second = at<float>(step.second);
    wanted.maximum = at<float>(step.maximum);
    wanted.gradient = at(step.gradient);
    wanted.publish = at(step.publish);
    check(fabricshm_step_on_stream(open()->group, &wanted, at(stream)));
}

void CudaGroup::all_gather(std::uintptr_t input, std::uintptr_t output, std::uint64_t count,
                           int dtype, std::uintptr_t stream) const {
    check(fabricshm_all_gather_on_stream(open()->group, at(input), at(output), count,
                                         static_cast<fabricshm_dtype>(dtype), at(stream)));
}

void CudaGroup::broadcast(std::uintptr_t buffer, std::uint64_t count, int dtype, int root,
                          std::uintptr_t stream) const {
    check(fabricshm_broadcast_on_stream(open()->group, at(buffer), count,
                                        static_cast<fabricshm_dtype>(dtype), root, at(stream)));
}

void CudaGroup::status() const {
    check(fabricshm_cuda_status(open()->group));
}

void CudaGroup::wait(std::uintptr_t stream, std::int64_t timeout_ms) const {
    const std::shared_ptr<GroupHandle> group = open();
    check(without_lock([&] { return fabricshm_cuda_wait(group->group, at(stream), timeout_ms); }));
}

void CudaGroup::leave() {
    const std::shared_ptr<GroupHandle> group = std::exchange(group_, nullptr);
    if (!group) return;
    check(without_lock([&] {
        std::lock_guard one_at_a_time(group->calling);
        return fabricshm_cuda_leave(group->group);
    }));
}

}  // namespace fabricshm::python
