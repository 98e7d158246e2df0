// HttpServer: small answers to a few clients of this host. docs/dashboard.md.

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libfabricshm/base/result.hpp"

namespace fabricd {

/// Views into the server's buffer: for the time of the call alone.
struct HttpRequest {
    std::string_view method;  // "GET", "HEAD", ...
    std::string_view path;    // "/api/v1/picture", as it was sent: nothing is decoded
    std::string_view query;   // what is after the question mark
    std::string_view host;    // the header Host; "" without one, or with more than one
    std::string_view token;   // the header X-Fabric-Token
};

struct HttpAnswer {
    unsigned status = 200;
    std::string type;                                   // of the body
    std::shared_ptr<const std::string> body = nullptr;  // nullptr: none
    std::vector<std::pair<std::string, std::string>> headers = {};
    /// The client has shown that it may ask: strangers can't take its place from it.
    bool is_known = false;
};

/// What a server serves.
class HttpPages {
  public:
    HttpPages() = default;
    virtual ~HttpPages() = default;
    HttpPages(const HttpPages&) = delete;
    HttpPages& operator=(const HttpPages&) = delete;

    /// Called from the server's thread, one request at a time: all other clients wait for it.
    virtual HttpAnswer answer(const HttpRequest& request) = 0;
};

struct HttpServerOptions {
    /// "127.0.0.1:8765", "[::1]:0" (a loopback address; port 0: one of the kernel's choice), or
    /// "unix:PATH", a socket of mode 0600.
    std::string listen;
    unsigned connections = 64;                    // see HttpServer
    std::chrono::milliseconds header_time{2000};  // for the first byte, and from it to the last
    std::chrono::milliseconds idle_time{5000};    // between requests
    std::chrono::milliseconds answer_time{10'000};
};

/// HTTP/1.1 without bodies of requests, headers of 8 KiB at most; a thread of its own. Each wait is
/// bounded. Any user of the host can connect: one that comes when all places are taken gets that of
/// the stranger that has made no progress for the longest; when all are known it is closed.
/// Loopback and unix sockets only: there is no encryption, and what listens elsewhere has to have
/// it.
class HttpServer {
  public:
    /// Borrows `pages`, which has to outlive it. kInvalid: no such place; kDenied: an address that
    /// other hosts can reach; kExists: the port, or the path, is taken.
    static fabricshm::Result<std::unique_ptr<HttpServer>> start(const HttpServerOptions& options,
                                                                HttpPages& pages);
    /// Closes all connections, and removes the socket's path.
    ~HttpServer();
    HttpServer(const HttpServer&) = delete;
    HttpServer& operator=(const HttpServer&) = delete;

    /// 0 of a unix socket.
    std::uint16_t port() const noexcept;

  private:
    struct Impl;

    explicit HttpServer(std::unique_ptr<Impl> impl);

    std::unique_ptr<Impl> impl_;
};

}  // namespace fabricd
