#include "fabricd/server/admin_server.hpp"

#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "fabricd/server/admin_service.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/unix_socket.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::error_from_errno;
using fabricshm::Fd;
using fabricshm::Result;

namespace {

// Threads of gRPC, of which each watch and each move keeps one.
constexpr int kThreadsMax = 32;
constexpr int kBacklog = 64;
constexpr int kFullMs = 100;  // out of descriptors: until some may have come back

/// A fresh folder of mode 0700 next to the socket, removed with what is left in it.
class PrivateFolder {
  public:
    // Next to the socket, since a rename does not cross file systems.
    explicit PrivateFolder(const std::string& socket_path)
        : path_(socket_path.substr(0, socket_path.rfind('/')) + "/.aXXXXXX") {
        if (::mkdtemp(path_.data()) == nullptr) path_.clear();
    }
    ~PrivateFolder() {
        if (path_.empty()) return;
        ::unlink(socket().c_str());
        ::rmdir(path_.c_str());
    }
    explicit operator bool() const { return !path_.empty(); }
    std::string socket() const { return path_ + "/s"; }

  private:
    std::string path_;
};

// The fewest threads that gRPC works with: the API serves a few people and scripts, on hosts whose
// cores belong to others.
std::unique_ptr<grpc::Server> serve(AdminService& service) {
    grpc::ServerBuilder builder;
    grpc::ResourceQuota quota("admin");
    quota.SetMaxThreads(kThreadsMax);
    builder.SetResourceQuota(quota);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 2);
    // No port of its own: gRPC 1.51 never accepts again after one failure for want of a descriptor.
    builder.RegisterService(&service);
    return builder.BuildAndStart();
}

Result<Fd> listen_at(const std::string& socket_path) {
    Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) return error_from_errno(errno, "start admin API");
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size());
    const auto* name = reinterpret_cast<const sockaddr*>(&address);
    if (::bind(socket.get(), name, sizeof address) != 0 || ::listen(socket.get(), kBacklog) != 0) {
        return error_from_errno(errno, "start admin API");
    }
    return socket;
}

}  // namespace

struct AdminServer::Impl {
    explicit Impl(AdminHooks hooks) : service(std::move(hooks)) {}

    std::string path;
    // In the destructor it is compared with a successor's.
    ino_t inode = 0;  // of our socket
    AdminService service;
    std::unique_ptr<grpc::Server> server;
    Fd listener;
    Fd stop;  // an eventfd
    std::thread thread;

    void accept_until_stopped();
};

// Hands connections to gRPC. Where there is no descriptor for one it waits in the queue.
void AdminServer::Impl::accept_until_stopped() {
    bool is_short = false;
    for (;;) {
        pollfd waits[] = {{stop.get(), POLLIN, 0}, {is_short ? -1 : listener.get(), POLLIN, 0}};
        const int ready = ::poll(waits, 2, is_short ? kFullMs : -1);
        if (ready < 0 && errno != EINTR) return;
        // Never read: it was written for the end alone.
        if (waits[0].revents != 0) return;
        is_short = false;
        if (ready < 0 || waits[1].revents == 0) continue;
        Fd client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (client) {
            grpc::AddInsecureChannelFromFd(server.get(), client.release());
        } else {
            is_short = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
        }
    }
}

AdminServer::AdminServer(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

Result<std::unique_ptr<AdminServer>> AdminServer::start(const std::string& socket_path,
                                                        AdminHooks hooks) {
    // "/.aXXXXXX/s" takes the place of the socket's name.
    const std::size_t folder = socket_path.rfind('/');
    const bool fits = folder != std::string::npos && folder + 12 < sizeof(sockaddr_un::sun_path) &&
                      socket_path.size() < sizeof(sockaddr_un::sun_path);
    if (!fits) return Error{Errc::kInvalid, 0, "start admin API: path is too long"};
    // A daemon of another user is busy all the same: nothing of it may be replaced.
    const Errc found = probe_socket(socket_path);
    if (found == Errc::kOk || found == Errc::kDenied)
        return Error{Errc::kBusy, 0, "start admin API"};

    // A socket has the mode that umask says. Made in a private folder, it gets its mode
    // before any client can reach it, and takes its place in one step.
    const PrivateFolder hidden(socket_path);
    if (!hidden) return error_from_errno(errno, "start admin API");
    auto impl = std::make_unique<Impl>(std::move(hooks));
    impl->path = socket_path;
    FABRIC_TRY(impl->listener, listen_at(hidden.socket()));
    impl->stop = Fd(::eventfd(0, EFD_CLOEXEC));
    if (!impl->stop) return error_from_errno(errno, "start admin API");
    impl->server = serve(impl->service);
    if (impl->server == nullptr) return Error{Errc::kSystem, 0, "start admin API"};
    if (!fabricshm::may_hold_socket(socket_path)) {
        return fabricshm::explain({fabricshm::Errc::kExists, 0, "start admin API"},
                                  "%s is there and no socket", socket_path.c_str());
    }
    struct stat status {};
    const bool placed = ::chmod(hidden.socket().c_str(), 0600) == 0 &&
                        ::stat(hidden.socket().c_str(), &status) == 0 &&
                        ::rename(hidden.socket().c_str(), socket_path.c_str()) == 0;
    if (!placed) return error_from_errno(errno, "start admin API");
    impl->inode = status.st_ino;
    impl->thread = std::thread([&own = *impl] { own.accept_until_stopped(); });
    return std::unique_ptr<AdminServer>(new AdminServer(std::move(impl)));
}

AdminServer::~AdminServer() {
    struct stat status {};
    // Only our own: a successor may have put its socket there already.
    if (::stat(impl_->path.c_str(), &status) == 0 && status.st_ino == impl_->inode) {
        ::unlink(impl_->path.c_str());
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(impl_->stop.get(), &one, sizeof one);
    impl_->thread.join();
    // Watches first: Shutdown() waits for all handlers, and a watch would last for its whole
    // deadline.
    impl_->service.stop();
    impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
}

}  // namespace fabricd
