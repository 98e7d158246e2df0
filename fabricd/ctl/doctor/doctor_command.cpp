#include "fabricd/ctl/doctor/doctor_command.hpp"

#include <dlfcn.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "fabricd/config/runtime_dir.hpp"
#include "fabricd/ctl/admin_client.hpp"
#include "fabricd/ctl/doctor/attach_probe.hpp"
#include "fabricd/ctl/doctor/doctor_table.hpp"
#include "fabricd/ctl/doctor/doctor_view.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/client/socket_path.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;

namespace {

// A daemon answers in microseconds; one that takes so long holds up its trainers, too.
constexpr std::chrono::milliseconds kAnswer{1000};
constexpr const char* kSystemConfig = "/etc/fabricd/fabricd.toml";

UserFacts this_user() {
    UserFacts user;
    user.uid = ::geteuid();
    user.groups.resize(static_cast<std::size_t>(std::max(0, ::getgroups(0, nullptr))));
    const int count = ::getgroups(static_cast<int>(user.groups.size()), user.groups.data());
    user.groups.resize(static_cast<std::size_t>(std::max(0, count)));
    user.groups.push_back(::getegid());
    return user;
}

std::optional<Space> space_of(const char* path) {
    struct statvfs status {};
    if (::statvfs(path, &status) != 0) return std::nullopt;
    return Space{status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize};
}

// As a program that uses CUDA would, and only where there is a driver: the library asks it.
std::optional<std::string> try_libcuda(const fabricshm::HostFiles& files) {
    if (!files.exists("/sys/module/nvidia/version")) return std::nullopt;
    void* library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) {
        const char* why = ::dlerror();
        return why != nullptr ? why : "dlopen";
    }
    ::dlclose(library);
    return "";
}

/// The named file, that of a daemon of this user, or that of the service.
ConfigFacts read_config(const std::string& named) {
    ConfigFacts facts;
    facts.path = !named.empty() ? named : default_config_file();
    if (facts.path.empty() && ::access(kSystemConfig, F_OK) == 0) facts.path = kSystemConfig;
    if (facts.path.empty()) return facts;
    facts.is_readable = ::access(facts.path.c_str(), R_OK) == 0;
    if (!facts.is_readable) return facts;
    Config config;
    ErrorMessage wrong = read_config_file(config, facts.path);
    if (!wrong) wrong = check_config(config);
    if (wrong) {
        facts.wrong = *wrong;
    } else {
        facts.config = config;
    }
    return facts;
}

/// Fills in what the daemon says of itself.
void ask_daemon(HostFacts& host, const std::string& path) {
    SocketFacts& admin = host.admin;
    admin.path = path;
    admin.owner = owner_of(host.files, path);
    const auto began = Clock::now();
    auto client = AdminClient::connect(path, kAnswer);
    auto picture = client.ok() ? client->fetch(View::kStatus, 0) : client.error();
    admin.took = Clock::now() - began;
    admin.answer = picture.ok() ? Errc::kOk : picture.error().code;
    if (picture.ok()) {
        host.status = picture->status;
        return;
    }
    admin.text = client.ok() ? client->last_text() : fabricshm::explanation_of(picture.error());
    if (admin.answer == Errc::kDaemon && !admin.owner) admin.answer = Errc::kNotFound;
}

/// The attach socket: next to an admin socket that is named, or where the library searches.
std::string attach_path(const CtlOptions& options) {
    const auto slash = options.socket.rfind('/');
    if (slash != std::string::npos) return options.socket.substr(0, slash) + "/attach.sock";
    const auto paths = fabricshm::socket_paths("");
    for (const auto& path : paths) {
        if (::access(path.c_str(), F_OK) == 0) return path;
    }
    return paths.front();
}

}  // namespace

HostFacts read_host(const CtlOptions& options) {
    HostFacts host;
    host.user = this_user();
    host.shared_memory = space_of("/dev/shm");
    host.libcuda = try_libcuda(host.files);
    host.config = read_config(options.file);
    ask_daemon(host, find_admin_socket(options.socket));
    host.attach = try_attach(attach_path(options), kAnswer);
    return host;
}

CtlExit run_doctor(const CtlOptions& options) {
    if (!options.file.empty() && ::access(options.file.c_str(), F_OK) != 0) {
        std::fprintf(stderr, "fabricctl: --config: there is no %s\n", options.file.c_str());
        return CtlExit::kUsage;
    }
    const auto diagnoses = examine(read_host(options));
    if (options.json) {
        std::printf("%s\n", doctor_json(diagnoses).c_str());
    } else {
        std::printf("%s", doctor_text(diagnoses).c_str());
    }
    return is_ill(diagnoses) ? CtlExit::kFailed : CtlExit::kOk;
}

}  // namespace fabricd
