#include "fabricd/jobs/program_path.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace fabricd {

namespace {

bool is_program(const std::filesystem::path& path) {
    std::error_code error;
    return std::filesystem::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string find_program(const std::string& name) {
    if (name.find('/') != std::string::npos) return is_program(name) ? name : "";
    const char* path = std::getenv("PATH");
    std::string folders = path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin";
    for (std::size_t from = 0; from <= folders.size();) {
        const std::size_t end = std::min(folders.find(':', from), folders.size());
        const std::string folder = folders.substr(from, end - from);
        const auto candidate = std::filesystem::path(folder.empty() ? "." : folder) / name;
        if (!name.empty() && is_program(candidate)) return candidate;
        from = end + 1;
    }
    return "";
}

std::string interpreter_of(const std::string& program) {
    std::ifstream file(program);
    char line[256] = "";  // as much of it as the kernel reads
    file.read(line, sizeof line - 1);
    std::string text(line, static_cast<std::size_t>(file.gcount()));
    if (!text.starts_with("#!")) return "";
    text = text.substr(0, text.find('\n'));
    const std::size_t from = text.find_first_not_of(" \t", 2);
    if (from == std::string::npos) return "";
    return text.substr(from, text.find_first_of(std::string(" \t\0", 3), from) - from);
}

std::string find_python_packages() {
    std::error_code error;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
    if (error) return "";
    const auto folder = self.parent_path();
    // fabricd/ctl/ of the build tree, bin/ of an installation.
    for (const auto& packages :
         {folder / ".." / ".." / "python", folder / ".." / FABRIC_PACKAGES}) {
        if (std::filesystem::exists(packages / "fabricshm" / "_run_script.py", error)) {
            return std::filesystem::weakly_canonical(packages, error);
        }
    }
    return "";
}

}  // namespace fabricd
