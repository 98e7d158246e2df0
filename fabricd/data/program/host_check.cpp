#include "fabricd/data/program/host_check.hpp"

#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

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

// In it, or in what is below it: files of the spill would be listed and read as the silo's.
bool is_in(const std::string& folder, const std::string& root) {
    std::error_code bad;
    const auto inner = std::filesystem::canonical(folder, bad);
    if (bad) return false;
    const auto outer = std::filesystem::canonical(root, bad);
    if (bad) return false;
    return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first ==
           outer.end();
}

void check_folder(const DataSpec& spec, const char* key, const std::string& folder, int line,
                  std::vector<HostProblem>& problems) {
    if (folder.empty()) return;
    for (const SiloSpec& silo : spec.silos) {
        if (!silo.from.starts_with("/") || !is_in(folder, silo.from)) continue;
        problems.push_back({line, std::string(key) + ": " + folder + " lies in the silo " +
                                      silo.at + " (" + silo.from + ")"});
    }
}

}  // namespace

std::vector<HostProblem> check_host(const DataSpec& spec) {
    std::vector<HostProblem> problems;
    if (!spec.group.empty() && ::getgrnam(spec.group.c_str()) == nullptr) {
        problems.push_back({spec.group_line, "group: this host has no group " + spec.group});
    }
    const std::string problem = spec.state.empty() ? "" : state_problem(spec.state);
    if (!problem.empty()) problems.push_back({spec.state_line, problem});
    check_folder(spec, "spill", spec.spill, spec.spill_line, problems);
    check_folder(spec, "state", spec.state, spec.state_line, problems);
    return problems;
}

std::string as_text(const std::vector<HostProblem>& problems, const std::string& file) {
    std::string text;
    for (const HostProblem& one : problems) {
        text += file + ":" + std::to_string(one.line) + ": " + one.problem + "\n";
    }
    return text;
}

}  // namespace fabricd
