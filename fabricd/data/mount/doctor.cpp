#include "fabricd/data/mount/doctor.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "fabricd/data/mount/mount_point.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/unix_socket.hpp"

namespace fabricd {

using fabricshm::Fd;

namespace {

using Findings = std::vector<MountFinding>;

bool is_program(const char* name) {
    const char* const path = std::getenv("PATH");
    std::string rest = path != nullptr ? path : "/usr/bin:/bin";
    while (!rest.empty()) {
        const auto colon = rest.find(':');
        const std::string file = rest.substr(0, colon) + "/" + name;
        if (::access(file.c_str(), X_OK) == 0) return true;
        rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
    }
    return false;
}

void examine_device(Findings& findings) {
    const Fd device(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
    if (device) {
        findings.push_back({true, "/dev/fuse can be opened"});
    } else if (errno == EACCES || errno == EPERM) {
        findings.push_back(
            {false, "/dev/fuse is not for this user: chmod 666 /dev/fuse, or run as root"});
    } else {
        findings.push_back(
            {false, "there is no /dev/fuse: modprobe fuse; in a container --device /dev/fuse"});
    }
    if (::geteuid() == 0) return;
    const bool there = is_program("fusermount3");
    findings.push_back(
        {there, there ? "fusermount3 is there"
                      : "fusermount3 is not installed, and without it only root mounts "
                        "(apt install fuse3)"});
}

std::string usual_socket() {
    if (const char* const named = std::getenv("FABRIC_DATA_SOCKET"); named != nullptr) return named;
    if (const char* const folder = std::getenv("XDG_RUNTIME_DIR"); folder != nullptr) {
        const std::string own = std::string(folder) + "/fabricd/data.sock";
        if (::access(own.c_str(), F_OK) == 0) return own;
    }
    return "/run/fabricd/data.sock";
}

void examine_service(const std::string& socket, Findings& findings) {
    const std::string path = socket.empty() ? usual_socket() : socket;
    const auto deadline = fabricshm::Clock::now() + std::chrono::seconds(1);
    const auto reached = fabricshm::UnixSocket::connect(path, deadline);
    findings.push_back({reached.ok(), reached.ok() ? "the data service listens at " + path
                                                   : "no data service at " + path +
                                                         ": systemctl status fabric-data (" +
                                                         explanation_of(reached.error()) + ")"});
}

// Requests that the kernel has sent and not seen answered; -1: can't be read.
long waiting_of(const std::string& folder) {
    std::ifstream file(folder + "/waiting");
    long waiting = -1;
    file >> waiting;
    return file ? waiting : -1;
}

void examine_requests(const MountFacts& facts, Findings& findings) {
    const std::string folder = "/sys/fs/fuse/connections/" + std::to_string(facts.connection);
    const long waiting = waiting_of(folder);
    if (waiting < 0) {
        findings.push_back(
            {facts.state == MountState::kLive,
             folder + " can't be read: mount -t fusectl none /sys/fs/fuse/connections, as root"});
        return;
    }
    const bool hung = facts.state == MountState::kHung;
    findings.push_back({!hung, std::to_string(waiting) + " requests wait for an answer"});
    if (hung) {
        findings.push_back({false, "to end readers that hang for ever, with errors: echo 1 > " +
                                       folder + "/abort; then start fabric-mount again"});
    }
}

void examine_mount_point(const std::string& path, Findings& findings) {
    const auto canonical = canonical_mount_point(path);
    const auto facts =
        canonical.ok() ? look_at_mount(*canonical) : Result<MountFacts>(canonical.error());
    if (!facts.ok()) {
        findings.push_back({false, explanation_of(facts.error())});
        return;
    }
    switch (facts->state) {
        case MountState::kNothing:
            findings.push_back({false, path + " is not mounted: fabric-mount " + path});
            return;
        case MountState::kOther:
            findings.push_back({false, path + " is a mount of another file system"});
            return;
        case MountState::kDead:
            findings.push_back({false, path + " is a mount whose keeper was killed: fabric-mount " +
                                           path + " unmounts and mounts it again"});
            return;
        case MountState::kHung:
            findings.push_back(
                {false, path + " does not answer: its server is stopped or can't be started"});
            break;
        case MountState::kLive:
            findings.push_back({true, path + " is mounted and answers"});
            break;
    }
    examine_requests(*facts, findings);
}

}  // namespace

std::vector<MountFinding> examine_mount(const std::string& mount_point, const std::string& socket) {
    Findings findings;
    examine_device(findings);
    examine_service(socket, findings);
    if (!mount_point.empty()) examine_mount_point(mount_point, findings);
    return findings;
}

}  // namespace fabricd
