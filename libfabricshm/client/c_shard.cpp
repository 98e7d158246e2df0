// The C ABI: shards.

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "libfabricshm/client/c_error.hpp"
#include "libfabricshm/client/handles.hpp"
#include "libfabricshm/client/shard.hpp"
#include "libfabricshm/include/fabricshm/shard.h"
#include "libfabricshm/os/poison.hpp"
#include "libfabricshm/proto/codec.hpp"

struct fabricshm_shard {
    // Arenas that it moved to, opened as the program would: they are closed with the handle.
    std::mutex mutex;
    std::vector<fabricshm_arena*> arenas;
    std::unique_ptr<fabricshm::Shard> shard;
};

namespace fabricshm {

namespace {

Shard::OpenArena opener_of(fabricshm_session* session, fabricshm_shard& handle) {
    return [session, &handle](const std::string& name) -> Result<std::shared_ptr<Arena>> {
        fabricshm_arena* arena = nullptr;
        const int code = fabricshm_arena_open(session, name.c_str(), 0, 0, &arena);
        if (code != FABRICSHM_OK) return Error{static_cast<Errc>(-code), 0, "open shard's arena"};
        const std::lock_guard lock(handle.mutex);
        handle.arenas.push_back(arena);
        return arena->arena;
    };
}

int check_shard(const char* function, const fabricshm_shard* handle) {
    if (handle == nullptr) return refuse("%s: shard is NULL", function);
    if (handle->shard->arena().session().is_foreign()) {
        return fail({Errc::kClosed, 0, ""}, "%s", function);
    }
    return FABRICSHM_OK;
}

int fail_shard(const Error& error, const fabricshm_shard& handle) {
    return fail(error, "shard '%s' in arena '%s'", handle.shard->name().c_str(),
                handle.shard->arena().name().c_str());
}

int check_lost(const fabricshm_shard& handle, const ShardAccess& access) {
    if (!any_lost() || find_lost(access.data, handle.shard->bytes()) == nullptr) return 0;
    return fail_shard({Errc::kPoisoned, static_cast<int>(handle.shard->region_id()), ""}, handle);
}

void describe_view(const Shard& shard, const ShardAccess& access, fabricshm_shard_view* view) {
    std::memset(view, 0, sizeof *view);
    view->data = access.data;
    view->bytes = shard.bytes();
    view->version = access.pin.word.version();
    view->ticket = access.pin.word.bits;
    view->dtype = static_cast<fabricshm_dtype>(shard.dtype());
    view->ndim = static_cast<std::int32_t>(shard.shape().size());
    std::copy(shard.shape().begin(), shard.shape().end(), view->shape);
}

int check_make(fabricshm_arena* arena, const char* name, int ndim, const std::int64_t* shape,
               fabricshm_dtype dtype, fabricshm_shard** shard) {
    if (arena == nullptr) return refuse("fabricshm_shard_create: arena is NULL");
    if (shard == nullptr) return refuse("fabricshm_shard_create: shard is NULL");
    if (const int code = check_name("fabricshm_shard_create", name); code != 0) return code;
    if (ndim < 0 || ndim > FABRICSHM_DIMS_MAX) {
        return refuse("fabricshm_shard_create: ndim is not 0 to %d", FABRICSHM_DIMS_MAX);
    }
    if (ndim > 0 && shape == nullptr) return refuse("fabricshm_shard_create: shape is NULL");
    const auto bytes = proto::tensor_bytes(static_cast<std::uint32_t>(dtype),
                                           std::span(shape, static_cast<std::size_t>(ndim)));
    if (bytes.ok()) return FABRICSHM_OK;
    return refuse("fabricshm_shard_create: %s is out of range", bytes.error().step);
}

}  // namespace

}  // namespace fabricshm

using namespace fabricshm;

