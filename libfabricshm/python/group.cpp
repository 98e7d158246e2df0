#include "libfabricshm/python/group.hpp"

#include <mutex>
#include <utility>

#include "libfabricshm/python/arrays.hpp"
#include "libfabricshm/python/errors.hpp"
#include "libfabricshm/python/request.hpp"

namespace fabricshm::python {
namespace {

// These have no order with collectives.
bool is_point_to_point(const CallArguments& arguments) {
    return arguments.kind == FABRICSHM_SEND || arguments.kind == FABRICSHM_RECV;
}

}  // namespace

fabricshm_call CallArguments::to_call() const {
    fabricshm_call call{};
    call.struct_size = sizeof(call);
    call.kind = static_cast<fabricshm_kind>(kind);
    call.dtype = static_cast<fabricshm_dtype>(dtype);
    call.op = static_cast<fabricshm_op>(op);
    call.algorithm = static_cast<fabricshm_algorithm>(algorithm);
    call.trigger = static_cast<fabricshm_trigger>(trigger);
    call.root = root;
    call.peer = peer;
    call.tag = tag;
    call.input = readable(input);
    call.output = writable(output);
    call.count = count;
    call.counts = counts ? counts->data() : nullptr;
    call.recv_counts = recv_counts ? recv_counts->data() : nullptr;
    call.timeout_ms = timeout_ms;
    call.flags = flags;
    return call;
}

const std::shared_ptr<GroupHandle>& Group::open() const {
    if (left()) raise_closed("group");
    return handle_;
}

void Group::run(const CallArguments& arguments) const {
    // A reference of its own: leave() on another thread must not free the group under the call.
    const std::shared_ptr<GroupHandle> handle = open();
    const fabricshm_call call = arguments.to_call();
    check(without_lock([&] {
        // A receive may wait for long: it must not hold up collectives of other threads.
        if (is_point_to_point(arguments)) return fabricshm_run(handle->group, &call);
        // Taken after the interpreter's lock was given up, or two threads would wait for each
        // other.
        std::lock_guard one_at_a_time(handle->calling);
        return fabricshm_run(handle->group, &call);
    }));
}

std::shared_ptr<Request> Group::start(const CallArguments& arguments) const {
    // A good place for it: it is often, and with the interpreter's lock.
    Request::drop_finished();
    const std::shared_ptr<GroupHandle> handle = open();
    const fabricshm_call call = arguments.to_call();
    fabricshm_request* request = nullptr;
    check(without_lock([&] {
        std::lock_guard one_at_a_time(handle->calling);
        return fabricshm_start(handle->group, &call, &request);
    }));
    return std::make_shared<Request>(handle, request, arguments.kind == FABRICSHM_RECV,
                                     arguments.input, arguments.output);
}

fabricshm_symmetric_report Group::run_symmetric(const SymmetricArguments& arguments) const {
    const std::shared_ptr<GroupHandle> handle = open();
    fabricshm_symmetric_call call =
        fabricshm_symmetric_make(static_cast<fabricshm_symmetric_method>(arguments.method),
                                 static_cast<fabricshm_dtype>(arguments.dtype), arguments.n,
                                 readable(arguments.input), writable(arguments.output));
    call.algorithm = static_cast<fabricshm_algorithm>(arguments.algorithm);
    call.max_error = arguments.max_error;
    call.timeout_ms = arguments.timeout_ms;
    fabricshm_symmetric_report report{};
    report.struct_size = sizeof report;
    check(without_lock([&] {
        std::lock_guard one_at_a_time(handle->calling);
        return fabricshm_allreduce_symmetric(handle->group, &call, &report);
    }));
    return report;
}

std::shared_ptr<Group> Group::shrink(std::int64_t timeout_ms) const {
    const std::shared_ptr<GroupHandle> handle = open();
    fabricshm_group* survivors = nullptr;
    check(without_lock(
        [&] { return fabricshm_group_shrink(handle->group, timeout_ms, &survivors); }));
    // The old group is broken for good and still to be left; both live in the same arena.
    return std::make_shared<Group>(std::make_shared<GroupHandle>(handle->arena, survivors));
}

void Group::quiesce(std::int64_t timeout_ms) const {
    const std::shared_ptr<GroupHandle> handle = open();
    check(without_lock([&] { return fabricshm_group_quiesce(handle->group, timeout_ms); }));
}

// Without the interpreter's lock: leaving waits for what was started.
void Group::leave() {
    without_lock([gone = std::move(handle_)]() mutable { gone.reset(); });
}

}  // namespace fabricshm::python
