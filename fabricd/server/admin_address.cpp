// The parts of admin_server.hpp that fabricctl needs too.

#include <sys/socket.h>
#include <sys/un.h>

#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "fabricd/server/admin_server.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/process.hpp"

namespace fabricd {

using fabricshm::Errc;

// A path may hold anything but a zero byte; what a gRPC address gives a meaning (%, ?, #, blanks)
// is escaped by bytes, as in a URI.
std::string grpc_address(const std::string& socket_path) {
    std::string address = "unix:";
    for (const unsigned char c : socket_path) {
        if (std::isalnum(c) != 0 || std::strchr("/-._~", c) != nullptr) {
            address += static_cast<char>(c);
            continue;
        }
        char escaped[4];
        std::snprintf(escaped, sizeof escaped, "%%%02X", c);
        address += escaped;
    }
    return address;
}

namespace {

Errc connect_to(const std::string& socket_path, fabricshm::Fd& fd) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    // Without room for a terminator: the kernel would take it, and others that look at the path
    // would not.
    if (socket_path.size() >= sizeof address.sun_path) return Errc::kInvalid;
    std::memcpy(address.sun_path, socket_path.data(), socket_path.size());
    // Never blocks: fabricctl asks in a loop, and a daemon that hangs must not hang it.
    fd = fabricshm::Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int failed =
        ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    // EAGAIN: its queue is full, so it is in use.
    if (failed == 0 || errno == EAGAIN) return Errc::kOk;
    if (errno == ENOENT || errno == ENOTDIR) return Errc::kNotFound;
    return errno == EACCES || errno == EPERM ? Errc::kDenied : Errc::kDaemon;
}

}  // namespace

Errc probe_socket(const std::string& socket_path) {
    fabricshm::Fd fd;
    return connect_to(socket_path, fd);
}

fabricshm::Fd daemon_process(const std::string& socket_path) {
    fabricshm::Fd fd;
    ucred listener{};
    socklen_t length = sizeof listener;
    if (connect_to(socket_path, fd) != Errc::kOk ||
        ::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &listener, &length) != 0 ||
        listener.pid <= 0) {
        return {};  // 0: of another namespace of processes
    }
    auto process = fabricshm::open_pidfd(listener.pid);
    return process.ok() ? std::move(*process) : fabricshm::Fd();
}

}  // namespace fabricd
