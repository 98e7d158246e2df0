// Pictures of bytes as numbers of a model: kernels/pixels.hpp on NumPy arrays.

#pragma once

#include <pybind11/numpy.h>

#include <cstdint>

namespace fabricshm::python {

/// The table of a channel for a type that is a code of DTYPES. Raises for another than f32, f16,
/// bf16.
pybind11::bytes pixel_table(int type, float mean, float deviation);

/// Writes `picture` (height, width, channels; uint8, of any strides over whole pixels) as numbers
/// of `tables`, one after the other, to the start of `out`, which is contiguous. Raises ValueError
/// where sizes do not fit each other.
void map_pixels(const pybind11::array& picture, int type, const pybind11::bytes& tables,
                pybind11::array& out, bool planes);

}  // namespace fabricshm::python
