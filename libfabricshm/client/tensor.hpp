// Named tensors of an arena: the daemon knows their names and shapes, shared memory their versions.

#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/client/arena.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricshm {

/// A tensor as a caller needs it; plain data, which keeps nothing alive. `data` is in the mapping
/// of the arena that it was asked of.
struct TensorView {
    std::byte* data = nullptr;
    Bytes bytes = 0;
    std::uint64_t region_id = 0;
    std::uint32_t dtype = 0;
    std::uint32_t ndim = 0;
    std::array<std::int64_t, proto::kDimsMax> shape{};
    std::string name;
};

/// Makes the tensor with version 0. kExists when the name is taken.
Result<TensorView> create_tensor(Arena& arena, const std::string& name, std::uint32_t dtype,
                                 std::span<const std::int64_t> shape);

/// Opens it, waiting for it to be made. kTimeout.
Result<TensorView> open_tensor(Arena& arena, const std::string& name, TimePoint deadline);

/// `data` and `region_id` are what create or open gave, and checked: kInvalid when they lie outside
/// the arena, kNotFound when the tensor was freed. `bytes` of elements cross with the version, as
/// far as they lie in the arena. See shm/tensor_header.hpp for the rest.
Result<std::uint64_t> publish_tensor(Arena& arena, const void* data, Bytes bytes,
                                     std::uint64_t region_id);
Result<std::uint64_t> await_tensor(Arena& arena, const void* data, Bytes bytes,
                                   std::uint64_t region_id, std::uint64_t version,
                                   TimePoint deadline);

/// Gives the tensor back; waiters for it get kNotFound. Only its owner may (kDenied).
Result<void> free_tensor(Arena& arena, const void* data, Bytes bytes, std::uint64_t region_id);

/// From here on the tensor, which this session has made, belongs to all sessions that have the
/// arena open (proto::kTensorLasting). Once its elements are what others may find: a maker that
/// dies before takes it along.
Result<void> make_lasting(Arena& arena, const TensorView& tensor);

/// Gives a lasting tensor back, whichever session made it.
Result<void> free_lasting(Arena& arena, const TensorView& tensor);

}  // namespace fabricshm
