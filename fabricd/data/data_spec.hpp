// What the data cache serves, as its file says: docs/data.md.

#pragma once

#include <string>
#include <vector>

#include "libfabricshm/base/units.hpp"

namespace fabricd {

struct SiloSpec {
    std::string at;    // where it appears: "/images"
    std::string from;  // a folder: "/mnt/nfs/images"
    int line = 0;      // of the file, for complaints
};

struct DataSpec {
    fabricshm::Bytes memory = fabricshm::kGiB;  // of the pool, one copy for the host
    std::vector<SiloSpec> silos;
};

}  // namespace fabricd
