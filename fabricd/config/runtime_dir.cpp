#include "fabricd/config/runtime_dir.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace fabricd {

namespace {

// Unset and empty are the same: a shell script that exports an empty variable means neither.
std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
}

std::string fallback_dir() {
    return "/tmp/fabricd-" + std::to_string(::geteuid());
}

// Follows links: an administrator may have linked the file elsewhere. Unlike prepare_runtime_dir(),
// it gives no rights away.
bool is_file(const std::string& path) {
    struct stat status {};
    return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace

std::string default_runtime_dir() {
    // systemd lists several folders separated by colons; ours has one.
    const std::string given = environment("RUNTIME_DIRECTORY");
    if (!given.empty()) return given.substr(0, given.find(':'));
    const std::string user = environment("XDG_RUNTIME_DIR");
    if (!user.empty()) return user + "/fabricd";
    return ::geteuid() == 0 ? "/run/fabricd" : fallback_dir();
}

std::string default_config_file() {
    const std::string home = environment("HOME");
    std::string folder = environment("XDG_CONFIG_HOME");
    if (folder.empty() && !home.empty()) folder = home + "/.config";
    const bool is_service = ::geteuid() == 0 || !environment("RUNTIME_DIRECTORY").empty();
    const std::string path =
        is_service ? "/etc/fabricd/fabricd.toml" : folder + "/fabricd/fabricd.toml";
    return is_file(path) ? path : "";
}

// In this order, since the later ones are below the first.
void resolve_paths(Config& config) {
    auto& server = config.server;
    if (server.runtime_dir.empty()) server.runtime_dir = default_runtime_dir();
    if (server.socket.empty()) server.socket = server.runtime_dir + "/attach.sock";
    if (server.admin_socket.empty()) server.admin_socket = server.runtime_dir + "/admin.sock";
    if (config.state.dir.empty()) config.state.dir = server.runtime_dir + "/state";
}

ErrorMessage prepare_runtime_dir(const std::string& path, bool others_enter) {
    const mode_t mode = others_enter ? 0755 : 0700;
    // One level only: a parent that is missing is a mistyped path, not something to be made.
    if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST) {
        const bool is_full = errno == ENOSPC || errno == EDQUOT || errno == EIO || errno == ENOMEM;
        ErrorMessage error_message =
            "can't make " + path + ": " + std::strerror(errno) + " (server.runtime_dir)";
        error_message.is_of_host = is_full;
        return error_message;
    }
    // lstat(): a link of another user in /tmp would lead the sockets to wherever that user likes.
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
        return path + " is not a folder (server.runtime_dir)";
    }
    if (status.st_uid != ::geteuid() || (status.st_mode & 022) != 0) {
        return path + " belongs to or is writable by another user (server.runtime_dir)";
    }
    return {};
}

// As default_runtime_dir() would choose for a daemon of this user, of the system, and of a user
// without a session.
std::vector<std::string> admin_socket_candidates() {
    std::vector<std::string> folders;
    const std::string user = environment("XDG_RUNTIME_DIR");
    if (!user.empty()) folders.push_back(user + "/fabricd");
    folders.push_back("/run/fabricd");
    folders.push_back(fallback_dir());
    for (auto& folder : folders) folder += "/admin.sock";
    return folders;
}

}  // namespace fabricd
