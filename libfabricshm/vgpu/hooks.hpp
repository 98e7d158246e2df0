// Our functions under the driver's names, as the table declares them.

#pragma once

#include <new>

#include "libfabricshm/vgpu/cuda_abi.hpp"
#include "libfabricshm/vgpu/driver_entries.hpp"

// Shown to the program, whatever the build's default is; exports.map lets these names out.
#define FABRICVGPU_EXPORT __attribute__((visibility("default")))

namespace fabricshm::cuda {
extern "C" {

#define FABRIC_DECLARE(symbol, base, since, flavour, handler, params, args) \
    FABRICVGPU_EXPORT Status symbol params;
FABRIC_ALL_ENTRIES(FABRIC_DECLARE)
#undef FABRIC_DECLARE

}  // extern "C"
}  // namespace fabricshm::cuda

// Takes the parentheses off a line's arguments.
#define FABRIC_UNPACK(...) __VA_ARGS__

/// Defines the function of one line: it calls the line's handler with the driver's own function.
/// Without a driver there is nothing to stand in for. No exception leaves it, since its callers may
/// be C: where the tables can't grow for want of the host's memory the call has failed; what the
/// driver had done by then stays charged until the process ends. Use inside namespace
/// fabricshm::cuda.
#define FABRIC_DEFINE(symbol, base, since, flavour, handler, params, args)          \
    Status symbol params {                                                          \
        using Real = Status(*) params;                                              \
        const auto own = real<Real>(Entry::symbol);                                 \
        if (own == nullptr) return #symbol[0] == 'n' ? kNvmlNoFunction : kNoDevice; \
        try {                                                                       \
            return handler(own, FABRIC_UNPACK args);                                \
        } catch (const std::bad_alloc&) {                                           \
            return #symbol[0] == 'n' ? kNvmlNoMemory : kOutOfMemory;                \
        }                                                                           \
    }
