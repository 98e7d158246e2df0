// The C ABI: collectives. A translation of fabricshm_call into Call, and of results into codes.

#include <cstddef>
#include <utility>

#include "libfabricshm/client/c_error.hpp"
#include "libfabricshm/client/handles.hpp"

namespace fabricshm {

namespace {

// The rows of the tables against the values of fabricshm.h.
#define FABRIC_IS_ITS_VALUE(name, value, c_value, ...) static_assert((c_value) == (value));
FABRIC_KINDS(FABRIC_IS_ITS_VALUE)
FABRIC_DTYPES(FABRIC_IS_ITS_VALUE)
FABRIC_REDUCE_OPS(FABRIC_IS_ITS_VALUE)
#undef FABRIC_IS_ITS_VALUE
static_assert(sizeof(fabricshm_f64_int) == kernels::size_of(kernels::DType::kF64Loc));
static_assert(sizeof(fabricshm_f32_int) == kernels::size_of(kernels::DType::kF32Loc));
static_assert(sizeof(fabricshm_i32_int) == kernels::size_of(kernels::DType::kI32Loc));
static_assert(sizeof(fabricshm_i64_int) == kernels::size_of(kernels::DType::kI64Loc));
static_assert(offsetof(fabricshm_f64_int, index) == 8 && offsetof(fabricshm_i64_int, index) == 8);

// What a caller knew that was built before there were flags.
constexpr std::size_t kCallBeforeFlags = offsetof(fabricshm_call, flags);

// Values that have no place in the enumerations of Call; everything else Group checks itself.
int check_enums(const char* function, const fabricshm_call& call) {
    if (!in_range(call.kind, kKindCount - 1)) return refuse("%s: call->kind", function);
    if (!in_range(call.dtype, kernels::kDTypeCount - 1)) return refuse("%s: call->dtype", function);
    const bool reduces = row_of(static_cast<Kind>(call.kind)).reduces;
    if (reduces && !in_range(call.op, kernels::kReduceOpCount - 1))
        return refuse("%s: call->op", function);
    if (!in_range(call.algorithm, FABRICSHM_HOST)) return refuse("%s: call->algorithm", function);
    if (!in_range(call.trigger, FABRICSHM_SYNC)) return refuse("%s: call->trigger", function);
    return check_timeout(function, call.timeout_ms);
}

// On the data path: nothing here allocates or locks unless it refuses.
int check(const char* function, const fabricshm_group* group, const fabricshm_call* call) {
    if (group == nullptr) return refuse("%s: group is NULL", function);
    if (call == nullptr) return refuse("%s: call is NULL", function);
    if (group->arena->session().is_foreign()) {
        return fail({Errc::kClosed, 0, ""}, "group '%s'", group->name.c_str());
    }
    // Compared before it is called: in nearly all programs the sizes are equal.
    if (call->struct_size != sizeof(fabricshm_call) && call->struct_size != kCallBeforeFlags) {
        if (const int code =
                check_struct_size("call", call, call->struct_size, sizeof(fabricshm_call));
            code != FABRICSHM_OK) {
            return code;
        }
    }
    if (call->struct_size > kCallBeforeFlags && call->reserved != 0) {
        return refuse("%s: call->reserved is not 0", function);
    }
    return check_enums(function, *call);
}

// 0, or the refusal of a request that is not this process's: waiting for it would never end.
int check(const char* function, const fabricshm_request* request) {
    if (request == nullptr) return refuse("%s: request is NULL", function);
    if (request->generation == fork_guard::generation()) return FABRICSHM_OK;
    return fail({Errc::kClosed, 0, ""}, "%s", request->what.c_str());
}

// The enumerators have the same values on both sides; check_enums() has seen to their range.
Call translate(const fabricshm_group& group, const fabricshm_call& given) {
    Call call;
    call.kind = static_cast<Kind>(given.kind);
    call.dtype = static_cast<kernels::DType>(given.dtype);
    // Of other kinds it may be any number: it is ignored.
    if (row_of(call.kind).reduces) call.op = static_cast<kernels::ReduceOp>(given.op);
    call.algorithm = static_cast<Algorithm>(given.algorithm);
    call.trigger = static_cast<Trigger>(given.trigger);
    call.root = given.root;
    call.peer = given.peer;
    call.tag = given.tag;
    call.input = static_cast<const std::byte*>(given.input);
    call.output = static_cast<std::byte*>(given.output);
    call.count = given.count;
    const int world = group.world();
    // Copied, since a started operation outlives the caller's arrays.
    if (given.counts != nullptr) call.counts.assign(given.counts, given.counts + world);
    if (given.recv_counts != nullptr) {
        call.recv_counts.assign(given.recv_counts, given.recv_counts + world);
    }
    call.timeout = timeout_of(group.arena->session(), given.timeout_ms);
    call.deadline = deadline_from_now(call.timeout);
    if (given.struct_size > kCallBeforeFlags) call.flags = given.flags;
    return call;
}

// Whether the group keeps a call that differs from this one in nothing but buffers. Then nothing of
// it has to be checked and translated again.
bool repeats(const fabricshm_group& group, const fabricshm_call& call) noexcept {
    static_assert(sizeof(fabricshm_call) == 96, "a new member is compared here, too");
    const fabricshm_call& last = group.last;
    return last.struct_size == call.struct_size && last.kind == call.kind &&
           last.dtype == call.dtype && last.op == call.op && last.algorithm == call.algorithm &&
           last.trigger == call.trigger && last.root == call.root && last.count == call.count &&
           last.timeout_ms == call.timeout_ms && last.flags == call.flags &&
           last.reserved == call.reserved && call.counts == nullptr &&
           call.recv_counts == nullptr && group.last_number != 0 && group.hosts == nullptr &&
           group.last_number == group.group->kept() && !group.arena->session().is_foreign();
}

// After a call that went well.
void remember(fabricshm_group& group, const fabricshm_call& call) noexcept {
    // A message does not take the place of the last collective, and a timeout of 0 is no timeout
    // that repeat() takes.
    if (call.kind == FABRICSHM_SEND || call.kind == FABRICSHM_RECV || call.timeout_ms == 0) return;
    if (group.hosts != nullptr) return;
    // A caller that knows fewer members is not read behind them; repeats() compares the size first.
    if (call.struct_size != sizeof call) return;
    group.last_number = group.group->kept();
    if (group.last_number == 0) return;
    group.last = call;
    group.last_timeout = timeout_of(group.arena->session(), call.timeout_ms);
}

int code_of(const Result<void>& result, const std::string& what) {
    return result.ok() ? FABRICSHM_OK : fail(result.error(), "%s", what.c_str());
}

std::string name_of(const fabricshm_group& group, const fabricshm_call& call) {
    return std::string(row_of(static_cast<Kind>(call.kind)).name) + " in group '" + group.name +
           "'";
}

}  // namespace

}  // namespace fabricshm

