// The job file: a script, the groups of ranks that run it, and how. docs/jobs.md.

#pragma once

#include <string>

#include "fabricd/config/config.hpp"
#include "fabricd/jobs/job_spec.hpp"

namespace fabricd {

/// Reads TOML text. The first mistake ends it with one line that starts with `name`:line; `spec` is
/// untouched then.
ErrorMessage parse_job_file(const std::string& text, const std::string& name, JobSpec& spec);

/// parse_job_file() of a file.
ErrorMessage read_job_file(const std::string& path, JobSpec& spec);

}  // namespace fabricd
