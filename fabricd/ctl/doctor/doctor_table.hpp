// The checks of `fabricctl doctor`, one row each.

#pragma once

#include <vector>

#include "fabricd/ctl/doctor/finding.hpp"
#include "fabricd/ctl/doctor/host_facts.hpp"

namespace fabricd {

struct DoctorCheck {
    const char* name;      // of the table and of the JSON; never changes
    const char* looks_at;  // a few words for docs/fabricctl.md
    Finding (*find)(const HostFacts& host);
};

/// In the order in which they are shown.
const std::vector<DoctorCheck>& doctor_checks();

struct Diagnosis {
    const DoctorCheck* check = nullptr;
    Finding finding;
};

/// All checks, made of one host.
std::vector<Diagnosis> examine(const HostFacts& host);

/// Whether anything is worse than a note. What could not be checked is not.
bool is_ill(const std::vector<Diagnosis>& diagnoses);

}  // namespace fabricd
