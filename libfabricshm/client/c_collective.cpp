// The C ABI: collectives. A translation of fabricshm_call into Call, and of results into codes.

#include <utility>

#include "libfabricshm/client/c_error.hpp"
#include "libfabricshm/client/handles.hpp"

namespace fabricshm {

namespace {

constexpr const char* kKindNames[] = {"allreduce", "reduce_scatter", "all_gather", "broadcast",
                                      "reduce",    "gather",         "scatter",    "all_to_all",
                                      "barrier",   "send",           "recv"};

bool in_range(int value, int last) noexcept {
    return value >= 0 && value <= last;
}

// Values that have no place in the enumerations of Call; everything else Group checks itself.
int check_enums(const char* function, const fabricshm_call& call) {
    if (!in_range(call.kind, FABRICSHM_RECV)) return refuse("%s: call->kind", function);
    if (!in_range(call.dtype, FABRICSHM_U64)) return refuse("%s: call->dtype", function);
    if (!in_range(call.op, FABRICSHM_BXOR)) return refuse("%s: call->op", function);
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
    if (call->struct_size != sizeof(fabricshm_call)) {
        if (const int code =
                check_struct_size("call", call, call->struct_size, sizeof(fabricshm_call));
            code != FABRICSHM_OK) {
            return code;
        }
    }
    return check_enums(function, *call);
}

// The enumerators have the same values on both sides; check_enums() has seen to their range.
Call translate(const fabricshm_group& group, const fabricshm_call& given) {
    Call call;
    call.kind = static_cast<Kind>(given.kind);
    call.dtype = static_cast<kernels::DType>(given.dtype);
    call.op = static_cast<kernels::ReduceOp>(given.op);
    call.algorithm = static_cast<Algorithm>(given.algorithm);
    call.trigger = static_cast<Trigger>(given.trigger);
    call.root = given.root;
    call.peer = given.peer;
    call.tag = given.tag;
    call.input = static_cast<const std::byte*>(given.input);
    call.output = static_cast<std::byte*>(given.output);
    call.count = given.count;
    const int world = group.group->world();
    // Copied, since a started operation outlives the caller's arrays.
    if (given.counts != nullptr) call.counts.assign(given.counts, given.counts + world);
    if (given.recv_counts != nullptr) {
        call.recv_counts.assign(given.recv_counts, given.recv_counts + world);
    }
    call.deadline = deadline_of(group.arena->session(), given.timeout_ms);
    return call;
}

int code_of(const Result<void>& result, const std::string& what) {
    return result.ok() ? FABRICSHM_OK : fail(result.error(), "%s", what.c_str());
}

std::string name_of(const fabricshm_group& group, const fabricshm_call& call) {
    return std::string(kKindNames[call.kind]) + " in group '" + group.name + "'";
}

}  // namespace

}  // namespace fabricshm

using namespace fabricshm;

extern "C" {

size_t fabricshm_dtype_size(fabricshm_dtype dtype) {
    return in_range(dtype, FABRICSHM_U64) ? kernels::size_of(static_cast<kernels::DType>(dtype))
                                          : 0;
}

int fabricshm_run(fabricshm_group* group, const fabricshm_call* call) {
    return guarded("fabricshm_run", [&]() -> int {
        if (const int code = check("fabricshm_run", group, call); code != FABRICSHM_OK) return code;
        const Result<void> result = group->group->run(translate(*group, *call));
        // The text is made on failure only: this is the data path.
        return result.ok() ? FABRICSHM_OK : code_of(result, name_of(*group, *call));
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
        // Made now, since the group may be left before somebody asks.
        handle->what = name_of(*group, *call);
        auto started = group->group->start(translate(*group, *call));
        if (!started.ok()) return fail(started.error(), "%s", handle->what.c_str());
        handle->request = std::move(started).value();
        *request = handle.release();
        return FABRICSHM_OK;
    });
}

int fabricshm_test(fabricshm_request* request) {
    return guarded("fabricshm_test", [&]() -> int {
        if (request == nullptr) return refuse("fabricshm_test: request is NULL");
        if (!request->request->done()) return 0;
        // Complete, so this only fetches the result and does not wait.
        const int code = code_of(request->request->wait(), request->what);
        return code == FABRICSHM_OK ? 1 : code;
    });
}

int fabricshm_wait(fabricshm_request* request) {
    return guarded("fabricshm_wait", [&]() -> int {
        if (request == nullptr) return refuse("fabricshm_wait: request is NULL");
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
        if (request == nullptr) return refuse("fabricshm_on_complete: request is NULL");
        if (done == nullptr) return refuse("fabricshm_on_complete: done is NULL");
        // Not `this` request's text: the callback may free it before it looks.
        const std::shared_ptr<Request> held = request->request;
        held->on_complete([done, context, what = request->what](const Result<void>& result) {
            done(context, code_of(result, what));
        });
        return FABRICSHM_OK;
    });
}

}  // extern "C"
