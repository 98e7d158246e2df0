// Which silo a spec means.

#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "fabricd/data/data_spec.hpp"
#include "fabricd/data/silo/silo.hpp"

namespace fabricd {

/// Opens it; a web server is not asked yet. Fetches go into `memory`, which may be pinned, or
/// elsewhere. kUnsupported: this build has no silos of that kind.
Result<std::unique_ptr<Silo>> open_silo(const SiloSpec& spec, std::span<std::byte> memory);

}  // namespace fabricd
