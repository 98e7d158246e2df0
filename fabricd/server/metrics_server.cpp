#include "fabricd/server/metrics_server.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Fd;
using fabricshm::Result;
using fabricshm::TimePoint;

namespace {

constexpr std::size_t kMaxRequest = 8 * 1024;  // Prometheus sends some 300 bytes
constexpr auto kTimeout = std::chrono::seconds(2);
constexpr int kMetricsBacklog = 16;
// At a time; one more takes the place of the one that has been here longest.
constexpr std::size_t kMaxClients = 64;
constexpr int kShortMs = 100;  // out of descriptors: until some may have come back

// Every answer closes the connection: one thread serves all, and a kept one would be waited for.
std::string response(const char* status, const char* type, const std::string& body) {
    return std::string("HTTP/1.1 ") + status + "\r\nContent-Type: " + type +
           "\r\nContent-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" +
           body;
}

Result<Fd> open_socket(int family) {
    Fd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) return fabricshm::error_from_errno(errno, "make metrics socket");
    return socket;
}

Result<void> listen_at(const Fd& socket, const sockaddr* address, socklen_t bytes) {
    if (::bind(socket.get(), address, bytes) != 0) {
        if (errno == EADDRINUSE) return Error{Errc::kBusy, 0, "metrics address"};
        return fabricshm::error_from_errno(errno, "bind metrics socket");
    }
    if (::listen(socket.get(), kMetricsBacklog) != 0) {
        return fabricshm::error_from_errno(errno, "listen for metrics");
    }
    return {};
}

// True when a server answers there.
bool is_served(const sockaddr_un& address) {
    const auto socket = open_socket(AF_UNIX);
    return socket.ok() && ::connect(socket->get(), reinterpret_cast<const sockaddr*>(&address),
                                    sizeof address) == 0;
}

Result<Fd> listen_unix(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) return Error{Errc::kInvalid, 0, "metrics socket"};
    std::memcpy(address.sun_path, path.c_str(), path.size());
    if (is_served(address)) return Error{Errc::kBusy, 0, "metrics socket"};
    // Only a socket is removed: a path that was mistyped must not cost a file.
    struct stat status {};
    const bool there = ::lstat(path.c_str(), &status) == 0;
    if (there && !S_ISSOCK(status.st_mode)) return Error{Errc::kExists, 0, "metrics socket"};
    if (there) ::unlink(path.c_str());
    FABRIC_TRY(Fd socket, open_socket(AF_UNIX));
    // The mode of the file is that of the socket at bind(): never open to others, not even briefly.
    if (::fchmod(socket.get(), 0600) != 0) {
        return fabricshm::error_from_errno(errno, "protect metrics socket");
    }
    FABRIC_TRY_VOID(listen_at(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address));
    if (::chmod(path.c_str(), 0600) != 0) {
        return fabricshm::error_from_errno(errno, "protect metrics socket");
    }
    return socket;
}

// Loopback and nothing else: the metrics name jobs.
Result<Fd> listen_loopback(std::uint16_t port) {
    auto made = open_socket(AF_INET);
    if (!made.ok()) {
        return fabricshm::explain(made.error(),
                                  "no TCP for this service (the shipped unit allows unix sockets "
                                  "only): set telemetry.metrics_socket and start "
                                  "fabric-metrics-bridge");
    }
    Fd socket = std::move(made).value();
    const int on = 1;
    // After a restart the old connections linger for a minute; they hinder nothing.
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    FABRIC_TRY_VOID(listen_at(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address));
    return socket;
}

// One connection: its request as far as it came, then the answer as far as it went.
struct Client {
    Fd socket;
    TimePoint until;
    std::string request = {};
    std::string answer = {};
    std::size_t sent = 0;

    bool is_asked() const { return !answer.empty(); }
};

// Up to the empty line that ends the request's head, or what there is when time or room ran out.
// False when no more is needed.
bool read_more(Client& client) {
    char piece[1024];
    while (client.request.find("\r\n\r\n") == std::string::npos &&
           client.request.size() < kMaxRequest) {
        const ssize_t got = ::recv(client.socket.get(), piece, sizeof piece, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return true;
        if (got <= 0) return false;
        client.request.append(piece, static_cast<std::size_t>(got));
    }
    return false;
}

// False when all is sent, or cannot be.
bool send_more(Client& client) {
    while (client.sent < client.answer.size()) {
        const ssize_t took = ::send(client.socket.get(), client.answer.data() + client.sent,
                                    client.answer.size() - client.sent, MSG_NOSIGNAL);
        if (took < 0 && errno == EINTR) continue;
        if (took < 0 && errno == EAGAIN) return true;
        if (took <= 0) return false;
        client.sent += static_cast<std::size_t>(took);
    }
    return false;
}

}  // namespace