extern "C" {

int fabricshm_shard_create(fabricshm_arena* arena, const char* name, fabricshm_dtype dtype,
                           int ndim, const int64_t* shape, fabricshm_shard** shard) {
    return guarded("fabricshm_shard_create", [&]() -> int {
        const int refused = check_make(arena, name, ndim, shape, dtype, shard);
        if (refused != FABRICSHM_OK) return refused;
        auto handle = std::make_unique<fabricshm_shard>();
        auto made = Shard::create(arena->arena, name, static_cast<std::uint32_t>(dtype),
                                  std::span(shape, static_cast<std::size_t>(ndim)),
                                  opener_of(arena->session, *handle));
        if (!made.ok()) {
            return fail(made.error(), "shard '%s' in %s", name, place_of(*arena->arena).c_str());
        }
        handle->shard = std::move(made).value();
        *shard = handle.release();
        return FABRICSHM_OK;
    });
}

int fabricshm_shard_open(fabricshm_arena* arena, const char* name, int64_t timeout_ms,
                         fabricshm_shard** shard) {
    return guarded("fabricshm_shard_open", [&]() -> int {
        if (arena == nullptr) return refuse("fabricshm_shard_open: arena is NULL");
        if (shard == nullptr) return refuse("fabricshm_shard_open: shard is NULL");
        if (const int code = check_name("fabricshm_shard_open", name); code != 0) return code;
        if (const int code = check_timeout("fabricshm_shard_open", timeout_ms); code != 0) {
            return code;
        }
        auto handle = std::make_unique<fabricshm_shard>();
        auto opened =
            Shard::open(arena->arena, name, deadline_of(arena->arena->session(), timeout_ms),
                        opener_of(arena->session, *handle));
        if (!opened.ok()) {
            return fail(opened.error(), "shard '%s' in arena '%s'", name,
                        arena->arena->name().c_str());
        }
        handle->shard = std::move(opened).value();
        *shard = handle.release();
        return FABRICSHM_OK;
    });
}

int fabricshm_shard_read(fabricshm_shard* shard, uint64_t version, int64_t timeout_ms,
                         fabricshm_shard_view* view) {
    return guarded("fabricshm_shard_read", [&]() -> int {
        if (const int code = check_shard("fabricshm_shard_read", shard); code != 0) return code;
        if (view == nullptr) return refuse("fabricshm_shard_read: view is NULL");
        if (const int code = check_timeout("fabricshm_shard_read", timeout_ms); code != 0) {
            return code;
        }
        const TimePoint deadline = deadline_of(shard->shard->arena().session(), timeout_ms);
        const auto access = shard->shard->begin_read(version, deadline);
        if (!access.ok()) return fail_shard(access.error(), *shard);
        if (const int code = check_lost(*shard, *access); code != 0) {
            [[maybe_unused]] const auto ended = shard->shard->end_read(access->pin.word.bits);
            return code;
        }
        describe_view(*shard->shard, *access, view);
        return FABRICSHM_OK;
    });
}

int fabricshm_shard_release(fabricshm_shard* shard, const fabricshm_shard_view* view) {
    return guarded("fabricshm_shard_release", [&]() -> int {
        if (const int code = check_shard("fabricshm_shard_release", shard); code != 0) return code;
        if (view == nullptr) return refuse("fabricshm_shard_release: view is NULL");
        const auto ended = shard->shard->end_read(view->ticket);
        return ended.ok() ? FABRICSHM_OK : fail_shard(ended.error(), *shard);
    });
}

int fabricshm_shard_write(fabricshm_shard* shard, fabricshm_shard_view* view) {
    return guarded("fabricshm_shard_write", [&]() -> int {
        if (const int code = check_shard("fabricshm_shard_write", shard); code != 0) return code;
        if (view == nullptr) return refuse("fabricshm_shard_write: view is NULL");
        const auto access = shard->shard->begin_write();
        if (!access.ok()) return fail_shard(access.error(), *shard);
        describe_view(*shard->shard, *access, view);
        return FABRICSHM_OK;
    });
}

int fabricshm_shard_publish(fabricshm_shard* shard, uint64_t* version) {
    return guarded("fabricshm_shard_publish", [&]() -> int {
        if (const int code = check_shard("fabricshm_shard_publish", shard); code != 0) return code;
        const auto published = shard->shard->publish();
        if (!published.ok()) return fail_shard(published.error(), *shard);
        if (version != nullptr) *version = published.value();
        return FABRICSHM_OK;
    });
}

int fabricshm_shard_move(fabricshm_shard* shard, const char* target, uint64_t bytes_per_second) {
    return guarded("fabricshm_shard_move", [&]() -> int {
        if (const int code = check_shard("fabricshm_shard_move", shard); code != 0) return code;
        if (target == nullptr) return refuse("fabricshm_shard_move: target is NULL");
        const auto begun = shard->shard->move(target, bytes_per_second);
        return begun.ok() ? FABRICSHM_OK : fail_shard(begun.error(), *shard);
    });
}

int fabricshm_shard_free(fabricshm_shard* shard) {
    return guarded("fabricshm_shard_free", [&]() -> int {
        if (const int code = check_shard("fabricshm_shard_free", shard); code != 0) return code;
        const auto freed = shard->shard->free();
        return freed.ok() ? FABRICSHM_OK : fail_shard(freed.error(), *shard);
    });
}

void fabricshm_shard_close(fabricshm_shard* shard) {
    if (shard == nullptr) return;
    const bool foreign = shard->shard->arena().session().is_foreign();
    shard->shard.reset();
    for (fabricshm_arena* arena : shard->arenas) {
        if (!foreign) fabricshm_arena_close(arena);
    }
    delete shard;
}

}  // extern "C"
