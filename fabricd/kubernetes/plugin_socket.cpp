#include "fabricd/kubernetes/plugin_socket.hpp"

#include <grpcpp/server.h>
#include <grpcpp/server_posix.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <thread>

#include "fabricd/kubernetes/kubelet_link.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/unix_socket.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::error_from_errno;
using fabricshm::explain;
using fabricshm::Fd;
using fabricshm::Result;

namespace {

constexpr const char* kSocketStep = "make the plugin's socket";
constexpr int kPluginBacklog = 16;
constexpr int kPauseMs = 100;  // out of descriptors: until some may have come back

Result<Fd> listen_for_kubelet(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) {
        return fabricshm::Error{Errc::kInvalid, 0, kSocketStep};
    }
    std::memcpy(address.sun_path, path.c_str(), path.size());
    Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) return error_from_errno(errno, kSocketStep);
    if (!fabricshm::may_hold_socket(path)) {
        return explain({Errc::kExists, 0, kSocketStep}, "%s is there and no socket", path.c_str());
    }
    ::unlink(path.c_str());
    const auto* name = reinterpret_cast<const sockaddr*>(&address);
    if (::bind(socket.get(), name, sizeof address) != 0 ||
        ::listen(socket.get(), kPluginBacklog) != 0) {
        const int failure = errno;
        return explain(error_from_errno(failure, kSocketStep), "can't make %s: %s", path.c_str(),
                       std::strerror(failure));
    }
    return socket;
}

}  // namespace

struct PluginSocket::Impl {
    std::string path;
    grpc::Server* server = nullptr;
    std::optional<SocketIdentity> identity;
    Fd listener;
    Fd stop;  // an eventfd
    std::thread thread;

    ~Impl();
    void accept_until_stopped() const;
};

PluginSocket::Impl::~Impl() {
    if (identity && socket_identity(path) == identity) ::unlink(path.c_str());
    const std::uint64_t one = 1;
    if (thread.joinable()) {
        [[maybe_unused]] const ssize_t written = ::write(stop.get(), &one, sizeof one);
        thread.join();
    }
}

void PluginSocket::Impl::accept_until_stopped() const {
    bool is_short = false;
    for (;;) {
        pollfd waits[] = {{stop.get(), POLLIN, 0}, {is_short ? -1 : listener.get(), POLLIN, 0}};
        const int ready = ::poll(waits, 2, is_short ? kPauseMs : -1);
        if (ready < 0 && errno != EINTR) return;
        if (ready > 0 && waits[0].revents != 0) return;
        is_short = false;
        if (ready <= 0 || waits[1].revents == 0) continue;
        Fd client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (client) {
            grpc::AddInsecureChannelFromFd(server, client.release());
        } else {
            is_short = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
        }
    }
}

PluginSocket::PluginSocket(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
PluginSocket::PluginSocket(PluginSocket&&) noexcept = default;
PluginSocket& PluginSocket::operator=(PluginSocket&&) noexcept = default;
PluginSocket::~PluginSocket() = default;

Result<PluginSocket> PluginSocket::open(const std::string& path, grpc::Server& server) {
    auto impl = std::make_unique<Impl>();
    impl->path = path;
    impl->server = &server;
    impl->stop = Fd(::eventfd(0, EFD_CLOEXEC));
    if (!impl->stop) return error_from_errno(errno, kSocketStep);
    FABRIC_TRY(impl->listener, listen_for_kubelet(path));
    impl->identity = socket_identity(path);
    impl->thread = std::thread([own = impl.get()] { own->accept_until_stopped(); });
    return PluginSocket(std::move(impl));
}

bool PluginSocket::is_in_place() const {
    return impl_->identity && socket_identity(impl_->path) == impl_->identity;
}

}  // namespace fabricd
