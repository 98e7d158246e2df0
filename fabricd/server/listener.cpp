#include "fabricd/server/listener.hpp"

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
constexpr int kAttachBacklog = 256;
constexpr Duration kLineEvery = std::chrono::seconds(1);

Result<void> make_directory_for(const std::string& path, const Admission& admission) {
    const auto slash = path.rfind('/');
    if (slash == std::string::npos || slash == 0) return Error{Errc::kInvalid, 0, "socket path"};
    const std::string directory = path.substr(0, slash);
    struct stat status {};
    // A directory that was there keeps its group and mode: an administrator may have meant
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
    auto socket = UnixSocket::listen(options.path, 0600, kAttachBacklog);
    if (!socket.ok()) {
        const bool taken = socket.error().code == Errc::kExists;
        return taken ? Error{Errc::kBusy, 0, "another process listens there"} : socket.error();
    }
    listener.socket_ = std::move(socket).value();
    listener.path_ = options.path;
    // Connections begin without the right to send descriptors, from their first packet on; where
    // the kernel has no such right to take, what comes is closed elsewhere.
    (void)listener.socket_.allow_descriptors(false);
    if (admission.has_group()) {
        const char* path = options.path.c_str();
        if (::chown(path, static_cast<uid_t>(-1), admission.group()) != 0) {
            return fabricshm::error_from_errno(errno, "set group of socket");
        }
    }
    // Last: a client that may connect finds group and mode as they are to be.
    if (::chmod(options.path.c_str(), options.mode) != 0) {
        return fabricshm::error_from_errno(errno, "set mode of socket");
    }
    return listener;
}

Listener::~Listener() {
    remove_file();
}

// Before the lock goes with lock_: a successor that waited for it makes its own file afterwards.
void Listener::remove_file() noexcept {
    if (socket_) ::unlink(path_.c_str());
}

Fd Listener::release() noexcept {
    remove_file();
    return socket_.release();
}

bool Listener::accept(int most, const std::function<void(UnixSocket)>& take, TimePoint now) {
    for (int i = 0; i < most; ++i) {
        auto socket = socket_.accept(fabricshm::kNoWait);
        if (socket.ok()) {
            take(std::move(socket).value());
            continue;
        }
        const Error error = socket.error();
        if (error.code == Errc::kTimeout) return true;
        const bool is_short =
            error.code == Errc::kNoMemory ||
            (error.code == Errc::kSystem && (error.detail == EMFILE || error.detail == ENFILE));
        // Whatever else the kernel says of one connection (it was reset while it waited) does not
        // end the others; the next turn tries again.
        if (!is_short || now >= next_line_) {
            fabricshm::log(fabricshm::LogLevel::kError, "%s%s", describe(error).c_str(),
                           is_short ? "; connections wait until there is room" : "");
            next_line_ = fabricshm::deadline_after(now, kLineEvery);
        }
        return !is_short;
    }
    return true;
}

}  // namespace fabricd