// The first line is all that matters. Headers and a body are read past, up to the limit.
std::string answer_http(const std::string& request, const MetricsServer::Page& page) {
    const auto line_end = request.find("\r\n");
    const std::string line = request.substr(0, line_end);
    const auto first = line.find(' ');
    const auto second = line.find(' ', first == std::string::npos ? first : first + 1);
    const bool whole = request.find("\r\n\r\n") != std::string::npos;
    if (!whole || second == std::string::npos || line.compare(second + 1, 5, "HTTP/") != 0) {
        return response("400 Bad Request", "text/plain", "not an HTTP request\n");
    }
    const std::string path = line.substr(first + 1, second - first - 1);
    if (path != "/metrics" && !path.starts_with("/metrics?")) {
        return response("404 Not Found", "text/plain", "see /metrics\n");
    }
    if (line.substr(0, first) != "GET") {
        return response("405 Method Not Allowed", "text/plain", "only GET\n");
    }
    return response("200 OK", "text/plain; version=0.0.4; charset=utf-8", page());
}

struct MetricsServer::Impl {
    std::vector<Fd> listeners;
    std::string socket_path;  // to be removed
    Fd stop;                  // an eventfd
    Page page;
    std::thread thread;

    // The thread's own, in the order in which they came.
    std::list<Client> clients;
    bool is_short = false;  // of descriptors: the last client could not be taken

    ~Impl();
    void run();
    std::vector<pollfd> waits() const;
    int timeout_ms() const;
    void take(const Fd& listener);
    bool serve(Client& client, bool is_ready);
};

MetricsServer::Impl::~Impl() {
    const std::uint64_t one = 1;
    if (stop) [[maybe_unused]]
        const ssize_t written = ::write(stop.get(), &one, sizeof one);
    if (thread.joinable()) thread.join();
    if (!socket_path.empty()) ::unlink(socket_path.c_str());
}

// The one that ends it, the listeners, the clients: run() looks at them in this order.
std::vector<pollfd> MetricsServer::Impl::waits() const {
    std::vector<pollfd> all{{stop.get(), POLLIN, 0}};
    // A negative descriptor is passed over.
    for (const Fd& listener : listeners) all.push_back({is_short ? -1 : listener.get(), POLLIN, 0});
    for (const Client& client : clients) {
        const auto events = static_cast<short>(client.is_asked() ? POLLOUT : POLLIN);
        all.push_back({client.socket.get(), events, 0});
    }
    return all;
}

// The timeout is the same for all, so the first one's ends first.
int MetricsServer::Impl::timeout_ms() const {
    int timeout = is_short ? kShortMs : -1;
    if (clients.empty()) return timeout;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(clients.front().until - Clock::now());
    const int until_first = static_cast<int>(std::max<std::int64_t>(left.count(), 0));
    return timeout < 0 ? until_first : std::min(timeout, until_first);
}

void MetricsServer::Impl::run() {
    for (;;) {
        std::vector<pollfd> entries = waits();
        if (::poll(entries.data(), entries.size(), timeout_ms()) < 0 && errno != EINTR) return;
        is_short = false;
        // Never read: it was written for the end alone.
        if (entries[0].revents != 0) return;
        std::size_t at = 1 + listeners.size();
        for (auto client = clients.begin(); client != clients.end();) {
            const bool stays = serve(*client, entries[at++].revents != 0);
            client = stays ? std::next(client) : clients.erase(client);
        }
        for (std::size_t i = 0; i < listeners.size(); ++i) {
            if (entries[1 + i].revents != 0) take(listeners[i]);
        }
    }
}

void MetricsServer::Impl::take(const Fd& listener) {
    Fd client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client) {
        is_short = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
        return;  // or it went away again
    }
    if (clients.size() >= kMaxClients) clients.pop_front();
    clients.push_back({std::move(client), Clock::now() + kTimeout});
}

// False when it is done with. Nothing here waits: one that is silent holds up no other.
bool MetricsServer::Impl::serve(Client& client, bool is_ready) {
    const bool is_late = Clock::now() >= client.until;
    if (!is_ready && !is_late) return true;
    if (!client.is_asked()) {
        if (read_more(client) && !is_late) return true;
        client.answer = answer_http(client.request, page);
    }
    return send_more(client) && !is_late;
}

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
MetricsServer::~MetricsServer() = default;

Result<std::unique_ptr<MetricsServer>> MetricsServer::start(const MetricsAddress& address,
                                                            Page page) {
    auto impl = std::make_unique<Impl>();
    impl->page = std::move(page);
    // On the caller's thread, so that a wrong address is an error of the start.
    if (!address.socket_path.empty()) {
        FABRIC_TRY(Fd listener, listen_unix(address.socket_path));
        impl->listeners.push_back(std::move(listener));
        impl->socket_path = address.socket_path;
    }
    if (address.port != 0) {
        FABRIC_TRY(Fd listener, listen_loopback(address.port));
        impl->listeners.push_back(std::move(listener));
    }
    // Ends run(), which otherwise has no reason to look up.
    impl->stop = Fd(::eventfd(0, EFD_CLOEXEC));
    if (!impl->stop) return fabricshm::error_from_errno(errno, "make eventfd");
    if (!impl->listeners.empty()) impl->thread = std::thread([&own = *impl] { own.run(); });
    return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(impl)));
}

}  // namespace fabricd
