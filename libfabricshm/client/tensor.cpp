#include "libfabricshm/client/tensor.hpp"

#include <algorithm>
#include <cstring>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/os/process.hpp"
#include "libfabricshm/proto/codec.hpp"
#include "libfabricshm/shm/tensor_header.hpp"

namespace fabricshm {

namespace {

// The caller has checked that it lies inside.
TensorHeader& header_at(const Arena& arena, std::uint64_t offset) {
    return *reinterpret_cast<TensorHeader*>(arena.base() + offset);
}

TensorKey key_of(const proto::Region& region) {
    return {region.region_id, region.generation};
}

// What the daemon said about a tensor, as far as it fits this arena.
// The shape is the daemon's; whether it fits the region that came with it is checked here.
Result<TensorView> view_of(Arena& arena, const proto::Tensor& tensor, const char* step) {
    const std::span shape(tensor.shape, tensor.ndim);
    FABRIC_TRY(const Bytes bytes, proto::tensor_bytes(tensor.dtype, shape));
    const proto::Region& region = tensor.region;
    const bool sound = region.arena_id == arena.id() && arena.holds(region.offset, region.bytes) &&
                       region.bytes >= kTensorHeaderBytes + bytes &&
                       region.offset % kPageBytes == 0;
    if (!sound) return Error{Errc::kCorrupt, 0, step};
    TensorView view;
    view.data = arena.base() + region.offset + kTensorHeaderBytes;
    view.bytes = bytes;
    view.region_id = region.region_id;
    view.dtype = tensor.dtype;
    view.ndim = tensor.ndim;
    std::copy(shape.begin(), shape.end(), view.shape.begin());
    view.name = proto::text_of(tensor.name);
    arena.note_tensor(region);
    return view;
}

struct Located {
    TensorHeader* header;
    TensorKey key;
};

// The header before `data`. Region ids are used again: without the generation that the daemon named
// to this process, a struct that outlived its tensor would be taken for the next one in its place.
Result<Located> locate(const Arena& arena, const void* data, std::uint64_t region_id,
                       const char* step) {
    const auto place = reinterpret_cast<std::uintptr_t>(data);
    // Numbers and not pointers: comparing pointers of different objects says nothing.
    const auto base = reinterpret_cast<std::uintptr_t>(arena.base());
    const bool inside = place >= base + kTensorHeaderBytes && place <= base + arena.bytes() &&
                        // Elements begin a header's size after a page, so that their address is a
                        // multiple of it.
                        place % kTensorHeaderBytes == 0;
    if (!inside) return Error{Errc::kInvalid, 0, "tensor->data is not in the arena"};
    TensorHeader& header = header_at(arena, place - kTensorHeaderBytes - base);
    arena.visibility().acquire(TouchPoint::kTensorHeaderRead, &header, kCacheLine);
    const auto generation = arena.tensor_generation(region_id);
    if (!generation) return Error{Errc::kNotFound, 0, step};
    const TensorKey key{region_id, *generation};
    // The bytes there may be anything's by now: the header says whether they are a tensor still.
    if (!is_tensor(header, key)) return Error{Errc::kNotFound, 0, step};
    return Located{&header, key};
}

}  // namespace

Result<TensorView> create_tensor(Arena& arena, const std::string& name, std::uint32_t dtype,
                                 std::span<const std::int64_t> shape) {
    FABRIC_TRY(const Bytes bytes, proto::tensor_bytes(dtype, shape));
    // The maker is written into the header: a name can be made again, a process's identity cannot.
    FABRIC_TRY(const ProcessIdentity owner, own_identity());
    proto::Message request = proto::make_request(proto::Type::kTensorCreate, 0);
    FABRIC_TRY_VOID(proto::set_name(request.tensor.name, name, "name"));
    request.tensor.region.arena_id = arena.id();
    request.tensor.dtype = dtype;
    request.tensor.ndim = static_cast<std::uint32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), request.tensor.shape);
    FABRIC_TRY(const proto::Message reply,
               arena.call(request, "create tensor", arena.deadline_for(bytes), Retry::kNever));
    FABRIC_TRY(TensorView view, view_of(arena, reply.tensor, "create tensor"));
    FAULT_POINT("tensor.before_format");
    format_tensor(header_at(arena, reply.tensor.region.offset), key_of(reply.tensor.region), owner,
                  arena.visibility());
    return view;
}

