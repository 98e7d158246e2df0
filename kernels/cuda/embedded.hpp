// The compiled CUDA kernels, as bytes in this program: no CUDA header or library is needed to have
// them, only the driver to load them.

#pragma once

#include <cstddef>

namespace kernels::cuda {

/// A fatbin: what cuModuleLoadData() and cuLibraryLoadData() take.
struct EmbeddedModule {
    const void* data;  // nullptr: this build was made without nvcc
    std::size_t bytes;
};

/// `name` is "reduce" or "optimise" (launch.hpp has their kernels); any other gives nullptr.
EmbeddedModule embedded_module(const char* name) noexcept;

}  // namespace kernels::cuda
