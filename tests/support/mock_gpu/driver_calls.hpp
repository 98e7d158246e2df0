// The CUDA driver's functions that the player calls, as cuda.h declares them: by their names alone,
// so that a preloaded library is found as in any program.

#pragma once

#include <cstddef>
#include <cstdint>

#include "libfabricshm/vgpu/cuda_abi.hpp"

namespace fabricshm::cuda {
extern "C" {
Status cuInit(unsigned int);
Status cuGetExportTable(const void**, const Uuid*);
Status cuCtxCreate_v2(Handle*, unsigned int, Device);
Status cuCtxDestroy_v2(Handle);
Status cuDevicePrimaryCtxRetain(Handle*, Device);
Status cuDevicePrimaryCtxRelease_v2(Device);
Status cuCtxSetCurrent(Handle);
Status cuCtxSetLimit(int, std::size_t);
Status cuMemAlloc_v2(Pointer*, std::size_t);
Status cuMemAllocManaged(Pointer*, std::size_t, unsigned int);
Status cuMemAllocPitch_v2(Pointer*, std::size_t*, std::size_t, std::size_t, unsigned int);
Status cuMemFree_v2(Pointer);
Status cuMemGetInfo_v2(std::size_t*, std::size_t*);
Status cuDeviceTotalMem_v2(std::size_t*, Device);
Status cuMemAllocAsync(Pointer*, std::size_t, Handle);
Status cuMemAllocAsync_ptsz(Pointer*, std::size_t, Handle);
Status cuMemFreeAsync(Pointer, Handle);
Status cuDeviceGetDefaultMemPool(Handle*, Device);
Status cuMemPoolCreate(Handle*, const PoolProps*);
Status cuMemPoolDestroy(Handle);
Status cuMemPoolImportPointer(Pointer*, Handle, void*);
Status cuMemAllocFromPoolAsync(Pointer*, std::size_t, Handle, Handle);
Status cuMemCreate(AllocationHandle*, std::size_t, const AllocationProp*, unsigned long long);
Status cuMemRelease(AllocationHandle);
Status cuMemMap(Pointer, std::size_t, std::size_t, AllocationHandle, unsigned long long);
Status cuMemUnmap(Pointer, std::size_t);
Status cuMemRetainAllocationHandle(AllocationHandle*, void*);
Status cuMemImportFromShareableHandle(AllocationHandle*, void*, int);
Status cuArrayCreate_v2(Handle*, const ArrayDescriptor*);
Status cuArrayDestroy(Handle);
Status cuMipmappedArrayCreate(Handle*, const Array3dDescriptor*, unsigned int);
Status cuMipmappedArrayDestroy(Handle);
Status cuImportExternalMemory(Handle*, const ExternalMemory*);
Status cuDestroyExternalMemory(Handle);
Status cuIpcGetMemHandle(IpcHandle*, Pointer);
Status cuIpcOpenMemHandle_v2(Pointer*, IpcHandle, unsigned int);
Status cuIpcCloseMemHandle(Pointer);
Status cuModuleLoadData(Handle*, const void*);
Status cuLaunchKernel(Handle, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                      unsigned int, unsigned int, Handle, void**, void**);
Status cuLaunchKernel_ptsz(Handle, unsigned int, unsigned int, unsigned int, unsigned int,
                           unsigned int, unsigned int, unsigned int, Handle, void**, void**);
Status cuStreamBeginCapture_v2(Handle, int);
Status cuStreamBeginCapture_v2_ptsz(Handle, int);
Status cuThreadExchangeStreamCaptureMode(int*);
Status cuStreamEndCapture(Handle, Handle*);
Status cuStreamEndCapture_ptsz(Handle, Handle*);
Status cuGraphInstantiateWithFlags(Handle*, Handle, unsigned long long);
Status cuGraphLaunch(Handle, Handle);
Status cuGraphExecDestroy(Handle);
Status cuGetProcAddress_v2(const char*, void**, int, std::uint64_t, int*);
}
}  // namespace fabricshm::cuda
