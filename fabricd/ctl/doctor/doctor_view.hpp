// What `fabricctl doctor` prints.

#pragma once

#include <string>
#include <vector>

#include "fabricd/ctl/doctor/doctor_table.hpp"

namespace fabricd {

/// A table of all checks, and below it the commands that mend. For people, and free to change.
std::string doctor_text(const std::vector<Diagnosis>& diagnoses);

/// One line without its end. docs/fabricctl.md has its fields.
std::string doctor_json(const std::vector<Diagnosis>& diagnoses);

/// "ok", "note", "unknown", "warning" or "problem".
const char* grade_word(Grade grade);

}  // namespace fabricd
