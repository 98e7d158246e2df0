// The Python module mock_torch: a CUDA device for a torch without one. Importing it is enough;
// mock_cuda.py gives Python's side of it.

#include <torch/extension.h>

#include <cstdint>
#include <cstring>
#include <memory>

#include "tests/support/mock_gpu/mock_driver.hpp"
#include "tests/support/mock_torch/driver.hpp"

namespace {

using mock_torch::Handle;

std::atomic<bool> g_open{true};

// The stream comes no further until the gate is open.
void wait_at_gate(void*) {
    g_open.wait(false);
}

struct Fill {
    at::Tensor tensor;
    float value;
};

void fill(void* argument) {
    const std::unique_ptr<Fill> work(static_cast<Fill*>(argument));
    auto* values = static_cast<float*>(work->tensor.data_ptr());
    for (std::int64_t i = 0; i < work->tensor.numel(); ++i) values[i] = work->value;
}

void fill_later(const at::Tensor& tensor, float value) {
    mock_torch::driver().launch_host(mock_torch::current_stream(), &wait_at_gate, nullptr);
    mock_torch::driver().launch_host(mock_torch::current_stream(), &fill, new Fill{tensor, value});
}

}  // namespace

PYBIND11_MODULE(mock_torch, module) {
    module.def("library", [] { return mock_gpu::mock_library(); });
    module.def("raw_stream",
               [](int) { return reinterpret_cast<std::uintptr_t>(mock_torch::current_stream()); });
    module.def("use_stream", [](int index) {
        const auto* guard = c10::impl::getDeviceGuardImpl(c10::kCUDA);
        const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
        guard->exchangeStream(guard->getStreamFromGlobalPool(device, false));
    });
    module.def("use_default_stream", [] {
        const auto* guard = c10::impl::getDeviceGuardImpl(c10::kCUDA);
        guard->exchangeStream(guard->getDefaultStream(guard->getDevice()));
    });
    module.def("is_capturing",
               [] { return mock_torch::is_captured(mock_torch::current_stream()); });
    module.def("begin_capture", &mock_torch::begin_capture);
    module.def("end_capture", &mock_torch::end_capture);
    module.def("launch_graph", &mock_torch::launch_graph);
    module.def("close_gate", [] { g_open = false; });
    module.def("open_gate", [] {
        g_open = true;
        g_open.notify_all();
    });
    // Of float32: written by the stream, after it has passed the gate.
    module.def("fill_later", &fill_later);
    module.def("is_done",
               [] { return mock_torch::driver().stream_query(mock_torch::current_stream()) == 0; });
    module.def(
        "synchronize", [] { mock_torch::driver().stream_wait(mock_torch::current_stream()); },
        pybind11::call_guard<pybind11::gil_scoped_release>());
    // Memory as it is, whatever the stream is still going to do.
    module.def("peek", [](const at::Tensor& tensor) {
        return static_cast<const float*>(tensor.data_ptr())[0];
    });
}
