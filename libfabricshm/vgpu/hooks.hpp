// Our functions under the driver's names, as the table declares them.

#pragma once

#include "libfabricshm/vgpu/cuda_abi.hpp"
#include "libfabricshm/vgpu/driver_entries.hpp"

#define FABRICVGPU_EXPORT __attribute__((visibility("default")))

namespace fabricshm::cuda {
extern "C" {

#define FABRIC_DECLARE(symbol, base, since, flavour, handler, params, args) \
    FABRICVGPU_EXPORT Status symbol params;
FABRIC_ALL_ENTRIES(FABRIC_DECLARE)
#undef FABRIC_DECLARE

}  // extern "C"
}  // namespace fabricshm::cuda

#define FABRIC_UNPACK(...) __VA_ARGS__

/// Defines the function of one line: it calls the line's handler with the driver's own function.
/// Without a driver there is nothing to stand in for. Use inside namespace fabricshm::cuda.
#define FABRIC_DEFINE(symbol, base, since, flavour, handler, params, args) \
    Status symbol params {                                                 \
        using Real = Status(*) params;                                     \
        const auto own = real<Real>(Entry::symbol);                        \
        if (own == nullptr) return kNoDevice;                              \
        return handler(own, FABRIC_UNPACK args);                           \
    }
