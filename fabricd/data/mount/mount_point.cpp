#include "fabricd/data/mount/mount_point.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/units.hpp"

extern char** environ;

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::explain;
using fabricshm::Fd;

namespace {

constexpr const char* kType = "fuse.fabric";
constexpr auto kProbe = std::chrono::seconds(2);

// "\040" and the like, as mountinfo writes blanks.
std::string unescaped(const std::string& text) {
    std::string plain;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\\' && i + 3 < text.size()) {
            plain += static_cast<char>(std::strtol(text.substr(i + 1, 3).c_str(), nullptr, 8));
            i += 3;
        } else {
            plain += text[i];
        }
    }
    return plain;
}

// Runs fusermount3; `socket` is where it sends the device. 0 when it did what it was asked.
int run_fusermount(const std::vector<std::string>& words, int socket) {
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    if (socket >= 0) ::setenv("_FUSE_COMMFD", std::to_string(socket).c_str(), 1);
    pid_t child = -1;
    const int failed =
        ::posix_spawnp(&child, arguments[0], nullptr, nullptr, arguments.data(), environ);
    ::unsetenv("_FUSE_COMMFD");
    if (failed != 0) return failed;
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
}

Fd receive_descriptor(int socket) {
    char byte = 0;
    iovec piece{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) <= 0) return Fd();
    const cmsghdr* const head = CMSG_FIRSTHDR(&message);
    if (head == nullptr || head->cmsg_type != SCM_RIGHTS) return Fd();
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(head), sizeof descriptor);
    return Fd(descriptor);
}

Result<Fd> mount_by_fusermount(const std::string& path, bool allow_other) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
        return fabricshm::error_from_errno(errno, "mount");
    }
    const Fd own(ends[0]);
    Fd other(ends[1]);
    ::fcntl(own.get(), F_SETFD, FD_CLOEXEC);
    std::string options = "ro,nosuid,nodev,default_permissions,fsname=fabric,subtype=fabric";
    if (allow_other) options += ",allow_other";
    const int failed = run_fusermount({"fusermount3", "-o", options, "--", path}, other.get());
    other.reset();
    Fd device = failed == 0 ? receive_descriptor(own.get()) : Fd();
    if (device) return device;
    return explain({Errc::kDenied, 0, "mount"},
                   "%s can't be mounted: no CAP_SYS_ADMIN, and fusermount3 %s", path.c_str(),
                   failed == ENOENT ? "is not installed (package fuse3)" : "failed");
}

// A call into a mount that does not answer can't be given up: a child does it, and stays there if
// it has to.
MountState probe(const std::string& path) {
    const pid_t child = ::fork();
    if (child < 0) return MountState::kLive;
    if (child == 0) {
        ::close_range(0, ~0U, 0);  // nothing waits for the end of what this one could print
        struct statfs about {};
        const bool fails = ::statfs(path.c_str(), &about) != 0;
        ::_exit(fails && errno == ENOTCONN ? 1 : 0);
    }
    int status = 0;
    const auto until = fabricshm::Clock::now() + kProbe;
    while (::waitpid(child, &status, WNOHANG) == 0) {
        if (fabricshm::Clock::now() > until) {
            ::kill(child, SIGKILL);
            return MountState::kHung;
        }
        ::poll(nullptr, 0, 1);
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 1 ? MountState::kDead : MountState::kLive;
}

}  // namespace

Result<std::string> canonical_mount_point(const std::string& path) {
    std::string trimmed = path;
    while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
    const auto slash = trimmed.rfind('/');
    const std::string last = slash == std::string::npos ? trimmed : trimmed.substr(slash + 1);
    const std::string above = slash == std::string::npos ? "." : trimmed.substr(0, slash + 1);
    if (last.empty() || last == "." || last == "..") {
        return explain({Errc::kInvalid, 0, "mount point"}, "'%s' is no mount point", path.c_str());
    }
    char found[PATH_MAX];
    if (::realpath(above.c_str(), found) == nullptr) {
        return explain(fabricshm::error_from_errno(errno, "mount point"), "%s: %s", above.c_str(),
                       std::strerror(errno));
    }
    const std::string folder = found;
    return (folder == "/" ? "" : folder) + "/" + last;
}

