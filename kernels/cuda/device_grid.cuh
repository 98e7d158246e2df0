// The grid of kernels on a GPU: PTX for the accesses whose order matters.

#pragma once

#include <cstdint>

#include "kernels/cuda/span_body.hpp"

namespace kernels::cuda {

/// What span_body.hpp asks of a grid. Words are accessed at system scope: other GPUs, CPUs and this
/// device read and write them.
class DeviceGrid {
  public:
    /// `shared`: kSharedWords words of the block's shared memory.
    __device__ explicit DeviceGrid(std::uint64_t* shared) : shared_(shared) {}

    __device__ unsigned thread() const { return threadIdx.x; }
    __device__ unsigned threads() const { return blockDim.x; }
    __device__ unsigned block() const { return blockIdx.x; }
    __device__ unsigned blocks() const { return gridDim.x; }
    __device__ void sync_block() const { __syncthreads(); }
    __device__ std::uint64_t& shared(int index) const { return shared_[index]; }

    // "memory": the compiler moves no other access across these. Acquire at system scope also makes
    // the loads that follow miss what the first-level cache holds of the peers' buffers.
    __device__ std::uint64_t load_acquire(Address from) const {
        std::uint64_t value;
        asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
        return value;
    }
    __device__ void store_release(Address to, std::uint64_t value) const {
        asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
    }
    __device__ std::uint32_t load_acquire32(Address from) const {
        std::uint32_t value;
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
        return value;
    }
    __device__ void store_release32(Address to, std::uint32_t value) const {
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
    }
    __device__ void fence() const { asm volatile("fence.sc.sys;" ::: "memory"); }
    __device__ std::uint32_t fetch_add32(Address at, std::uint32_t value) const {
        std::uint32_t before;
        asm volatile("atom.acq_rel.sys.global.add.u32 %0, [%1], %2;"
                     : "=r"(before)
                     : "l"(at), "r"(value)
                     : "memory");
        return before;
    }

    template <class T>
    __device__ T load(Address from) const {
        return *reinterpret_cast<const T*>(from);
    }
    template <class T>
    __device__ void store(Address to, const T& value) const {
        *reinterpret_cast<T*>(to) = value;
    }

    __device__ std::uint64_t now_ns() const {
        std::uint64_t now;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        return now;
    }
    __device__ void pause(unsigned turn) const { __nanosleep(turn < 64 ? 20 : 500); }

  private:
    std::uint64_t* shared_;
};

}  // namespace kernels::cuda
