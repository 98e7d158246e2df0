// The decision which pool to take on this host. Pure: plain data in, plain data out.

#pragma once

#include <string>
#include <vector>

#include "libfabricshm/machine/discovery.hpp"

namespace fabricshm {

/// Which backend `pool.backend = "auto"` takes, and why, with a word on each of the others.
struct BackendChoice {
    std::string backend;  // "emu" or "numa"
    int node = -1;        // of numa
    std::string why;
    std::vector<std::string> not_taken;
};

/// Pure. A CPU-less node is taken if there is one: first those whose memory comes from a DAX
/// device (that is how a CXL expander appears), then the largest. A DAX device is never taken by
/// itself: using it means writing to it, and it can't keep users apart.
BackendChoice choose_backend(const Discovery& discovery);

}  // namespace fabricshm
