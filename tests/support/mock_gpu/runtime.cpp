// Mock driver: what the CUDA runtime needs of it beyond what a program of the driver does.
//
// As everywhere in the mock, a device's memory can't be read: copies copy nothing.

#include <cstdio>

#include "tests/support/mock_gpu/device.hpp"
#include "tests/support/mock_gpu/driver.hpp"

using namespace mock_gpu;

namespace {

// What the runtime compares with: a launch's shape, and its own age with the device's.
int attribute(int which) {
    switch (which) {
        case 1:  // threads of a block, together and in each direction
        case 2:
        case 3:
            return 1024;
        case 4:
            return 64;
        case 5:  // blocks
            return 0x7fffffff;
        case 6:
        case 7:
            return 0xffff;
        case 75:  // compute capability 9.0
            return 9;
        case 76:
            return 0;
        default:
            return 1;
    }
}

Status made(Handle* out) {
    *out = reinterpret_cast<Handle>(new_address(1));
    return kSuccess;
}

}  // namespace

extern "C" {
Status cuDeviceGetUuid_v2(Uuid*, fabricshm::cuda::Device);
Status cuDevicePrimaryCtxRelease_v2(fabricshm::cuda::Device);
}

MOCK_EXPORT Status cuDeviceGetName(char* out, int length, fabricshm::cuda::Device) {
    std::snprintf(out, static_cast<std::size_t>(length), "Simulated GPU");
    return kSuccess;
}
MOCK_EXPORT Status cuDeviceGetAttribute(int* out, int which, fabricshm::cuda::Device) {
    *out = attribute(which);
    return kSuccess;
}
MOCK_EXPORT Status cuDeviceGetUuid(Uuid* out, fabricshm::cuda::Device device) {
    return cuDeviceGetUuid_v2(out, device);
}
MOCK_EXPORT Status cuDevicePrimaryCtxRelease(fabricshm::cuda::Device device) {
    return cuDevicePrimaryCtxRelease_v2(device);
}
MOCK_EXPORT Status cuDevicePrimaryCtxReset(fabricshm::cuda::Device device) {
    while (cuDevicePrimaryCtxRelease_v2(device) == kSuccess) {
    }
    return kSuccess;
}
MOCK_EXPORT Status cuCtxGetApiVersion(Handle, unsigned int* out) {
    *out = 3020;
    return kSuccess;
}
MOCK_EXPORT Status cuModuleGetFunction(Handle* out, Handle, const char* name) {
    made(out);
    name_function(*out, name);
    return kSuccess;
}
MOCK_EXPORT Status cuModuleGetLoadingMode(int* out) {
    *out = 1;  // eager
    return kSuccess;
}
MOCK_EXPORT Status cuMemcpyHtoD_v2(Pointer, const void*, std::size_t) {
    return kSuccess;
}
MOCK_EXPORT Status cuMemcpyHtoDAsync_v2(Pointer, const void*, std::size_t, Handle) {
    return kSuccess;
}
MOCK_EXPORT Status cuMemcpyDtoH_v2(void*, Pointer, std::size_t) {
    return kSuccess;
}
MOCK_EXPORT Status cuMemsetD8_v2(Pointer pointer, unsigned char value, std::size_t bytes) {
    fill_real(pointer, value, bytes);
    return kSuccess;
}
