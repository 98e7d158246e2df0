#include "fabricd/server/metrics_server.hpp"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>

#include "libfabricshm/os/fd.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using fabricshm::Errc;
using fabricshm::Fd;
using test_support::TemporaryDirectory;

namespace {

std::string page() {
    return "up 1\n";
}

// What the server answers to `request`; it closes the connection after that.
std::string ask(const Fd& socket, const std::string& request) {
    if (::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "";
    std::string answer;
    char piece[512];
    for (ssize_t got = 1; got > 0;) {
        got = ::recv(socket.get(), piece, sizeof piece, 0);
        if (got > 0) answer.append(piece, static_cast<std::size_t>(got));
    }
    return answer;
}

Fd connect_unix(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        socket.reset();
    }
    return socket;
}

sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

// A port that is free right now; another process may take it before we do.
std::uint16_t free_port() {
    const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = loopback(0);
    socklen_t bytes = sizeof address;
    (void)::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), bytes);
    (void)::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
    return ntohs(address.sin_port);
}

}  // namespace

TEST_SUITE("server.metrics_server") {
    TEST_CASE("only GET /metrics is answered with the page") {
        const std::string head = "HTTP/1.1\r\nHost: x\r\n\r\n";
        const std::string good = answer_http("GET /metrics " + head, page);
        CHECK(good.starts_with("HTTP/1.1 200 OK\r\n"));
        CHECK(good.find("Content-Type: text/plain; version=0.0.4") != std::string::npos);
        CHECK(good.find("Content-Length: 5\r\n") != std::string::npos);
        CHECK(good.ends_with("\r\n\r\nup 1\n"));
        CHECK(answer_http("GET /metrics?x=1 " + head, page).starts_with("HTTP/1.1 200"));
        CHECK(answer_http("GET / " + head, page).starts_with("HTTP/1.1 404"));
        CHECK(answer_http("GET /metricsfoo " + head, page).starts_with("HTTP/1.1 404"));
        CHECK(answer_http("POST /metrics " + head, page).starts_with("HTTP/1.1 405"));
        for (const char* bad : {"", "\r\n\r\n", "GET\r\n\r\n", "GET /metrics\r\n\r\n",
                                "GET /metrics HTTP/1.1\r\n", "GET /metrics FTP/1\r\n\r\n"}) {
            CAPTURE(bad);
            CHECK(answer_http(bad, page).starts_with("HTTP/1.1 400"));
        }
    }

    TEST_CASE("a unix socket of mode 0600 serves one client after the other, and goes at the end") {
        const TemporaryDirectory folder;
        const std::string path = folder.file("metrics.sock");
        {
            const auto server = MetricsServer::start({path, 0}, page);
            REQUIRE(server.ok());
            struct stat status {};
            REQUIRE(::lstat(path.c_str(), &status) == 0);
            CHECK((status.st_mode & 0777) == 0600);
            for (int i = 0; i < 3; ++i) {
                CHECK(ask(connect_unix(path), "GET /metrics HTTP/1.1\r\n\r\n").ends_with("up 1\n"));
            }
            // One that sends garbage, or goes at once, hinders no other client.
            CHECK(ask(connect_unix(path), std::string(10'000, 'x')).starts_with("HTTP/1.1 400"));
            connect_unix(path).reset();
            CHECK(ask(connect_unix(path), "GET /metrics HTTP/1.1\r\n\r\n").ends_with("up 1\n"));
            CHECK(MetricsServer::start({path, 0}, page).error().code == Errc::kBusy);
        }
        CHECK_FALSE(connect_unix(path));
        CHECK(::access(path.c_str(), F_OK) != 0);
    }

    TEST_CASE("silent clients hold up no other client, however many there are") {
        const TemporaryDirectory folder;
        const std::string path = folder.file("metrics.sock");
        const auto server = MetricsServer::start({path, 0}, page);
        REQUIRE(server.ok());
        std::vector<Fd> silent;
        for (int i = 0; i < 100; ++i) silent.push_back(connect_unix(path));
        const auto begun = std::chrono::steady_clock::now();
        CHECK(ask(connect_unix(path), "GET /metrics HTTP/1.1\r\n\r\n").ends_with("up 1\n"));
        // One after the other they had two seconds each.
        CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(30));
    }

    TEST_CASE("a socket left behind is replaced, another file is not") {
        const TemporaryDirectory folder;
        const std::string path = folder.file("metrics.sock");
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
        Fd dead(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        REQUIRE(::bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
        dead.reset();
        CHECK(MetricsServer::start({path, 0}, page).ok());
        std::ofstream(folder.file("file")) << "precious";
        CHECK(MetricsServer::start({folder.file("file"), 0}, page).error().code == Errc::kExists);
        CHECK(::access(folder.file("file").c_str(), F_OK) == 0);
        CHECK(MetricsServer::start({"/" + std::string(200, 'x'), 0}, page).error().code ==
              Errc::kInvalid);
    }

    TEST_CASE("a port is of the loopback interface, and nothing is served without an address") {
        CHECK(MetricsServer::start({}, page).ok());
        std::uint16_t port = free_port();
        auto server = MetricsServer::start({"", port}, page);
        for (int i = 0; i < 20 && !server.ok(); ++i) {
            port = free_port();
            server = MetricsServer::start({"", port}, page);
        }
        REQUIRE(server.ok());
        const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        const sockaddr_in address = loopback(port);
        REQUIRE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address),
                          sizeof address) == 0);
        CHECK(ask(socket, "GET /metrics HTTP/1.1\r\n\r\n").ends_with("up 1\n"));
        CHECK(MetricsServer::start({"", port}, page).error().code == Errc::kBusy);
    }
}
