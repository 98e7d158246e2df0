#include "libfabricshm/client/socket_path.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace fabricshm {

namespace {

std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
}

// Where a daemon without XDG_RUNTIME_DIR and without root puts its sockets. Any user may make a
// folder in /tmp, so it counts only when it is this user's own.
std::string own_temporary_folder() {
    const std::string folder = "/tmp/fabricd-" + std::to_string(::geteuid());
    struct stat status {};
    const bool own = ::lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
                     status.st_uid == ::geteuid();
    return own ? folder : "";
}

std::vector<std::string> paths_of(const std::string& wanted, const char* variable,
                                  const std::string& name) {
    if (!wanted.empty()) return {wanted};
    if (const std::string socket = environment(variable); !socket.empty()) return {socket};
    std::vector<std::string> paths;
    if (const std::string folder = environment("XDG_RUNTIME_DIR"); !folder.empty()) {
        paths.push_back(folder + "/fabricd/" + name);
    }
    paths.emplace_back("/run/fabricd/" + name);
    if (const std::string folder = own_temporary_folder(); !folder.empty()) {
        paths.push_back(folder + "/" + name);
    }
    return paths;
}

}  // namespace

std::vector<std::string> socket_paths(const std::string& wanted) {
    return paths_of(wanted, "FABRIC_SOCKET", "attach.sock");
}

std::vector<std::string> data_socket_paths(const std::string& wanted) {
    return paths_of(wanted, "FABRIC_DATA_SOCKET", "data.sock");
}

std::string joined(const std::vector<std::string>& paths) {
    std::string text;
    for (const auto& path : paths) text += (text.empty() ? "" : " or ") + path;
    return text;
}

std::string program_name() {
    return ::program_invocation_short_name;
}

}  // namespace fabricshm
