#include "fabricd/server/listener.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "libfabricshm/base/log.hpp"

namespace fabricd {

using fabricshm::Fd;
using fabricshm::UnixSocket;

namespace {

// A whole job attaches at once: its ranks wait in this queue, not in their retries.
constexpr int kBacklog = 256;
constexpr TimePoint kAtOnce{};  // long past: a mere attempt

// Any descriptor will do; this one can always be opened again.
Fd open_spare() {
    return Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

Result<void> make_directory_for(const std::string& path, const Admission& admission) {
    const auto slash = path.rfind('/');
    if (slash == std::string::npos || slash == 0) return Error{Errc::kInvalid, 0, "socket path"};
    const std::string directory = path.substr(0, slash);
    struct stat status {};
    // A directory that somebody else made keeps its group and mode: an administrator may have meant
    // them.
    const bool fresh = ::stat(directory.c_str(), &status) != 0;
    FABRIC_TRY_VOID(make_directory(directory, admission.has_group() ? 0750 : 0700));
    if (!fresh || !admission.has_group()) return {};
    if (::chown(directory.c_str(), static_cast<uid_t>(-1), admission.group()) != 0) {
        return fabricshm::error_from_errno(errno, "set group of socket directory");
    }
    return {};
}

}  // namespace

Result<Listener> Listener::open(const ListenerOptions& options, const Admission& admission) {
    FABRIC_TRY_VOID(make_directory_for(options.path, admission));
    Listener listener;
    // The lock decides, not the socket's file: a file of a dead daemon looks like one of a live
    // one, and two daemons that start together must not both replace it.
    FABRIC_TRY(listener.lock_, LockFile::take(options.path + ".lock"));
    // Closed to others until its group is right.
    auto socket = UnixSocket::listen(options.path, 0600, kBacklog);
    if (!socket.ok()) {
        const bool taken = socket.error().code == Errc::kExists;
        return taken ? Error{Errc::kBusy, 0, "another process listens there"} : socket.error();
    }
    listener.socket_ = std::move(socket).value();
    listener.path_ = options.path;
    // For accept() when there are no descriptors left.
    listener.spare_ = open_spare();
    if (admission.has_group()) {
        const char* path = options.path.c_str();
        if (::chown(path, static_cast<uid_t>(-1), admission.group()) != 0) {
            return fabricshm::error_from_errno(errno, "set group of socket");
        }
    }
    // Last: whoever may connect finds group and mode as they are to be.
    if (::chmod(options.path.c_str(), options.mode) != 0) {
        return fabricshm::error_from_errno(errno, "set mode of socket");
    }
    return listener;
}

Listener::~Listener() {
    // Before the lock goes with lock_: a successor that waited for it makes its own file
    // afterwards.
    if (socket_) ::unlink(path_.c_str());
}

void Listener::accept(int most, const std::function<void(UnixSocket)>& take) {
    for (int i = 0; i < most; ++i) {
        auto socket = socket_.accept(kAtOnce);
        if (socket.ok()) {
            take(std::move(socket).value());
            continue;
        }
        const Error error = socket.error();
        if (error.code == Errc::kTimeout) return;
        // Out of descriptors, of the process or of the host: the connection would stay in the queue
        // and keep the loop awake.
        if (error.code == Errc::kSystem && (error.detail == EMFILE || error.detail == ENFILE)) {
            refuse_one();
            continue;
        }
        // Whatever else the kernel says of one connection (it was reset while it waited) does not
        // end the others; the next turn tries again.
        fabricshm::log(fabricshm::LogLevel::kError, "%s", describe(error).c_str());
        return;
    }
}

void Listener::refuse_one() {
    fabricshm::log(fabricshm::LogLevel::kError, "no descriptors left: refused a connection");
    spare_.reset();
    [[maybe_unused]] const auto closed = socket_.accept(kAtOnce);
    spare_ = open_spare();
}

}  // namespace fabricd
