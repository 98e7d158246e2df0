// `fabric-data check`: whether the spill's folder and the catalogue's can be used, as the data file
// says them.

#pragma once

#include <optional>
#include <string>

#include "fabricd/data/data_spec.hpp"

namespace fabricd {

struct SpillCheck {
    std::string folder;
    fabricshm::Bytes bytes = 0;
    int line = 0;
    std::string problem;  // "": none
};

/// Touches nothing. Nothing: there is to be no spill.
std::optional<SpillCheck> check_spill(const DataSpec& spec);

/// For people: a line. `file` is the data file's name.
std::string as_text(const SpillCheck& check, const std::string& file);

}  // namespace fabricd
