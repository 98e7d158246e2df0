#include "fabricd/bridge/metrics_bridge.hpp"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>

#include "fabricd/server/metrics_server.hpp"
#include "libfabricshm/base/reason.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using fabricshm::Errc;
using fabricshm::Fd;
using test_support::TemporaryDirectory;

namespace {

constexpr const char* kGet = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

/// A bridge on a thread of its own, to the socket of `path`.
class Running {
  public:
    explicit Running(const std::string& path,
                     fabricshm::Duration time_limit = std::chrono::seconds(20)) {
        BridgeOptions options;
        options.socket_path = path;
        options.port = 0;
        options.connections = 2;
        options.time_limit = time_limit;
        auto bridge = MetricsBridge::open(options);
        REQUIRE(bridge.ok());
        port = bridge->port();
        thread_ =
            std::thread([this, own = std::move(bridge).value()]() mutable { own.run(stop_); });
    }
    ~Running() {
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
        thread_.join();
    }
    std::uint16_t port = 0;

  private:
    Fd stop_{::eventfd(0, EFD_CLOEXEC)};
    std::thread thread_;
};

Fd connect_to(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    return socket;
}

std::string ask(const Fd& socket, const std::string& request) {
    const bool asks = !request.empty();
    if (asks && ::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "";
    std::string answer;
    char piece[65536];
    for (ssize_t got = 1; got > 0;) {
        got = ::recv(socket.get(), piece, sizeof piece, 0);
        if (got > 0) answer.append(piece, static_cast<std::size_t>(got));
    }
    return answer;
}

}  // namespace

TEST_SUITE("bridge.metrics_bridge") {
    TEST_CASE("a scraper over TCP gets the page that the daemon serves on its unix socket") {
        const TemporaryDirectory folder;
        const std::string path = folder.file("metrics.sock");
        // Larger than every buffer on the way.
        const std::string page(3'000'000, 'x');
        const auto server = MetricsServer::start({path, 0}, [&] { return page; });
        REQUIRE(server.ok());
        const Running bridge(path);
        for (int i = 0; i < 3; ++i) {
            const std::string answer = ask(connect_to(bridge.port), kGet);
            CHECK(answer.starts_with("HTTP/1.1 200 OK\r\n"));
            CHECK(answer.size() > page.size());
            CHECK(answer.ends_with("xxx"));
        }
        // One that says nothing holds up no other, nor one that goes at once.
        const Fd silent = connect_to(bridge.port);
        connect_to(bridge.port).reset();
        CHECK(ask(connect_to(bridge.port), "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        // Nor those that have shut down their half already.
        const Fd half = connect_to(bridge.port);
        REQUIRE(::send(half.get(), kGet, std::string(kGet).size(), MSG_NOSIGNAL) > 0);
        ::shutdown(half.get(), SHUT_WR);
        CHECK(ask(half, "").starts_with("HTTP/1.1 200"));
    }

    TEST_CASE("without a daemon a connection ends at once, and the next one finds it again") {
        const TemporaryDirectory folder;
        const std::string path = folder.file("metrics.sock");
        const Running bridge(path);
        CHECK(ask(connect_to(bridge.port), kGet).empty());
        const auto server = MetricsServer::start({path, 0}, [] { return std::string("up 1\n"); });
        REQUIRE(server.ok());
        CHECK(ask(connect_to(bridge.port), kGet).ends_with("up 1\n"));
    }

    TEST_CASE("those that say nothing are closed when their time is up, and others come in") {
        const TemporaryDirectory folder;
        const std::string path = folder.file("metrics.sock");
        const auto server = MetricsServer::start({path, 0}, [] { return std::string("up 1\n"); });
        REQUIRE(server.ok());
        const Running bridge(path, std::chrono::milliseconds(50));
        const Fd first = connect_to(bridge.port);
        const Fd second = connect_to(bridge.port);
        CHECK(ask(first, "").find("200") == std::string::npos);
        CHECK(ask(second, "").find("200") == std::string::npos);
    }

    TEST_CASE(
        "an address that is none, a port that is taken and a path that is too long are reported") {
        BridgeOptions options;
        options.socket_path = "/x";
        options.port = 0;
        options.address = "localhost";
        const auto name = MetricsBridge::open(options);
        REQUIRE_FALSE(name.ok());
        CHECK(explanation_of(name.error()) == "'localhost' is no IPv4 address in numbers");
        options.address = "127.0.0.1";
        const auto first = MetricsBridge::open(options);
        REQUIRE(first.ok());
        options.port = first->port();
        CHECK(MetricsBridge::open(options).error().code == Errc::kBusy);
        options.socket_path = std::string(200, 'x');
        CHECK(MetricsBridge::open(options).error().code == Errc::kInvalid);
    }
}