using namespace fabricshm;

extern "C" {

size_t fabricshm_dtype_size(fabricshm_dtype dtype) {
    return in_range(dtype, kernels::kDTypeCount - 1)
               ? kernels::size_of(static_cast<kernels::DType>(dtype))
               : 0;
}

int fabricshm_run(fabricshm_group* group, const fabricshm_call* call) {
    return guarded("fabricshm_run", [&]() -> int {
        if (group != nullptr && call != nullptr && repeats(*group, *call)) {
            const Result<void> result =
                group->group->repeat(static_cast<const std::byte*>(call->input),
                                     static_cast<std::byte*>(call->output), group->last_timeout);
            return result.ok() ? FABRICSHM_OK : code_of(result, name_of(*group, *call));
        }
        if (const int code = check("fabricshm_run", group, call); code != FABRICSHM_OK) return code;
        const Result<void> result = group->hosts != nullptr
                                        ? group->hosts->run(translate(*group, *call))
                                        : group->group->run(translate(*group, *call));
        // The text is made on failure only: this is the data path.
        if (!result.ok()) return code_of(result, name_of(*group, *call));
        remember(*group, *call);
        return FABRICSHM_OK;
    });
}

int fabricshm_start(fabricshm_group* group, const fabricshm_call* call,
                    fabricshm_request** request) {
    return guarded("fabricshm_start", [&]() -> int {
        if (request == nullptr) return refuse("fabricshm_start: request is NULL");
        if (const int code = check("fabricshm_start", group, call); code != FABRICSHM_OK) {
            return code;
        }
        auto handle = std::make_unique<fabricshm_request>();
        // Made now, since the group may be left before the text is asked for.
        handle->what = name_of(*group, *call);
        auto started = group->hosts != nullptr ? group->hosts->start(translate(*group, *call))
                                               : group->group->start(translate(*group, *call));
        if (!started.ok()) return fail(started.error(), "%s", handle->what.c_str());
        handle->request = std::move(started).value();
        *request = handle.release();
        return FABRICSHM_OK;
    });
}

int fabricshm_test(fabricshm_request* request) {
    return guarded("fabricshm_test", [&]() -> int {
        if (const int refused = check("fabricshm_test", request); refused != 0) return refused;
        if (!request->request->done()) return 0;
        // Complete, so this only fetches the result and does not wait.
        const int code = code_of(request->request->wait(), request->what);
        return code == FABRICSHM_OK ? 1 : code;
    });
}

int fabricshm_wait(fabricshm_request* request) {
    return guarded("fabricshm_wait", [&]() -> int {
        // One of the parent's is not freed: a thread that is not here may have held its lock.
        if (const int refused = check("fabricshm_wait", request); refused != 0) return refused;
        // Freed in any case: the caller has no use for a request that failed either.
        const std::unique_ptr<fabricshm_request> owned(request);
        return code_of(owned->request->wait(), owned->what);
    });
}

int fabricshm_request_peer(const fabricshm_request* request) {
    if (request == nullptr) return refuse("fabricshm_request_peer: request is NULL");
    return request->request->peer();
}

int fabricshm_on_complete(fabricshm_request* request, void (*done)(void* context, int result),
                          void* context) {
    return guarded("fabricshm_on_complete", [&]() -> int {
        if (const int refused = check("fabricshm_on_complete", request); refused != 0) {
            return refused;
        }
        if (done == nullptr) return refuse("fabricshm_on_complete: done is NULL");
        // Not `this` request's text: the callback may free it before it reads the text.
        const std::shared_ptr<Request> held = request->request;
        held->on_complete([done, context, what = request->what](const Result<void>& result) {
            done(context, code_of(result, what));
        });
        return FABRICSHM_OK;
    });
}

}  // extern "C"
