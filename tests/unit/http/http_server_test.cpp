#include "fabricd/http/http_server.hpp"

#include <doctest/doctest.h>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <thread>

#include "libfabricshm/os/fd.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using fabricshm::Errc;
using fabricshm::Fd;

namespace {

// Says what it was asked.
class Echo : public HttpPages {
  public:
    HttpAnswer answer(const HttpRequest& request) override {
        HttpAnswer answer;
        answer.status = request.path == "/nothing" ? 304 : 200;
        answer.type = "text/plain";
        answer.headers = {{"X-Test", "yes"}};
        if (answer.status == 304) return answer;
        answer.is_known = !request.token.empty();
        answer.body = std::make_shared<const std::string>(
            padding + std::string(request.method) + " " + std::string(request.path) + " " +
            std::string(request.query) + " " + std::string(request.host) + " " +
            std::string(request.token));
        return answer;
    }

    std::string padding;
};

constexpr const char* kGet = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
constexpr const char* kLastGet = "GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
constexpr const char* kKnownGet = "GET /a HTTP/1.1\r\nHost: h\r\nX-Fabric-Token: secret\r\n\r\n";

// No client is too late, however slow the machine is.
HttpServerOptions local_options() {
    HttpServerOptions options;
    options.listen = "127.0.0.1:0";
    options.header_time = options.idle_time = options.answer_time = std::chrono::seconds(60);
    return options;
}

Fd connect_to(std::uint16_t port) {
    Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    // A server that says nothing must not hold the test up.
    timeval limit{20, 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return socket;
}

void send_text(const Fd& socket, const std::string& text) {
    std::size_t sent = 0;
    while (sent < text.size()) {
        const ssize_t took =
            ::send(socket.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
        if (took <= 0) return;  // closed on us: what came back says why
        sent += static_cast<std::size_t>(took);
    }
}

// Until the server closes.
std::string read_all(const Fd& socket) {
    std::string all;
    char piece[4096];
    for (;;) {
        const ssize_t got = ::recv(socket.get(), piece, sizeof piece, 0);
        if (got <= 0) return all;
        all.append(piece, static_cast<std::size_t>(got));
    }
}

// One answer, of a connection that stays: to the end of the header, and what its length says.
std::string read_answer(const Fd& socket) {
    std::string all;
    char byte = 0;
    while (!all.ends_with("\r\n\r\n")) {
        if (::recv(socket.get(), &byte, 1, 0) != 1) return all;
        all += byte;
    }
    const auto length = all.find("Content-Length: ");
    std::size_t left = length == all.npos ? 0 : std::stoul(all.substr(length + 16));
    for (; left > 0 && ::recv(socket.get(), &byte, 1, 0) == 1; --left) all += byte;
    return all;
}

std::string ask(std::uint16_t port, const std::string& text) {
    const Fd socket = connect_to(port);
    send_text(socket, text);
    return read_all(socket);
}

TEST_SUITE("http.http_server") {
    TEST_CASE("a request arrives in its parts, and its answer comes back") {
        Echo pages;
        auto server = HttpServer::start(local_options(), pages);
        REQUIRE(server.ok());
        const std::string answer = ask((*server)->port(),
                                       "GET /a/b?c=d&e HTTP/1.1\r\nHost: here:1\r\n"
                                       "X-Fabric-Token: secret\r\nConnection: close\r\n\r\n");
        CHECK(answer.starts_with("HTTP/1.1 200 OK\r\n"));
        CHECK(answer.find("X-Test: yes\r\n") != answer.npos);
        CHECK(answer.ends_with("\r\n\r\nGET /a/b c=d&e here:1 secret"));
    }

    TEST_CASE("HEAD has the length and no body, 304 has neither") {
        Echo pages;
        auto server = HttpServer::start(local_options(), pages);
        REQUIRE(server.ok());
        const std::string head =
            ask((*server)->port(), "HEAD /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        CHECK(head.find("Content-Length: 11\r\n") != head.npos);
        CHECK(head.ends_with("\r\n\r\n"));
        const std::string same =
            ask((*server)->port(), "GET /nothing HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        CHECK(same.starts_with("HTTP/1.1 304"));
        CHECK(same.ends_with("\r\n\r\n"));
    }

    TEST_CASE("several requests go over one connection, one after the other") {
        Echo pages;
        auto server = HttpServer::start(local_options(), pages);
        REQUIRE(server.ok());
        const std::string answers = ask((*server)->port(),
                                        "GET /1 HTTP/1.1\r\nHost: h\r\n\r\n"
                                        "GET /2 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        const auto first = answers.find("GET /1");
        REQUIRE(first != answers.npos);
        CHECK(answers.find("GET /2", first) != answers.npos);
    }

    TEST_CASE("what is no request, or has a body, is the last of its connection") {
        Echo pages;
        auto server = HttpServer::start(local_options(), pages);
        REQUIRE(server.ok());
        const std::uint16_t port = (*server)->port();
        CHECK(ask(port, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
        CHECK(ask(port, "GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(9000, 'x') + "\r\n\r\n")
                  .find("200") == std::string::npos);
        const std::string body = ask(port,
                                     "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 30\r\n\r\n"
                                     "GET /smuggled HTTP/1.1\r\n\r\n");
        CHECK(body.starts_with("HTTP/1.1 413"));
        CHECK(body.find("smuggled") == body.npos);
        const std::string chunked =
            ask(port, "GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
        CHECK(chunked.starts_with("HTTP/1.1 413"));
    }

    TEST_CASE("of two names that a request is for neither counts") {
        Echo pages;
        auto server = HttpServer::start(local_options(), pages);
        REQUIRE(server.ok());
        const std::string answer = ask((*server)->port(),
                                       "GET / HTTP/1.1\r\nHost: good\r\nHost: bad\r\n"
                                       "Connection: close\r\n\r\n");
        CHECK(answer.find("good") == answer.npos);
        CHECK(answer.find("bad") == answer.npos);
    }

    TEST_CASE("a client that says nothing, or stops in its header, loses its connection") {
        Echo pages;
        HttpServerOptions options = local_options();
        options.header_time = std::chrono::milliseconds(300);
        auto server = HttpServer::start(options, pages);
        REQUIRE(server.ok());
        // read_all() returns when the server closes; its own limit would leave errno at EAGAIN.
        const Fd silent = connect_to((*server)->port());
        const Fd slow = connect_to((*server)->port());
        send_text(slow, "GET / HT");
        errno = 0;
        CHECK(read_all(silent).empty());
        CHECK(read_all(slow).empty());
        CHECK(errno != EAGAIN);
    }

    TEST_CASE("one that comes when all places are taken gets that of the one silent the longest") {
        Echo pages;
        HttpServerOptions options = local_options();
        options.connections = 3;
        auto server = HttpServer::start(options, pages);
        REQUIRE(server.ok());
        const std::uint16_t port = (*server)->port();
        const Fd silent = connect_to(port);
        const Fd half = connect_to(port);
        send_text(half, "GET / HT");
        const Fd open = connect_to(port);
        send_text(open, kGet);
        CHECK(read_answer(open).ends_with("GET /a  h "));
        // Each of these has an answer at once, though the first two have their places for a minute.
        CHECK(ask(port, kLastGet).ends_with("GET /a  h "));
        errno = 0;
        CHECK(read_all(silent).empty());
        CHECK(errno != EAGAIN);
        const Fd more = connect_to(port);
        const Fd most = connect_to(port);
        send_text(most, kGet);
        CHECK(read_answer(most).ends_with("GET /a  h "));
        errno = 0;
        CHECK(read_all(half).empty());
        CHECK(errno != EAGAIN);
    }

    TEST_CASE("clients that read nothing of many answers keep no others out") {
        Echo pages;
        pages.padding = std::string(1 << 20, 'x');
        HttpServerOptions options = local_options();
        options.connections = 2;
        auto server = HttpServer::start(options, pages);
        REQUIRE(server.ok());
        const std::uint16_t port = (*server)->port();
        const Fd first = connect_to(port);
        const Fd second = connect_to(port);
        for (const Fd* one : {&first, &second}) {
            // More than what the sockets between them hold.
            for (int i = 0; i < 50; ++i) send_text(*one, kGet);
        }
        CHECK(ask(port, kLastGet).size() > pages.padding.size());
        CHECK(ask(port, kLastGet).size() > pages.padding.size());
    }

    TEST_CASE("a thousand strangers don't take the place of one that is known") {
        Echo pages;
        HttpServerOptions options = local_options();
        options.connections = 2;
        auto server = HttpServer::start(options, pages);
        REQUIRE(server.ok());
        const std::uint16_t port = (*server)->port();
        const Fd known = connect_to(port);
        send_text(known, kKnownGet);
        CHECK(read_answer(known).ends_with("GET /a  h secret"));
        for (int i = 0; i < 1000; ++i) {
            const Fd stranger = connect_to(port);
            if (i % 3 == 0) send_text(stranger, "GET");
        }
        send_text(known, kKnownGet);
        CHECK(read_answer(known).ends_with("GET /a  h secret"));
        // When all are known a stranger has no place, and gets one when one of them goes.
        {
            const Fd other = connect_to(port);
            send_text(other, kKnownGet);
            CHECK(read_answer(other).ends_with("GET /a  h secret"));
            const Fd stranger = connect_to(port);
            errno = 0;
            CHECK(read_all(stranger).empty());
            CHECK(errno != EAGAIN);
        }
        // The server learns of an end by itself, a moment later: asked until then.
        std::string answer;
        for (int i = 0; i < 1000 && answer.empty(); ++i) answer = ask(port, kLastGet);
        CHECK(answer.ends_with("GET /a  h "));
    }

    TEST_CASE("it listens where other hosts can't come, and says so otherwise") {
        Echo pages;
        HttpServerOptions options = local_options();
        for (const char* open : {"0.0.0.0:0", "192.0.2.1:80", "[::]:0"}) {
            CAPTURE(open);
            options.listen = open;
            const auto server = HttpServer::start(options, pages);
            REQUIRE_FALSE(server.ok());
            CHECK(server.error().code == Errc::kDenied);
        }
        for (const char* odd : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "localhost:80",
                                "::1:80", "127.0.0.1:80x", "unix:"}) {
            CAPTURE(odd);
            options.listen = odd;
            const auto server = HttpServer::start(options, pages);
            REQUIRE_FALSE(server.ok());
            CHECK(server.error().code == Errc::kInvalid);
        }
    }

    TEST_CASE("a place that is taken is left to its owner") {
        Echo pages;
        auto first = HttpServer::start(local_options(), pages);
        REQUIRE(first.ok());
        HttpServerOptions options = local_options();
        options.listen = "127.0.0.1:" + std::to_string((*first)->port());
        const auto second = HttpServer::start(options, pages);
        REQUIRE_FALSE(second.ok());
        CHECK(second.error().code == Errc::kExists);
    }

    TEST_CASE("a unix socket is its user's alone, and goes with the server") {
        Echo pages;
        const test_support::TemporaryDirectory folder;
        const std::string path = folder.path() + "/page.sock";
        HttpServerOptions options = local_options();
        options.listen = "unix:" + path;
        {
            auto server = HttpServer::start(options, pages);
            REQUIRE(server.ok());
            CHECK((*server)->port() == 0);
            struct stat status {};
            REQUIRE(::stat(path.c_str(), &status) == 0);
            CHECK((status.st_mode & 0777) == 0600);
            const auto second = HttpServer::start(options, pages);
            REQUIRE_FALSE(second.ok());
            CHECK(second.error().code == Errc::kExists);
            CHECK(::access(path.c_str(), F_OK) == 0);  // the refused one has not removed it
            Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
            sockaddr_un address{};
            address.sun_family = AF_UNIX;
            path.copy(address.sun_path, sizeof address.sun_path - 1);
            REQUIRE(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address),
                              sizeof address) == 0);
            send_text(socket, "GET /u HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
            CHECK(read_all(socket).ends_with("GET /u  h "));
        }
        CHECK(::access(path.c_str(), F_OK) != 0);
    }
}

}  // namespace
