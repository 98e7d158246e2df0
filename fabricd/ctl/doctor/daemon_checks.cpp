#include "fabricd/ctl/doctor/daemon_checks.hpp"

#include <grp.h>

#include <cstdio>

#include "fabricd/ctl/views.hpp"
#include "libfabricshm/base/version.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricd::doctor {

using fabricshm::Errc;
using fabricshm::format_duration;

namespace {

constexpr const char* kUnit = "fabricd.service";
constexpr const char* kUnitFolders[] = {"/etc/systemd/system", "/run/systemd/system",
                                        "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
                                        "/lib/systemd/system"};
// Of systemd's own: the groups of version 2 alone, of a mixture, and of version 1.
constexpr const char* kSystemGroups[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified",
                                         "/sys/fs/cgroup/systemd"};
constexpr const char* kStart = "sudo systemctl enable --now fabricd";

std::string group_name(gid_t gid) {
    const group* found = ::getgrgid(gid);
    return found != nullptr ? found->gr_name : std::to_string(gid);
}

std::string mode_text(const FileOwner& owner) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", owner.mode & 07777U);
    return std::string("mode ") + mode + ", " + user_name(owner.uid) + ":" + group_name(owner.gid);
}

bool is_installed(const HostFacts& host) {
    for (const char* folder : kUnitFolders) {
        if (host.files.exists(std::string(folder) + "/" + kUnit)) return true;
    }
    return false;
}

/// Nothing where systemd's control groups can't be seen, as in a container.
std::optional<bool> is_active(const HostFacts& host) {
    bool is_known = false;
    for (const std::string root : kSystemGroups) {
        if (!host.files.exists(root + "/system.slice")) continue;
        is_known = true;
        // systemd removes the group when the unit has ended.
        if (host.files.exists(root + "/system.slice/" + kUnit)) return true;
    }
    if (!is_known) return std::nullopt;
    return false;
}

const char* start_command(const HostFacts& host) {
    const bool is_unit = host.files.exists("/run/systemd/system") && is_installed(host);
    return is_unit ? kStart : "fabricd";
}

/// What all sockets have in common; nothing when it answered, or when this user may not use it.
std::optional<Finding> without_answer(const HostFacts& host, const SocketFacts& socket) {
    if (!socket.owner && socket.answer == Errc::kNotFound) {
        return Finding{Grade::kNote, "no daemon: there is no " + socket.path, start_command(host)};
    }
    const std::string at = socket.path + (socket.owner ? ", " + mode_text(*socket.owner) : "");
    if (socket.answer == Errc::kDaemon) {
        return Finding{Grade::kWarning, at + ": left by a daemon that has ended",
                       start_command(host)};
    }
    if (socket.answer == Errc::kTimeout) {
        const std::string waited = format_duration(socket.took);
        return Finding{Grade::kProblem, at + ": no answer within " + waited,
                       is_active(host).value_or(false) ? "sudo systemctl restart fabricd"
                                                       : "fabricctl health"};
    }
    return std::nullopt;
}

}  // namespace

Finding configuration(const HostFacts& host) {
    const ConfigFacts& config = host.config;
    if (config.path.empty()) return {Grade::kOk, "no file: the defaults hold"};
    if (!config.is_readable) return unknown("can't read " + config.path);
    if (!config.wrong) return {Grade::kOk, config.path};
    return {Grade::kProblem, *config.wrong, "fabricd --config=" + config.path + " --print-config"};
}

Finding service(const HostFacts& host) {
    if (!host.files.exists("/run/systemd/system")) {
        return {Grade::kOk, "systemd does not run here: fabricd is started by other means"};
    }
    if (!is_installed(host)) {
        return {host.status ? Grade::kOk : Grade::kNote, std::string(kUnit) + " is not installed",
                host.status ? "" : "fabricd"};
    }
    const auto active = is_active(host);
    if (!active) return unknown("can't read the control groups of systemd");
    if (!*active && host.status) {
        return {Grade::kNote, "a daemon runs, and not as " + std::string(kUnit)};
    }
    if (!*active)
        return {Grade::kWarning, std::string(kUnit) + " is installed and not active", kStart};
    const bool starts =
        host.files.exists(std::string("/etc/systemd/system/multi-user.target.wants/") + kUnit);
    if (starts) return {Grade::kOk, std::string(kUnit) + " is active, and starts with the host"};
    return {Grade::kNote, std::string(kUnit) + " is active, and does not start with the host",
            "sudo systemctl enable fabricd"};
}

Finding admin_socket(const HostFacts& host) {
    const SocketFacts& socket = host.admin;
    if (const auto finding = without_answer(host, socket)) return *finding;
    const std::string at = socket.path + (socket.owner ? ", " + mode_text(*socket.owner) : "");
    if (socket.answer == Errc::kDenied) {
        return {Grade::kUnknown,
                at + ": not for this user, so that nothing was asked of the daemon",
                "sudo fabricctl doctor"};
    }
    if (socket.answer != Errc::kOk || !host.status) {
        return {Grade::kProblem, at + ": " + socket.text, "fabricctl health"};
    }
    const StatusView& status = *host.status;
    const std::string figures = at + ": fabricd " + status.version + ", pid " +
                                std::to_string(status.pid) + ", answered in " +
                                format_duration(socket.took);
    if (!status.alarms.empty()) {
        return {Grade::kProblem, figures + "; " + status.alarms.front(), "fabricctl events"};
    }
    if (status.version != FABRIC_VERSION) {
        return {Grade::kNote, figures + "; this fabricctl is of " + FABRIC_VERSION};
    }
    return {Grade::kOk, figures};
}

Finding attach_socket(const HostFacts& host) {
    const SocketFacts& socket = host.attach;
    if (const auto finding = without_answer(host, socket)) return *finding;
    const std::string at = socket.path + (socket.owner ? ", " + mode_text(*socket.owner) : "");
    const std::string version = std::to_string(fabricshm::proto::kVersion);
    if (socket.answer == Errc::kVersion) {
        return {Grade::kProblem,
                at + ": the daemon does not speak version " + version + " of the protocol",
                is_active(host).value_or(false) ? "sudo systemctl restart fabricd"
                                                : "fabricctl shutdown"};
    }
    if (socket.answer == Errc::kDenied) {
        return {Grade::kWarning,
                at + ": user " + std::to_string(host.user.uid) +
                    " is not admitted (server.allow_uids, or server.socket_group and socket_mode)",
                "fabricd --server-allow-uids=" + std::to_string(host.user.uid)};
    }
    if (socket.answer != Errc::kOk) {
        const bool drains = host.status && host.status->draining;
        return {Grade::kProblem, at + ": " + socket.text,
                drains ? "fabricctl drain --off" : "fabricctl health"};
    }
    return {Grade::kOk, at + ": version " + version + " of the protocol, answered in " +
                            format_duration(socket.took)};
}

}  // namespace fabricd::doctor
