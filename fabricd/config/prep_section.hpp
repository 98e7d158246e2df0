// [[prep]] of the data file: files of a silo, prepared. docs/data.md, "Preparation".

#pragma once

#include <string>
#include <vector>

#include "fabricd/config/section_keys.hpp"
#include "fabricd/data/data_spec.hpp"

namespace fabricd {

/// Reads one section; what it is made of is among `silos`. `silo` is untouched after a mistake.
ErrorMessage read_prep_section(const toml::table& table, const std::string& file,
                               const std::vector<SiloSpec>& silos, SiloSpec& silo);

}  // namespace fabricd
