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

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/unix_socket.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Fd;
using fabricshm::Result;
using fabricshm::TimePoint;

namespace {

constexpr std::size_t kRequestMost = 8 * 1024;  // Prometheus sends some 300 bytes
constexpr auto kPatience = std::chrono::seconds(2);
constexpr int kBacklog = 16;

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
    if (::listen(socket.get(), kBacklog) != 0) {
        return fabricshm::error_from_errno(errno, "listen for metrics");
    }
    return {};
}

// True when somebody answers there.
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
    // After a restart the old connections linger for a minute; they are in nobody's way.
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    FABRIC_TRY_VOID(listen_at(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address));
    return socket;
}

// Reads up to the empty line that ends the request's head; what was read when time or room ran out.
// Bounded in bytes and in time: whoever writes slowly or without end gets a 400.
std::string read_request(int socket, TimePoint deadline) {
    std::string request;
    char piece[1024];
    while (request.find("\r\n\r\n") == std::string::npos && request.size() < kRequestMost) {
        if (!fabricshm::wait_ready(socket, POLLIN, deadline, "read request").ok()) break;
        const ssize_t got = ::recv(socket, piece, sizeof piece, 0);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got <= 0) break;
        request.append(piece, static_cast<std::size_t>(got));
    }
    return request;
}

void send_all(int socket, const std::string& text, TimePoint deadline) {
    for (std::size_t sent = 0; sent < text.size();) {
        if (!fabricshm::wait_ready(socket, POLLOUT, deadline, "send metrics").ok()) return;
        const ssize_t took = ::send(socket, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
        if (took < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (took <= 0) return;
        sent += static_cast<std::size_t>(took);
    }
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

    ~Impl();
    void run();
    void serve(const Fd& listener);
};

MetricsServer::Impl::~Impl() {
    const std::uint64_t one = 1;
    if (stop) [[maybe_unused]]
        const ssize_t written = ::write(stop.get(), &one, sizeof one);
    if (thread.joinable()) thread.join();
    if (!socket_path.empty()) ::unlink(socket_path.c_str());
}

void MetricsServer::Impl::run() {
    std::vector<pollfd> entries;
    for (const Fd& listener : listeners) entries.push_back({listener.get(), POLLIN, 0});
    entries.push_back({stop.get(), POLLIN, 0});
    while (true) {
        if (::poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return;
        // Never read: it was written for the end alone.
        if (entries.back().revents != 0) return;
        for (std::size_t i = 0; i < listeners.size(); ++i) {
            if (entries[i].revents != 0) serve(listeners[i]);
        }
    }
}

void MetricsServer::Impl::serve(const Fd& listener) {
    const Fd client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client) return;  // it went away again
    const TimePoint deadline = Clock::now() + kPatience;
    send_all(client.get(), answer_http(read_request(client.get(), deadline), page), deadline);
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
