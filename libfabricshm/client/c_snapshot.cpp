// The C ABI: snapshots of parameter sets.

#include <cstring>

#include "libfabricshm/client/c_error.hpp"
#include "libfabricshm/client/parameters_handle.hpp"

namespace fabricshm {

namespace {

int check_call(const char* function, const fabricshm_snapshot_call* call) {
    if (call == nullptr) return refuse("%s: call is NULL", function);
    if (const int code =
            check_struct_size("call", call, call->struct_size, sizeof(fabricshm_snapshot_call));
        code != FABRICSHM_OK) {
        return code;
    }
    if (call->directory == nullptr || *call->directory == '\0') {
        return refuse("%s: call->directory is NULL or empty", function);
    }
    if (call->plain_writes > 1) return refuse("%s: call->plain_writes is not 0 or 1", function);
    return check_timeout(function, call->timeout_ms);
}

std::uint32_t bits_of(const DiskPath& path) noexcept {
    return (path.uring ? FABRICSHM_SNAPSHOT_URING : 0) |
           (path.uring && path.registered ? FABRICSHM_SNAPSHOT_REGISTERED : 0) |
           (path.direct ? FABRICSHM_SNAPSHOT_DIRECT : 0);
}

}  // namespace

}  // namespace fabricshm

using namespace fabricshm;

extern "C" {

int fabricshm_parameters_snapshot_begin(fabricshm_parameters* set,
                                        const fabricshm_snapshot_call* call) {
    const char* function = "fabricshm_parameters_snapshot_begin";
    return guarded(function, [&]() -> int {
        if (const int code = check_set(function, set); code != 0) return code;
        if (const int code = check_call(function, call); code != 0) return code;
        if (set->set == nullptr) return fail_set({Errc::kClosed, 0, "its group was left"}, *set);
        SnapshotCall wanted;
        wanted.directory = call->directory;
        wanted.keep = call->keep;
        if (call->file_bytes != 0) wanted.file_bytes = call->file_bytes;
        wanted.uring = call->plain_writes == 0;
        const auto begun =
            set->snapshots->begin(wanted, deadline_of(set->arena->session(), call->timeout_ms));
        return begun.ok() ? FABRICSHM_OK : fail_set(begun.error(), *set);
    });
}

int fabricshm_parameters_snapshot_wait(fabricshm_parameters* set, int64_t timeout_ms,
                                       fabricshm_snapshot_report* report) {
    const char* function = "fabricshm_parameters_snapshot_wait";
    return guarded(function, [&]() -> int {
        if (const int code = check_set(function, set); code != 0) return code;
        if (const int code = check_timeout(function, timeout_ms); code != 0) return code;
        if (report != nullptr && report->struct_size < sizeof(fabricshm_snapshot_report)) {
            return refuse("%s: report->struct_size is %zu, not %zu", function, report->struct_size,
                          sizeof(fabricshm_snapshot_report));
        }
        if (set->set == nullptr) return fail_set({Errc::kClosed, 0, "its group was left"}, *set);
        const auto waited = set->snapshots->wait(deadline_of(set->arena->session(), timeout_ms));
        if (!waited.ok()) return fail_set(waited.error(), *set);
        if (report == nullptr) return FABRICSHM_OK;
        const std::size_t size = report->struct_size;
        std::memset(report, 0, sizeof *report);
        report->struct_size = size;
        report->step = waited->step;
        report->bytes = waited->bytes;
        report->staged_ns = waited->staged / std::chrono::nanoseconds(1);
        report->total_ns = waited->total / std::chrono::nanoseconds(1);
        report->path = bits_of(waited->path);
        return FABRICSHM_OK;
    });
}

int fabricshm_parameters_snapshot_over(fabricshm_parameters* set) {
    if (set == nullptr || set->snapshots == nullptr) return 1;
    if (set->arena->session().is_foreign()) return 1;
    return set->snapshots->is_over() ? 1 : 0;
}

int fabricshm_parameters_restore(fabricshm_parameters* set, const char* path, int64_t timeout_ms,
                                 uint64_t* step) {
    const char* function = "fabricshm_parameters_restore";
    return guarded(function, [&]() -> int {
        if (const int code = check_set(function, set); code != 0) return code;
        if (path == nullptr) return refuse("%s: path is NULL", function);
        if (const int code = check_timeout(function, timeout_ms); code != 0) return code;
        if (set->set == nullptr) return fail_set({Errc::kClosed, 0, "its group was left"}, *set);
        const auto restored =
            set->snapshots->restore(path, deadline_of(set->arena->session(), timeout_ms));
        if (!restored.ok()) return fail_set(restored.error(), *set);
        if (step != nullptr) *step = *restored;
        return FABRICSHM_OK;
    });
}

int fabricshm_snapshot_latest(const char* directory, char* path, size_t bytes) {
    const char* function = "fabricshm_snapshot_latest";
    return guarded(function, [&]() -> int {
        if (directory == nullptr) return refuse("%s: directory is NULL", function);
        if (path == nullptr) return refuse("%s: path is NULL", function);
        const auto latest = SnapshotDirectory(directory).latest();
        if (!latest.ok()) return fail(latest.error(), "snapshots in '%s'", directory);
        if (latest->path.size() >= bytes) {
            return refuse("%s: path has %zu bytes, %zu are needed", function, bytes,
                          latest->path.size() + 1);
        }
        std::memcpy(path, latest->path.c_str(), latest->path.size() + 1);
        return FABRICSHM_OK;
    });
}

}  // extern "C"
