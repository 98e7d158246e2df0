#include "fabricd/server/admin_server.hpp"

#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>

#include "fabricd/server/admin_service.hpp"
#include "libfabricshm/base/log.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::error_from_errno;
using fabricshm::Result;

namespace {

// Threads of gRPC, of which each watch and each move keeps one.
constexpr int kThreadsMax = 32;

/// A fresh folder of mode 0700 beside the socket, removed with what is left in it.
class PrivateFolder {
  public:
    // Beside the socket, since a rename does not cross file systems.
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
std::unique_ptr<grpc::Server> listen(const std::string& socket_path, AdminService& service) {
    grpc::ServerBuilder builder;
    grpc::ResourceQuota quota("admin");
    quota.SetMaxThreads(kThreadsMax);
    builder.SetResourceQuota(quota);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 2);
    builder.AddListeningPort(grpc_address(socket_path), grpc::InsecureServerCredentials());
    builder.RegisterService(&service);
    return builder.BuildAndStart();
}

}  // namespace

struct AdminServer::Impl {
    explicit Impl(AdminHooks hooks) : service(std::move(hooks)) {}

    std::string path;
    // Tells it from a successor's in the destructor.
    ino_t inode = 0;  // of our socket
    AdminService service;
    std::unique_ptr<grpc::Server> server;
};

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

    // gRPC makes the socket with whatever umask says. Made in a private folder, it gets its mode
    // before anybody can reach it, and takes its place in one step.
    const PrivateFolder hidden(socket_path);
    if (!hidden) return error_from_errno(errno, "start admin API");
    auto impl = std::make_unique<Impl>(std::move(hooks));
    impl->path = socket_path;
    impl->server = listen(hidden.socket(), impl->service);
    if (impl->server == nullptr) return Error{Errc::kSystem, 0, "start admin API"};
    struct stat status {};
    const bool placed = ::chmod(hidden.socket().c_str(), 0600) == 0 &&
                        ::stat(hidden.socket().c_str(), &status) == 0 &&
                        ::rename(hidden.socket().c_str(), socket_path.c_str()) == 0;
    if (!placed) return error_from_errno(errno, "start admin API");
    impl->inode = status.st_ino;
    return std::unique_ptr<AdminServer>(new AdminServer(std::move(impl)));
}

AdminServer::~AdminServer() {
    struct stat status {};
    // Only our own: a successor may have put its socket there already.
    if (::stat(impl_->path.c_str(), &status) == 0 && status.st_ino == impl_->inode) {
        ::unlink(impl_->path.c_str());
    }
    // Watches first: Shutdown() waits for all handlers, and a watch would last for its whole
    // deadline.
    impl_->service.stop();
    impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
}

}  // namespace fabricd