Result<MountFacts> look_at_mount(const std::string& path) {
    MountFacts facts;
    std::ifstream mounts("/proc/self/mountinfo");
    // The last one of a path is on top of the others.
    for (std::string line; std::getline(mounts, line);) {
        std::istringstream words(line);
        std::string id, parent, device, root, at, word, type;
        words >> id >> parent >> device >> root >> at;
        if (unescaped(at) != path) continue;
        while (words >> word && word != "-") {
        }
        words >> type;
        facts.state = type == kType ? MountState::kLive : MountState::kOther;
        const auto colon = device.find(':');
        facts.connection =
            static_cast<std::uint32_t>(std::strtoul(device.c_str() + colon + 1, nullptr, 10));
    }
    if (facts.state == MountState::kLive) {
        facts.state = probe(path);
        return facts;
    }
    struct stat status {};
    if (facts.state == MountState::kNothing && ::stat(path.c_str(), &status) != 0) {
        return explain(fabricshm::error_from_errno(errno, "mount point"), "%s: %s", path.c_str(),
                       std::strerror(errno));
    }
    if (facts.state == MountState::kNothing && !S_ISDIR(status.st_mode)) {
        return explain({Errc::kInvalid, 0, "mount point"}, "%s is no folder", path.c_str());
    }
    return facts;
}

Result<void> check_empty(const std::string& path) {
    DIR* const folder = ::opendir(path.c_str());
    if (folder == nullptr) {
        return explain(fabricshm::error_from_errno(errno, "mount point"), "%s: %s", path.c_str(),
                       std::strerror(errno));
    }
    std::string found;
    while (const dirent* const entry = ::readdir(folder)) {
        const std::string name = entry->d_name;
        if (name != "." && name != "..") found = name;
    }
    ::closedir(folder);
    if (found.empty()) return {};
    return explain({Errc::kExists, 0, "mount point"},
                   "%s is not empty, and a mount would hide what is there (--nonempty)",
                   path.c_str());
}

Result<Fd> mount_fuse(const std::string& path, bool allow_other) {
    Fd device(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
    if (!device && (errno == ENOENT || errno == ENODEV || errno == ENXIO)) {
        return explain({Errc::kUnsupported, 0, "mount"},
                       "there is no /dev/fuse here (modprobe fuse)");
    }
    if (!device) return mount_by_fusermount(path, allow_other);
    const std::string options = "fd=" + std::to_string(device.get()) +
                                ",rootmode=40000,user_id=" + std::to_string(::getuid()) +
                                ",group_id=" + std::to_string(::getgid()) + ",default_permissions" +
                                (allow_other ? ",allow_other" : "");
    constexpr unsigned long kFlags = MS_RDONLY | MS_NOSUID | MS_NODEV;
    if (::mount("fabric", path.c_str(), kType, kFlags, options.c_str()) == 0) return device;
    if (errno == EPERM) return mount_by_fusermount(path, allow_other);
    return explain(fabricshm::error_from_errno(errno, "mount"), "%s can't be mounted: %s",
                   path.c_str(), std::strerror(errno));
}

Result<void> unmount_lazily(const std::string& path) {
    if (::umount2(path.c_str(), MNT_DETACH) == 0) return {};
    const int saved_errno = errno;
    if (saved_errno == EPERM && run_fusermount({"fusermount3", "-u", "-z", "--", path}, -1) == 0)
        return {};
    return explain(fabricshm::error_from_errno(saved_errno, "unmount"), "%s can't be unmounted: %s",
                   path.c_str(), std::strerror(saved_errno));
}

}  // namespace fabricd
