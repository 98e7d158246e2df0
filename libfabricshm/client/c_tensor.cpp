// The C ABI: named tensors.

#include <algorithm>
#include <cstring>

#include "libfabricshm/client/c_error.hpp"
#include "libfabricshm/client/handles.hpp"
#include "libfabricshm/client/tensor.hpp"
#include "libfabricshm/os/poison.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricshm {

namespace {

// The caller gets a copy of everything and no handle: there is nothing to close.
void describe_tensor(const TensorView& view, fabricshm_tensor* tensor) {
    std::memset(tensor, 0, sizeof *tensor);
    tensor->data = view.data;
    tensor->bytes = view.bytes;
    tensor->region_id = view.region_id;
    tensor->dtype = static_cast<fabricshm_dtype>(view.dtype);
    tensor->ndim = static_cast<std::int32_t>(view.ndim);
    std::copy(view.shape.begin(), view.shape.end(), tensor->shape);
    view.name.copy(tensor->name, sizeof tensor->name - 1);
}

int check_shape(fabricshm_dtype dtype, int ndim, const std::int64_t* shape) {
    if (ndim < 0 || ndim > FABRICSHM_DIMS_MAX) {
        return refuse("fabricshm_tensor_create: ndim is not 0 to %d", FABRICSHM_DIMS_MAX);
    }
    if (ndim > 0 && shape == nullptr) return refuse("fabricshm_tensor_create: shape is NULL");
    const std::span lengths(shape, static_cast<std::size_t>(ndim));
    const auto bytes = proto::tensor_bytes(static_cast<std::uint32_t>(dtype), lengths);
    if (bytes.ok()) return FABRICSHM_OK;
    return refuse("fabricshm_tensor_create: %s is out of range", bytes.error().step);
}

// What publish, wait and free need to know of `tensor`.
// `tensor` is a plain struct in the caller's memory: what it says is checked against the header
// before use.
int check_tensor(const char* function, const fabricshm_arena* arena,
                 const fabricshm_tensor* tensor) {
    if (arena == nullptr) return refuse("%s: arena is NULL", function);
    if (tensor == nullptr) return refuse("%s: tensor is NULL", function);
    if (arena->arena->session().is_foreign()) {
        return fail({Errc::kClosed, 0, ""}, "%s", function);
    }
    return FABRICSHM_OK;
}

// What was lost to the hardware is neither published nor waited for.
int check_lost(const fabricshm_arena& arena, const fabricshm_tensor& tensor) {
    if (!any_lost() || find_lost(tensor.data, tensor.bytes) == nullptr) return FABRICSHM_OK;
    return fail({Errc::kPoisoned, static_cast<int>(tensor.region_id), ""},
                "tensor '%.*s' in arena '%s'", FABRICSHM_NAME_MAX - 1, tensor.name,
                arena.arena->name().c_str());
}

// `tensor` is the caller's, so its name may lack the end.
int fail_tensor(const Error& error, const fabricshm_arena& arena, const fabricshm_tensor& tensor) {
    return fail(error, "tensor '%.*s' in arena '%s'", FABRICSHM_NAME_MAX - 1, tensor.name,
                arena.arena->name().c_str());
}

}  // namespace

}  // namespace fabricshm

using namespace fabricshm;

