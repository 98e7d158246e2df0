#pragma once

#include <cstdint>
#include <string>

#include "fabricd/data/silo/silo.hpp"

namespace fabricd {

/// A chunk of one version of a file. Its content never changes, so that a copy is never stale.
struct ChunkName {
    std::string path;  // in the namespace, "/images/n01/x.jpeg"
    FileVersion version;
    std::uint32_t number = 0;  // of the chunk within the file

    bool operator==(const ChunkName&) const = default;
};

}  // namespace fabricd
