// Device code for runtime_player.cpp, where nvcc is found: a kernel that does nothing.

#include <cuda_runtime_api.h>

__global__ void nothing() {}

cudaError_t launch_nothing(unsigned int blocks, unsigned int threads, cudaStream_t stream) {
    nothing<<<blocks, threads, 0, stream>>>();
    return cudaGetLastError();
}
