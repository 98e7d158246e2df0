#include "fabricd/data/program/spill_check.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#ifdef FABRIC_SPILL
#include "fabricd/data/spill/slot_files.hpp"
#endif

namespace fabricd {

namespace {

std::string state_problem(const std::string& folder) {
    struct stat status {};
    if (::stat(folder.c_str(), &status) != 0)
        return "state: " + folder + ": " + std::strerror(errno);
    if (!S_ISDIR(status.st_mode)) return "state: " + folder + ": is no folder";
    if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
        return "state: " + folder + ": " + std::strerror(errno);
    }
    return "";
}

std::string problem_of([[maybe_unused]] const DataSpec& spec) {
#ifdef FABRIC_SPILL
    const std::string problem = spill_problem(spec.spill, spec.spill_bytes);
    if (!problem.empty()) return problem;
    return spec.state.empty() ? "" : state_problem(spec.state);
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
