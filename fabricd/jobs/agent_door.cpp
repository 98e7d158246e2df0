#include "fabricd/jobs/agent_door.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "libfabricshm/os/process.hpp"

namespace fabricd {

using fabricshm::error_from_errno;
using fabricshm::Fd;
using fabricshm::Result;

namespace {

/// An address has 108 bytes, a folder's path may have more: by way of the folder's descriptor.
struct DoorAddress {
    explicit DoorAddress(const std::string& path) {
        const std::filesystem::path whole = path;
        folder = Fd(::open(whole.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
        const std::string name =
            "/proc/self/fd/" + std::to_string(folder.get()) + "/" + whole.filename().string();
        address.sun_family = AF_UNIX;
        std::strncpy(address.sun_path, name.c_str(), sizeof address.sun_path - 1);
    }
    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

    Fd folder;
    sockaddr_un address{};
};

bool is_own(const Fd& socket, pid_t& pid) {
    ucred other{};
    socklen_t length = sizeof other;
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &other, &length) != 0) return false;
    pid = other.pid;
    return other.uid == ::getuid() || other.uid == 0;
}

Fd door_socket() {
    return Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

}  // namespace

Result<Fd> open_door(const std::string& path) {
    const DoorAddress address(path);
    Fd door = door_socket();
    if (!door) return error_from_errno(errno, "make a socket");
    ::unlink(path.c_str());
    ::fchmod(door.get(), 0600);  // which bind() gives to the file
    if (::bind(door.get(), address.get(), sizeof address.address) != 0 ||
        ::listen(door.get(), 4) != 0) {
        return error_from_errno(errno, "listen in the job's folder");
    }
    return door;
}

Fd admit(const Fd& door) {
    Fd socket(::accept4(door.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    pid_t pid = 0;
    if (socket && !is_own(socket, pid)) socket.reset();
    return socket;
}

Result<DoorVisit> visit_door(const std::string& path) {
    const DoorAddress address(path);
    DoorVisit visit;
    visit.socket = door_socket();
    if (!visit.socket) return error_from_errno(errno, "make a socket");
    if (::connect(visit.socket.get(), address.get(), sizeof address.address) != 0) {
        return error_from_errno(errno, "reach an agent");
    }
    if (!is_own(visit.socket, visit.agent.pid)) return error_from_errno(EPERM, "reach an agent");
    // Its number is no other process's: the socket is open as long as it lives.
    FABRIC_TRY(visit.agent.pidfd, fabricshm::open_pidfd(visit.agent.pid));
    return visit;
}

}  // namespace fabricd
