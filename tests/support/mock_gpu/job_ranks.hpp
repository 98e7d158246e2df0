// Ranks of the tests that use the C ABI's operations on streams: processes with the mock driver of
// their own, or without any.

#pragma once

#include <fabricshm/cuda.h>

#include <cstdint>
#include <cstdlib>

#include "libfabricshm/cuda/device.hpp"
#include "tests/support/job.hpp"
#include "tests/support/mock_gpu/execute.hpp"
#include "tests/support/mock_gpu/mock_driver.hpp"

namespace mock_gpu {

inline constexpr std::int64_t kTimeoutMs = 60'000;
inline constexpr std::uint64_t kJobBytes = 64 << 20;
inline constexpr std::uint64_t kJobStageBytes = 8192;

// The mock in this process, before the library asks for a driver.
inline HostState& with_gpu() {
    HostState& host = fresh_host();
    host.real_memory = true;
    host.execute = execute_kernel;
    return host;
}

inline fabricshm_group* join(const test_support::Job& job, int rank, int world) {
    fabricshm_group* group = nullptr;
    if (fabricshm_group_join(job.arena, "gpus", rank, world, kTimeoutMs, &group) != 0)
        test_support::failed(100);
    return group;
}

inline int join_on_device(fabricshm_group* group, std::int64_t timeout_ms = kTimeoutMs) {
    const fabricshm_cuda_options options = {sizeof options, kJobStageBytes, timeout_ms};
    return fabricshm_cuda_join(group, &options);
}

inline int join_on_cpu(fabricshm_group* group) {
    const fabricshm_cuda_options options = {sizeof options, kJobStageBytes, kTimeoutMs};
    return fabricshm_cuda_join_cpu(group, &options);
}

// Without kernels in the library all ranks are on CPUs.
inline bool has_kernels() {
    return fabricshm::gpu::embedded_kernels().reduce != nullptr;
}

// A rank on the mock's device, or one of a process without a driver. 0, or what went wrong.
inline int join_on(bool is_cpu, const test_support::Job& job, fabricshm_group* group) {
    if (is_cpu) {
        ::setenv("FABRIC_CUDA", "off", 1);
        return join_on_cpu(group) == 0 ? 0 : test_support::failed(101);
    }
    with_gpu();
    if (fabricshm_cuda_attach(job.arena, 0) != 0) return test_support::failed(102);
    return join_on_device(group) == 0 ? 0 : test_support::failed(103);
}

// Memory of the mock's device that this process can read, as cudaMalloc gives it.
inline float* device_memory(std::uint64_t count) {
    fabricshm::gpu::Pointer made = 0;
    fabricshm::gpu::Handle context = nullptr;
    const auto& driver = mock_driver();
    driver.primary_retain(&context, 0);
    const fabricshm::gpu::CurrentContext current(driver, context);
    return driver.alloc(&made, count * sizeof(float)) == 0 ? reinterpret_cast<float*>(made)
                                                           : nullptr;
}

}  // namespace mock_gpu
