#include "libfabricshm/machine/host_files.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace fabricshm {

namespace fs = std::filesystem;

std::optional<std::string> HostFiles::text(const std::string& path) const {
    std::ifstream file(root_ + path);
    std::string result;
    char part[4096];
    // In parts, and not by <<, which fails for an empty file as for one that can't be read.
    while (file.read(part, sizeof part), file.gcount() > 0) {
        result.append(part, static_cast<std::size_t>(file.gcount()));
    }
    // Some attributes open and then fail to read (EIO, ENODATA): the same as not being there.
    if (!file.is_open() || file.bad()) return std::nullopt;
    const auto last = result.find_last_not_of(" \t\r\n");
    result.erase(last == std::string::npos ? 0 : last + 1);
    return result;
}

std::optional<std::uint64_t> HostFiles::number(const std::string& path) const {
    const auto found = text(path);
    if (!found || found->empty() || (*found)[0] == '-') return std::nullopt;
    char* end = nullptr;
    errno = 0;
    const std::uint64_t value = std::strtoull(found->c_str(), &end, 0);
    if (errno != 0 || *end != '\0') return std::nullopt;
    return value;
}

std::vector<std::string> HostFiles::names(const std::string& folder) const {
    std::vector<std::string> result;
    std::error_code error;
    for (fs::directory_iterator it(root_ + folder, error), end; !error && it != end;
         it.increment(error)) {
        result.push_back(it->path().filename().string());
    }
    std::sort(result.begin(), result.end());
    return result;
}

std::optional<std::string> HostFiles::link_name(const std::string& path) const {
    std::error_code error;
    const auto target = fs::read_symlink(root_ + path, error);
    if (error) return std::nullopt;
    return target.filename().string();
}

bool HostFiles::exists(const std::string& path) const {
    std::error_code error;
    return fs::exists(root_ + path, error);
}

}  // namespace fabricshm
