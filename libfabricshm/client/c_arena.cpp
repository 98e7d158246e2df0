// The C ABI: arenas, regions, and memory without a round trip.

#include <algorithm>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/client/c_error.hpp"
#include "libfabricshm/client/cuda_seat.hpp"
#include "libfabricshm/client/handles.hpp"

namespace fabricshm {

namespace {

// A second handle of an arena uses the first one's mapping and heap.
// Two mappings of one arena would be two heaps, and a block of one could not be freed by the other.
std::shared_ptr<Arena> shared_with_others(const fabricshm_session& session,
                                          std::shared_ptr<Arena> opened) {
    for (const fabricshm_arena* other : session.arenas) {
        if (other->arena->is_same(*opened)) return other->arena;
    }
    return opened;
}

void describe_region(const Arena& arena, const proto::Region& found, fabricshm_region* region) {
    region->id = found.region_id;
    region->generation = found.generation;
    region->offset = found.offset;
    region->bytes = found.bytes;
    region->base = arena.base() + found.offset;
}

// In the order of the parameters, so that the text is about the first wrong one.
int check_open(const fabricshm_session* session, const char* name, std::uint32_t flags,
               fabricshm_arena** arena) {
    if (session == nullptr) return refuse("fabricshm_arena_open: session is NULL");
    if (arena == nullptr) return refuse("fabricshm_arena_open: arena is NULL");
    constexpr std::uint32_t kKnown = FABRICSHM_ARENA_EXCLUSIVE | FABRICSHM_ARENA_LOCAL;
    if ((flags & ~kKnown) != 0) {
        return refuse("fabricshm_arena_open: flags has unknown bits");
    }
    return check_name("fabricshm_arena_open", name);
}

}  // namespace

std::string place_of(const Arena& arena) {
    const std::string& device = arena.session().device();
    return "arena '" + arena.name() + "'" + (device.empty() ? "" : " on device '" + device + "'");
}

void drop_arena(fabricshm_session& session, fabricshm_arena* handle) noexcept {
    session.arenas.erase(handle);
    // Under `opening`, so that no other thread opens it in between.
    const bool last = std::none_of(session.arenas.begin(), session.arenas.end(),
                                   [&](auto* other) { return other->arena == handle->arena; });
    if (last && !has_stuck_kernel(*session.session)) handle->arena->close();
    delete handle;
}

}  // namespace fabricshm

using namespace fabricshm;

extern "C" {

int fabricshm_arena_open(fabricshm_session* session, const char* name, uint64_t bytes,
                         uint32_t flags, fabricshm_arena** arena) {
    return guarded("fabricshm_arena_open", [&]() -> int {
        if (const int code = check_open(session, name, flags, arena); code != FABRICSHM_OK) {
            return code;
        }
        if (session->session->is_foreign()) {
            return fail({Errc::kClosed, 0, "open arena"}, "arena '%s'", name);
        }
        auto handle = std::make_unique<fabricshm_arena>();
        // Over the round trip, too: the daemon knows an arena of a session as open or closed and
        // nothing between, so that an open must not overtake a close. It may last as long as the
        // session's timeout, and so it is not the mutex that groups are made and left under.
        const std::lock_guard one_at_a_time(session->opening);
        auto opened = Arena::open(session->session, name, bytes, flags);
        if (!opened.ok()) return fail(opened.error(), "arena '%s'", name);
        handle->session = session;
        const std::lock_guard lock(session->mutex);
        // The answer of an arena that is open already made a second mapping, which goes again here.
        handle->arena = shared_with_others(*session, std::move(opened).value());
        session->arenas.insert(handle.get());
        *arena = handle.release();
        return FABRICSHM_OK;
    });
}

void fabricshm_arena_close(fabricshm_arena* arena) {
    // A child of fork() leaves the parent's arena alone, its memory included.
    if (arena == nullptr || arena->arena->session().is_foreign()) return;
    fabricshm_session& session = *arena->session;
    const std::lock_guard one_at_a_time(session.opening);
    const std::lock_guard lock(session.mutex);
    drop_arena(session, arena);
}

void* fabricshm_arena_base(const fabricshm_arena* arena) {
    return arena != nullptr ? arena->arena->base() : nullptr;
}

uint64_t fabricshm_arena_bytes(const fabricshm_arena* arena) {
    return arena != nullptr ? arena->arena->bytes() : 0;
}

int fabricshm_region_create(fabricshm_arena* arena, uint64_t bytes, fabricshm_region* region) {
    return guarded("fabricshm_region_create", [&]() -> int {
        if (arena == nullptr) return refuse("fabricshm_region_create: arena is NULL");
        if (region == nullptr) return refuse("fabricshm_region_create: region is NULL");
        if (bytes == 0) return refuse("fabricshm_region_create: bytes is 0");
        const auto created = arena->arena->create_region(bytes);
        if (!created.ok()) {
            return fail(created.error(), "region of %llu bytes in %s",
                        static_cast<unsigned long long>(bytes), place_of(*arena->arena).c_str());
        }
        describe_region(*arena->arena, created.value(), region);
        return FABRICSHM_OK;
    });
}

int fabricshm_region_open(fabricshm_arena* arena, uint64_t id, fabricshm_region* region) {
    return guarded("fabricshm_region_open", [&]() -> int {
        if (arena == nullptr) return refuse("fabricshm_region_open: arena is NULL");
        if (region == nullptr) return refuse("fabricshm_region_open: region is NULL");
        if (id == 0) return refuse("fabricshm_region_open: id is 0");
        const auto opened = arena->arena->open_region(id);
        if (!opened.ok()) {
            return fail(opened.error(), "region %llu in arena '%s'",
                        static_cast<unsigned long long>(id), arena->arena->name().c_str());
        }
        describe_region(*arena->arena, opened.value(), region);
        return FABRICSHM_OK;
    });
}

int fabricshm_region_free(fabricshm_arena* arena, uint64_t id) {
    return guarded("fabricshm_region_free", [&]() -> int {
        if (arena == nullptr) return refuse("fabricshm_region_free: arena is NULL");
        if (id == 0) return refuse("fabricshm_region_free: id is 0");
        const auto freed = arena->arena->free_region(id);
        if (freed.ok()) return FABRICSHM_OK;
        return fail(freed.error(), "region %llu in arena '%s'", static_cast<unsigned long long>(id),
                    arena->arena->name().c_str());
    });
}

void* fabricshm_alloc(fabricshm_arena* arena, uint64_t bytes) {
    void* block = nullptr;
    guarded("fabricshm_alloc", [&]() -> int {
        if (arena == nullptr) return refuse("fabricshm_alloc: arena is NULL");
        if (arena->arena->session().is_foreign()) {
            return fail({Errc::kClosed, 0, "allocate"}, "arena '%s'", arena->arena->name().c_str());
        }
        const auto allocated = arena->arena->heap().allocate(bytes);
        if (!allocated.ok()) {
            return fail(allocated.error(), "block of %llu bytes in %s",
                        static_cast<unsigned long long>(bytes), place_of(*arena->arena).c_str());
        }
        block = allocated.value();
        return FABRICSHM_OK;
    });
    return block;
}

void fabricshm_free(fabricshm_arena* arena, void* block) {
    if (arena == nullptr || block == nullptr || arena->arena->session().is_foreign()) return;
    // A bug of the caller, and without a way to return it: said in the log, and nothing is freed.
    if (!arena->arena->heap().release(static_cast<std::byte*>(block))) {
        log(LogLevel::kError, "fabricshm_free: %p is no block of arena '%s'", block,
            arena->arena->name().c_str());
    }
}

}  // extern "C"
