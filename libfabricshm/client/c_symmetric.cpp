// The C ABI: symmetric matrices.

#include "libfabricshm/client/c_error.hpp"
#include "libfabricshm/client/handles.hpp"
#include "libfabricshm/collective/symmetric.hpp"
#include "libfabricshm/include/fabricshm/symmetric.h"

namespace fabricshm {

namespace {

constexpr const char* kFunction = "fabricshm_allreduce_symmetric";

static_assert(FABRICSHM_PACKED == static_cast<int>(SymmetricMethod::kPacked));
static_assert(FABRICSHM_CHOLESKY == static_cast<int>(SymmetricMethod::kCholesky));
static_assert(static_cast<int>(FABRICSHM_OBSTACLE_NOT_DEFINITE) ==
              static_cast<int>(CholeskyObstacle::kNotDefinite));
static_assert(static_cast<int>(FABRICSHM_OBSTACLE_INACCURATE) ==
              static_cast<int>(CholeskyObstacle::kInaccurate));
static_assert(static_cast<int>(FABRICSHM_OBSTACLE_NOT_FINITE) ==
              static_cast<int>(CholeskyObstacle::kNotFinite));
static_assert(static_cast<int>(FABRICSHM_OBSTACLE_NO_MEMORY) ==
              static_cast<int>(CholeskyObstacle::kNoMemory));
static_assert(static_cast<int>(FABRICSHM_OBSTACLE_NO_LIBRARY) ==
              static_cast<int>(CholeskyObstacle::kNoLibrary));
static_assert(FABRICSHM_OBSTACLE_NO_LIBRARY == kCholeskyObstacleCount - 1);

// What has no place in the types of a SymmetricCall; the rest SymmetricReduce checks itself.
int check(const fabricshm_group* group, const fabricshm_symmetric_call* call,
          const fabricshm_symmetric_report* report) {
    if (group == nullptr) return refuse("%s: group is NULL", kFunction);
    if (call == nullptr) return refuse("%s: call is NULL", kFunction);
    if (group->arena->session().is_foreign()) {
        return fail({Errc::kClosed, 0, ""}, "group '%s'", group->name.c_str());
    }
    if (const int code = check_one_pool(kFunction, *group); code != 0) return code;
    if (const int code =
            check_struct_size("call", call, call->struct_size, sizeof(fabricshm_symmetric_call));
        code != FABRICSHM_OK) {
        return code;
    }
    if (!in_range(call->method, FABRICSHM_CHOLESKY)) return refuse("%s: call->method", kFunction);
    if (!in_range(call->dtype, kernels::kDTypeCount - 1)) {
        return refuse("%s: call->dtype", kFunction);
    }
    if (!in_range(call->algorithm, FABRICSHM_HOST)) {
        return refuse("%s: call->algorithm", kFunction);
    }
    if (call->reserved != 0) return refuse("%s: call->reserved is not 0", kFunction);
    if (report != nullptr && report->struct_size < sizeof(fabricshm_symmetric_report)) {
        return refuse("%s: report->struct_size is %zu, not %zu", kFunction, report->struct_size,
                      sizeof(fabricshm_symmetric_report));
    }
    return check_timeout(kFunction, call->timeout_ms);
}

SymmetricCall translate(const fabricshm_group& group, const fabricshm_symmetric_call& given) {
    SymmetricCall call;
    call.method = static_cast<SymmetricMethod>(given.method);
    call.dtype = static_cast<kernels::DType>(given.dtype);
    call.algorithm = static_cast<Algorithm>(given.algorithm);
    call.n = given.n;
    call.input = static_cast<const std::byte*>(given.input);
    call.output = static_cast<std::byte*>(given.output);
    call.max_error = given.max_error;
    call.deadline = deadline_of(group.arena->session(), given.timeout_ms);
    return call;
}

SymmetricReduce& reducer_of(fabricshm_group& group, bool needs_lapack) {
    if (group.symmetric == nullptr) {
        ArenaMemory memory;
        memory.allocate = [arena = group.arena](Bytes bytes) -> std::byte* {
            const auto block = arena->heap().allocate(bytes);
            return block.ok() ? block.value() : nullptr;
        };
        memory.release = [arena = group.arena](std::byte* block) { arena->heap().release(block); };
        group.symmetric = std::make_unique<SymmetricReduce>(*group.group, std::move(memory));
    }
    // Not before: the library starts threads.
    if (needs_lapack) group.symmetric->set_lapack(Lapack::find());
    return *group.symmetric;
}

void fill(const SymmetricReport& from, fabricshm_symmetric_report& to) noexcept {
    to.method = static_cast<fabricshm_symmetric_method>(from.method);
    to.obstacle = static_cast<fabricshm_symmetric_obstacle>(from.obstacle);
    to.jitter = from.jitter;
    to.error = from.error;
    to.sent_bytes = from.sent_bytes;
    to.fallbacks = from.fallbacks;
}

}  // namespace

}  // namespace fabricshm

using namespace fabricshm;

extern "C" {

int fabricshm_allreduce_symmetric(fabricshm_group* group, const fabricshm_symmetric_call* call,
                                  fabricshm_symmetric_report* report) {
    return guarded(kFunction, [&]() -> int {
        if (const int code = check(group, call, report); code != FABRICSHM_OK) return code;
        SymmetricReduce& reducer = reducer_of(*group, call->method == FABRICSHM_CHOLESKY);
        const auto done = reducer.run(translate(*group, *call));
        if (!done.ok()) {
            return fail(done.error(), "allreduce_symmetric in group '%s'", group->name.c_str());
        }
        if (report != nullptr) fill(done.value(), *report);
        return FABRICSHM_OK;
    });
}

}  // extern "C"