Result<TensorView> open_tensor(Arena& arena, const std::string& name, TimePoint deadline) {
    proto::Message request = proto::make_request(proto::Type::kTensorOpen, 0);
    FABRIC_TRY_VOID(proto::set_name(request.tensor.name, name, "name"));
    request.tensor.region.arena_id = arena.id();
    FABRIC_TRY(const proto::Message reply,
               arena.call(request, "open tensor", deadline, Retry::kHarmless));
    FABRIC_TRY(TensorView view, view_of(arena, reply.tensor, "open tensor"));
    const proto::Region& region = reply.tensor.region;
    // The daemon answers as soon as it knows the tensor; its maker writes the header right after
    // its own answer, which even an impatient caller should wait for.
    const TimePoint timeout = std::max(deadline, Clock::now() + std::chrono::seconds(1));
    FABRIC_TRY_VOID(
        await_tensor(header_at(arena, region.offset), key_of(region), timeout, arena.visibility()));
    return view;
}

Result<std::uint64_t> publish_tensor(Arena& arena, const void* data, Bytes bytes,
                                     std::uint64_t region_id) {
    FABRIC_TRY(const Located tensor, locate(arena, data, region_id, "publish tensor"));
    FAULT_POINT("tensor.before_publish");
    return publish_tensor(*tensor.header, bytes, arena.visibility());
}

Result<std::uint64_t> await_tensor(Arena& arena, const void* data, Bytes bytes,
                                   std::uint64_t region_id, std::uint64_t version,
                                   TimePoint deadline) {
    FABRIC_TRY(const Located tensor, locate(arena, data, region_id, "wait for tensor"));
    return wait_for_version(*tensor.header, tensor.key, version, deadline, bytes,
                            arena.visibility());
}

Result<void> free_tensor(Arena& arena, const void* data, Bytes bytes, std::uint64_t region_id) {
    FABRIC_TRY(const Located tensor, locate(arena, data, region_id, "free tensor"));
    FABRIC_TRY(const ProcessIdentity self, own_identity());
    // Asked here and not of the daemon alone, which would answer too late: the header is retired
    // first.
    if (!(maker_of(*tensor.header) == self)) return Error{Errc::kDenied, 0, "free tensor"};
    proto::Message request = proto::make_request(proto::Type::kTensorFree, 0);
    request.tensor.region.arena_id = arena.id();
    request.tensor.region.region_id = region_id;
    request.tensor.region.generation = tensor.key.generation;
    const Visibility view = arena.visibility();
    if (!view.coherent()) view.acquire(TouchPoint::kRegionReturn, data, bytes);
    // Before the daemon hears of it: afterwards the memory may be another tensor's.
    retire_tensor(*tensor.header, view);
    FAULT_POINT("tensor.retired");
    // Asked again after a restart of the daemon it may be gone already: then the first attempt did
    // it, since no other process could have.
    const auto reply =
        arena.call(request, "free tensor", arena.session().default_deadline(), Retry::kHarmless);
    if (reply.ok() || reply.error().code == Errc::kNotFound) return {};
    // Refused: it is there as before, and its readers see it again.
    restore_tensor(*tensor.header, view);
    return reply.error();
}

Result<void> make_lasting(Arena& arena, const TensorView& tensor) {
    proto::Message request = proto::make_request(proto::Type::kTensorCreate, 0);
    FABRIC_TRY_VOID(proto::set_name(request.tensor.name, tensor.name, "name"));
    request.tensor.region.arena_id = arena.id();
    request.tensor.dtype = tensor.dtype;
    request.tensor.ndim = tensor.ndim;
    std::copy(tensor.shape.begin(), tensor.shape.end(), request.tensor.shape);
    request.tensor.flags = proto::kTensorLasting;
    // Harmless: what is lasting already stays so.
    FABRIC_TRY([[maybe_unused]] const auto reply,
               arena.call(request, "make tensor lasting", arena.session().default_deadline(),
                          Retry::kHarmless));
    return {};
}

Result<void> free_lasting(Arena& arena, const TensorView& tensor) {
    proto::Message request = proto::make_request(proto::Type::kTensorFree, 0);
    request.tensor.region.arena_id = arena.id();
    request.tensor.region.region_id = tensor.region_id;
    request.tensor.region.generation = *arena.tensor_generation(tensor.region_id);
    const auto reply =
        arena.call(request, "free tensor", arena.session().default_deadline(), Retry::kHarmless);
    // It was there a moment ago: freed by the first attempt of this call, or by another process.
    if (reply.ok() || reply.error().code == Errc::kNotFound) return {};
    return reply.error();
}

}  // namespace fabricshm
