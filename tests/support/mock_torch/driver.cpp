#include "tests/support/mock_torch/driver.hpp"

#include <dlfcn.h>

#include "libfabricshm/base/check.hpp"
#include "tests/support/mock_gpu/execute.hpp"
#include "tests/support/mock_gpu/mock_driver.hpp"

namespace mock_torch {

namespace {

template <typename Function>
void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    FABRIC_CHECK(function != nullptr);
}

Driver load() {
    mock_gpu::HostState& host = mock_gpu::fresh_host();
    host.real_memory = true;
    host.execute = mock_gpu::execute_kernel;
    host.argument_size = mock_gpu::argument_size;
    host.own_time = true;
    void* library = ::dlopen(mock_gpu::mock_library().c_str(), RTLD_NOW | RTLD_NOLOAD);
    FABRIC_CHECK(library != nullptr);
    Driver made{};
    find(library, "cuStreamCreate", made.stream_create);
    find(library, "cuStreamQuery", made.stream_query);
    find(library, "cuStreamSynchronize", made.stream_wait);
    find(library, "cuEventCreate", made.event_create);
    find(library, "cuEventRecord", made.event_record);
    find(library, "cuEventQuery", made.event_query);
    find(library, "cuStreamWaitEvent", made.event_block);
    find(library, "cuEventDestroy_v2", made.event_destroy);
    find(library, "cuStreamBeginCapture_v2", made.capture_begin);
    find(library, "cuStreamEndCapture", made.capture_end);
    find(library, "cuGraphInstantiateWithFlags", made.instantiate);
    find(library, "cuGraphLaunch", made.graph_launch);
    find(library, "cuLaunchHostFunc", made.launch_host);
    return made;
}

// The primary context, as a runtime has it: held until the process ends.
Handle context() {
    static const Handle held = [] {
        Handle made = nullptr;
        FABRIC_CHECK(mock_gpu::mock_driver().primary_retain(&made, 0) == 0);
        return made;
    }();
    return held;
}

}  // namespace

const Driver& driver() {
    static const Driver loaded = load();
    return loaded;
}

void* Driver::allocate(std::size_t bytes) const {
    const fabricshm::gpu::CurrentContext current(mock_gpu::mock_driver(), context());
    Pointer made = 0;
    FABRIC_CHECK(mock_gpu::mock_driver().alloc(&made, bytes) == 0);
    return reinterpret_cast<void*>(made);
}

void Driver::free(void* memory) const {
    const fabricshm::gpu::CurrentContext current(mock_gpu::mock_driver(), context());
    FABRIC_CHECK(mock_gpu::mock_driver().free(reinterpret_cast<Pointer>(memory)) == 0);
}

}  // namespace mock_torch
