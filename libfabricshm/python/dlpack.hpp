// DLPack both ways: how arrays of other libraries (PyTorch, JAX, CuPy) are used in place.

#pragma once

#include <pybind11/numpy.h>

#include <string>

namespace fabricshm::python {

/// A capsule "dltensor" over `array`, which is kept alive by it. `type` names the type of
/// arrays that hold one which NumPy lacks ("bfloat16" in uint16); otherwise it may be empty, and is
/// taken from the array.
/// Raises BufferError for elements that DLPack has no type for, and for strides that are no whole
/// elements.
pybind11::capsule to_dlpack(const pybind11::array& array, const std::string& type);

/// (array, type name) over the memory of a capsule "dltensor", which is used up. bfloat16 comes as
/// an array of uint16, floats of 8 bits as one of uint8. Raises BufferError for other devices than
/// the CPU, and for types that NumPy cannot hold.
pybind11::tuple from_dlpack(const pybind11::capsule& capsule);

}  // namespace fabricshm::python
