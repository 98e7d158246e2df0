// `fabric-data check`: opens each silo and reads a page of its listing.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fabricd/data/data_spec.hpp"
#include "fabricd/data/program/host_check.hpp"
#include "fabricd/data/program/spill_check.hpp"

namespace fabricd {

/// What came of one silo.
struct SiloCheck {
    SiloSpec silo;
    std::string problem;      // "": none
    std::size_t entries = 0;  // of the root's first page
    bool has_more = false;
    std::size_t left_out = 0;  // of these, what can't be served
    std::string first_left_out;
    std::size_t wrong = 0;  // of these, since the silo's answer can't be right
    std::string prepared;   // of a [[prep]]: what came of the first file
};

SiloCheck check_silo(const SiloSpec& silo);

/// For people: a line for each, and one for what can't be served. `file` is the data file's name.
std::string as_text(const std::vector<SiloCheck>& checks, const std::string& file);
std::string as_json(const std::vector<SiloCheck>& checks,
                    const std::optional<SpillCheck>& spill = {},
                    const std::vector<HostProblem>& problems = {});

}  // namespace fabricd
