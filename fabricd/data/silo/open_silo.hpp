// Which silo a spec means, and which writer.

#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "fabricd/data/data_spec.hpp"
#include "fabricd/data/silo/silo.hpp"
#include "fabricd/data/silo/silo_writer.hpp"

namespace fabricd {

/// Opens it; a web server is not asked yet. Fetches go into `memory`, which may be pinned, or
/// elsewhere. kUnsupported: this build has no silos of that kind.
Result<std::unique_ptr<Silo>> open_silo(const SiloSpec& spec, std::span<std::byte> memory);

/// Opens it for writing, whatever its policy is; an object store is not asked yet. kUnsupported: a
/// web server, or this build has no silos of that kind. kDenied: a folder that this user may not
/// write into.
Result<std::unique_ptr<SiloWriter>> open_silo_writer(const SiloSpec& spec);

}  // namespace fabricd
