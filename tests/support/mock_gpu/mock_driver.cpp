#include "tests/support/mock_gpu/mock_driver.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>

#include "libfabricshm/base/check.hpp"
#include "tests/support/mock_gpu/device.hpp"

namespace mock_gpu {

namespace {

constexpr std::uint64_t kGpuBytes = std::uint64_t{1} << 30;

std::string load_mock() {
    const std::string file = "/tmp/mock_gpu." + std::to_string(::getpid());
    FABRIC_CHECK(make_device(file, kGpuBytes));
    ::setenv("FABRIC_MOCK_GPU", file.c_str(), 1);
    FABRIC_CHECK(::dlopen(GPU_MOCK_LIBRARY, RTLD_NOW | RTLD_LOCAL) != nullptr);
    const auto driver = fabricshm::gpu::Driver::open(GPU_MOCK_LIBRARY);
    FABRIC_CHECK(driver.ok());
    // A context takes memory, so the library maps the file; without a name nothing is left behind.
    fabricshm::gpu::Handle context = nullptr;
    FABRIC_CHECK(driver.value()->primary_retain(&context, 0) == 0);
    driver.value()->primary_release(0);
    ::unlink(file.c_str());
    ::setenv("FABRIC_CUDA", GPU_MOCK_LIBRARY, 1);
    return GPU_MOCK_LIBRARY;
}

}  // namespace

const std::string& mock_library() {
    static const std::string loaded = load_mock();
    return loaded;
}

HostState& fresh_host() {
    void* library = ::dlopen(mock_library().c_str(), RTLD_NOW | RTLD_NOLOAD);
    FABRIC_CHECK(library != nullptr);
    using Find = HostState* (*)();
    HostState& state = *reinterpret_cast<Find>(::dlsym(library, "mock_gpu_host"))();
    state = HostState{};
    return state;
}

const fabricshm::gpu::Driver& mock_driver() {
    static const auto opened = fabricshm::gpu::Driver::open(mock_library().c_str()).value();
    return *opened;
}

}  // namespace mock_gpu
