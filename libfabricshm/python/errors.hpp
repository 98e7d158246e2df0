// Failures of the C ABI as Python exceptions.

#pragma once

#include <fabricshm/fabricshm.h>
#include <pybind11/pybind11.h>

#include <utility>

namespace fabricshm::python {

/// Raises fabricshm.FabricError, or the subclass of `code`, unless it is FABRICSHM_OK. With the
/// interpreter's lock, on the thread that got `code`.
void check(int code);

/// Raises FABRICSHM_ECLOSED's error, saying that `what` is closed.
[[noreturn]] void raise_closed(const char* what);

/// Calls into the library without the interpreter's lock: other Python threads run meanwhile.
/// `function` must not touch Python objects. On the same thread, so that check() finds the error's
/// text.
template <typename Function>
auto without_lock(Function&& function) {
    pybind11::gil_scoped_release released;
    return std::forward<Function>(function)();
}

}  // namespace fabricshm::python
