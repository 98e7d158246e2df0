// NumPy arrays over memory of an arena.

#pragma once

#include <pybind11/numpy.h>

#include <cstdint>
#include <memory>

#include "libfabricshm/python/handles.hpp"

namespace fabricshm::python {

using Bytes = pybind11::array_t<std::uint8_t>;

/// A writable array of `bytes` at `data`. It keeps the arena open; the memory itself stays with its
/// maker (a tensor or a region).
/// No copy. Valid as long as that memory is: an array over a tensor that was freed shows whatever
/// lies there then.
Bytes borrowed_array(std::shared_ptr<ArenaHandle> arena, void* data, std::uint64_t bytes);

/// A new block of the arena as an array; freed with the last view of it. Raises when it is full.
Bytes new_array(std::shared_ptr<ArenaHandle> arena, std::uint64_t bytes);

/// Start of a C-contiguous array; null for None. Raises TypeError or ValueError otherwise.
/// Borrowed: the caller holds the array while the pointer is used.
const void* readable(const pybind11::object& array);
/// Likewise, and the array has to be writable.
void* writable(const pybind11::object& array);

}  // namespace fabricshm::python
