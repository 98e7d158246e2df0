#include "libfabricshm/torch/cuda_stream.hpp"

#include <Python.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <pybind11/pybind11.h>

#include <cstdint>

namespace fabricshm::torch_backend {
namespace {

// A function of torch._C, where a torch with CUDA has them; null without.
pybind11::object function_of_torch(const char* name) {
    const pybind11::object module = pybind11::module_::import("torch._C");
    return pybind11::getattr(module, name, pybind11::none());
}

// c10's streams are numbers that only torch's CUDA library can read. Its Python face can, too, and
// is there whenever this extension is: that of the current stream is what kernels of others use.
void* handle_of(c10::Stream stream) {
    const c10::StreamGuard current(stream);
    const pybind11::gil_scoped_acquire locked;
    const pybind11::object raw = function_of_torch("_cuda_getCurrentRawStream");
    TORCH_CHECK(!raw.is_none(), "fabricshm: this torch has no CUDA streams");
    const auto index = static_cast<int>(stream.device_index());
    return reinterpret_cast<void*>(raw(index).cast<std::uintptr_t>());
}

c10::Device with_index(const c10::impl::VirtualGuardImpl& guard, c10::Device device) {
    return device.has_index() ? device : guard.getDevice();
}

}  // namespace

CudaStream::CudaStream(c10::Device device)
    : guard_(device.type()),
      stream_(guard_.getStreamFromGlobalPool(with_index(guard_, device), /*isHighPriority=*/true)),
      handle_(handle_of(stream_)) {}

bool is_capturing() {
    if (Py_IsInitialized() == 0) return false;
    const pybind11::gil_scoped_acquire locked;
    // Asked for each time: it costs less than a launch, and an object of Python that lives as long
    // as the process would outlive the interpreter.
    const pybind11::object asked = function_of_torch("_cuda_isCurrentStreamCapturing");
    return !asked.is_none() && asked().cast<bool>();
}

void wait_for_current_stream(c10::Device device) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.synchronizeStream(guard.getStream(with_index(guard, device)));
}

}  // namespace fabricshm::torch_backend