extern "C" {

int fabricshm_tensor_create(fabricshm_arena* arena, const char* name, fabricshm_dtype dtype,
                            int ndim, const int64_t* shape, fabricshm_tensor* tensor) {
    return guarded("fabricshm_tensor_create", [&]() -> int {
        if (arena == nullptr) return refuse("fabricshm_tensor_create: arena is NULL");
        if (tensor == nullptr) return refuse("fabricshm_tensor_create: tensor is NULL");
        if (const int code = check_name("fabricshm_tensor_create", name); code != 0) return code;
        if (const int code = check_shape(dtype, ndim, shape); code != 0) return code;
        const auto created = create_tensor(*arena->arena, name, static_cast<std::uint32_t>(dtype),
                                           std::span(shape, static_cast<std::size_t>(ndim)));
        if (!created.ok()) {
            return fail(created.error(), "tensor '%s' in %s", name,
                        place_of(*arena->arena).c_str());
        }
        describe_tensor(created.value(), tensor);
        return FABRICSHM_OK;
    });
}

int fabricshm_tensor_open(fabricshm_arena* arena, const char* name, int64_t timeout_ms,
                          fabricshm_tensor* tensor) {
    return guarded("fabricshm_tensor_open", [&]() -> int {
        if (arena == nullptr) return refuse("fabricshm_tensor_open: arena is NULL");
        if (tensor == nullptr) return refuse("fabricshm_tensor_open: tensor is NULL");
        if (const int code = check_name("fabricshm_tensor_open", name); code != 0) return code;
        if (const int code = check_timeout("fabricshm_tensor_open", timeout_ms); code != 0) {
            return code;
        }
        const auto opened =
            open_tensor(*arena->arena, name, deadline_of(arena->arena->session(), timeout_ms));
        if (!opened.ok()) {
            return fail(opened.error(), "tensor '%s' in arena '%s'", name,
                        arena->arena->name().c_str());
        }
        describe_tensor(opened.value(), tensor);
        return FABRICSHM_OK;
    });
}

int fabricshm_tensor_publish(fabricshm_arena* arena, const fabricshm_tensor* tensor,
                             uint64_t* version) {
    return guarded("fabricshm_tensor_publish", [&]() -> int {
        if (const int code = check_tensor("fabricshm_tensor_publish", arena, tensor); code != 0) {
            return code;
        }
        if (const int code = check_lost(*arena, *tensor); code != 0) return code;
        const auto published =
            publish_tensor(*arena->arena, tensor->data, tensor->bytes, tensor->region_id);
        if (!published.ok()) return fail_tensor(published.error(), *arena, *tensor);
        if (version != nullptr) *version = published.value();
        return FABRICSHM_OK;
    });
}

int fabricshm_tensor_wait(fabricshm_arena* arena, const fabricshm_tensor* tensor, uint64_t version,
                          int64_t timeout_ms, uint64_t* seen) {
    return guarded("fabricshm_tensor_wait", [&]() -> int {
        if (const int code = check_tensor("fabricshm_tensor_wait", arena, tensor); code != 0) {
            return code;
        }
        if (const int code = check_timeout("fabricshm_tensor_wait", timeout_ms); code != 0) {
            return code;
        }
        // Held, so that closing the arena meanwhile does not take the mapping away.
        const std::shared_ptr<Arena> held = arena->arena;
        const auto found = await_tensor(*held, tensor->data, tensor->bytes, tensor->region_id,
                                        version, deadline_of(held->session(), timeout_ms));
        if (!found.ok()) {
            return fail(found.error(), "version %llu of tensor '%.*s' in arena '%s'",
                        static_cast<unsigned long long>(version), FABRICSHM_NAME_MAX - 1,
                        tensor->name, held->name().c_str());
        }
        if (const int code = check_lost(*arena, *tensor); code != 0) return code;
        if (seen != nullptr) *seen = found.value();
        return FABRICSHM_OK;
    });
}

int fabricshm_tensor_free(fabricshm_arena* arena, const fabricshm_tensor* tensor) {
    return guarded("fabricshm_tensor_free", [&]() -> int {
        if (const int code = check_tensor("fabricshm_tensor_free", arena, tensor); code != 0) {
            return code;
        }
        const auto freed =
            free_tensor(*arena->arena, tensor->data, tensor->bytes, tensor->region_id);
        if (!freed.ok()) return fail_tensor(freed.error(), *arena, *tensor);
        return FABRICSHM_OK;
    });
}

}  // extern "C"
