#include "fabricd/data/program/spill_check.hpp"

#ifdef FABRIC_SPILL
#include "fabricd/data/spill/slot_files.hpp"
#endif

namespace fabricd {

namespace {

std::string problem_of([[maybe_unused]] const DataSpec& spec) {
#ifdef FABRIC_SPILL
    return spill_problem(spec.spill, spec.spill_bytes);
#else
    return "this build has no spill: it was made without SQLite";
#endif
}

}  // namespace

std::optional<SpillCheck> check_spill(const DataSpec& spec) {
    if (spec.spill.empty()) return {};
    return SpillCheck{spec.spill, spec.spill_bytes, spec.spill_line, problem_of(spec)};
}

std::string as_text(const SpillCheck& check, const std::string& file) {
    if (check.problem.empty()) {
        return "spill  " + check.folder + "  " + fabricshm::format_bytes(check.bytes) + "\n";
    }
    return file + ":" + std::to_string(check.line) + ": spill: " + check.problem + "\n";
}

}  // namespace fabricd
