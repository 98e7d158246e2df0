#include "libfabricshm/python/errors.hpp"

#include <string>

namespace py = pybind11;

namespace fabricshm::python {
namespace {

[[noreturn]] void raise(int code, int rank, const std::string& text) {
    // The classes are Python: they inherit from TimeoutError and its like, and people read them.
    // Imported each time: errors are rare, and a class that was kept would outlive its interpreter.
    const py::object make = py::module_::import("fabricshm._errors").attr("make_error");
    const py::object error = make(code, fabricshm_error_name(code), rank, text);
    // Under its own class, which make_error() chose by the code.
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
    throw py::error_already_set();
}

}  // namespace

void check(int code) {
    // Positive results are answers (fabricshm_test()), not failures.
    if (code >= FABRICSHM_OK) return;
    raise(code, fabricshm_error_rank(), fabricshm_error_text());
}

void raise_closed(const char* what) {
    raise(FABRICSHM_ECLOSED, -1, std::string("the ") + what + " is closed");
}

}  // namespace fabricshm::python
