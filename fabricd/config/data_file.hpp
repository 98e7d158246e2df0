// The data file: which silos there are, where they appear, and how much memory they share.
// docs/data.md.

#pragma once

#include <string>

#include "fabricd/config/config.hpp"
#include "fabricd/data/data_spec.hpp"

namespace fabricd {

/// Reads TOML text. The first mistake ends it with one line that starts with `name`:line; `spec` is
/// untouched then.
ErrorMessage parse_data_file(const std::string& text, const std::string& name, DataSpec& spec);

/// parse_data_file() of a file.
ErrorMessage read_data_file(const std::string& path, DataSpec& spec);

}  // namespace fabricd
