#include "fabricd/bridge/metrics_bridge.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <vector>

#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Fd;
using fabricshm::Result;
using fabricshm::TimePoint;

namespace {

constexpr std::size_t kPieceBytes = 64 * 1024;
constexpr int kBacklog = 64;

Result<Fd> open_socket(int family, const char* step) {
    Fd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) return fabricshm::error_from_errno(errno, step);
    return socket;
}

/// One direction: what was read from one end and not yet written to the other.
struct Flow {
    std::vector<char> bytes;
    bool ended = false;  // nothing more will be read

    bool wants() const { return !ended && bytes.size() < kPieceBytes; }

    /// False when the connection is broken.
    bool read_from(int socket) {
        char piece[16 * 1024];
        const ssize_t got = ::recv(socket, piece, sizeof piece, 0);
        if (got < 0) return errno == EAGAIN || errno == EINTR;
        if (got == 0) ended = true;
        bytes.insert(bytes.end(), piece, piece + std::max<ssize_t>(got, 0));
        return true;
    }
    bool write_to(int socket) {
        const ssize_t took = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (took < 0) return errno == EAGAIN || errno == EINTR;
        bytes.erase(bytes.begin(), bytes.begin() + took);
        return true;
    }
};

/// A scraper and the daemon.
struct Pair {
    Fd client;
    Fd daemon;
    Flow question;  // from the client
    Flow answer;
    TimePoint until;
};

short events_of(const Flow& in, const Flow& out) {
    return static_cast<short>((in.wants() ? POLLIN : 0) | (out.bytes.empty() ? 0 : POLLOUT));
}

// Left out where nothing is waited for: poll() would report a hang-up without end.
pollfd entry_of(const Fd& socket, short events) {
    return {events != 0 ? socket.get() : -1, events, 0};
}

// False when the pair has nothing more to do. The end of the answer ends it: fabricd closes after
// each. The end of the request does not, since some clients shut down their half at once.
bool carry(Pair& pair, short client_events, short daemon_events) {
    constexpr short kIn = POLLIN | POLLHUP | POLLERR;
    if (pair.question.wants() && (client_events & kIn) != 0 &&
        !pair.question.read_from(pair.client.get())) {
        return false;
    }
    if (pair.answer.wants() && (daemon_events & kIn) != 0 &&
        !pair.answer.read_from(pair.daemon.get())) {
        return false;
    }
    const bool asks = pair.daemon && !pair.question.bytes.empty();
    if (asks && !pair.question.write_to(pair.daemon.get())) return false;
    if (!pair.answer.bytes.empty() && !pair.answer.write_to(pair.client.get())) return false;
    return !(pair.answer.ended && pair.answer.bytes.empty());
}

}  // namespace

struct MetricsBridge::Impl {
    sockaddr_un daemon{};
    Fd listener;
    int most = 0;
    fabricshm::Duration time_limit{};
    std::vector<Pair> pairs;

    void take_client();
    std::vector<pollfd> entries(const Fd& stop) const;
    int milliseconds_left() const;
    bool reach_daemon(Pair& pair) const;
    void serve(const std::vector<pollfd>& entries);
};

// Once there is a request: the daemon serves one client after the other, and would wait for one
// that says nothing. False without a daemon: the client's end closes then. A unix socket connects
// at once or never.
bool MetricsBridge::Impl::reach_daemon(Pair& pair) const {
    if (pair.daemon || pair.question.bytes.empty()) return !pair.question.ended || pair.daemon;
    auto socket = open_socket(AF_UNIX, "make socket");
    if (!socket.ok()) return false;
    pair.daemon = std::move(socket).value();
    return ::connect(pair.daemon.get(), reinterpret_cast<const sockaddr*>(&daemon),
                     sizeof daemon) == 0;
}

void MetricsBridge::Impl::take_client() {
    Pair pair;
    pair.client = Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!pair.client) return;  // it went away again
    pair.until = Clock::now() + time_limit;
    pairs.push_back(std::move(pair));
}

// The stop, the listener while there is a place, then two of each pair.
std::vector<pollfd> MetricsBridge::Impl::entries(const Fd& stop) const {
    const bool room = static_cast<int>(pairs.size()) < most;
    std::vector<pollfd> entries{{stop.get(), POLLIN, 0}, {room ? listener.get() : -1, POLLIN, 0}};
    for (const Pair& pair : pairs) {
        entries.push_back(entry_of(pair.client, events_of(pair.question, pair.answer)));
        // A descriptor of -1, as before there is a request, is left out as well.
        entries.push_back(entry_of(pair.daemon, events_of(pair.answer, pair.question)));
    }
    return entries;
}

int MetricsBridge::Impl::milliseconds_left() const {
    if (pairs.empty()) return -1;
    TimePoint first = TimePoint::max();
    for (const Pair& pair : pairs) first = std::min(first, pair.until);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(first - Clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
}

void MetricsBridge::Impl::serve(const std::vector<pollfd>& entries) {
    const TimePoint now = Clock::now();
    std::vector<Pair> left;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        const bool goes_on =
            carry(pairs[i], entries[2 + 2 * i].revents, entries[3 + 2 * i].revents) &&
            reach_daemon(pairs[i]);
        if (goes_on && now < pairs[i].until) left.push_back(std::move(pairs[i]));
    }
    pairs = std::move(left);
    if (entries[1].revents != 0) take_client();
}

MetricsBridge::MetricsBridge(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
MetricsBridge::MetricsBridge(MetricsBridge&&) noexcept = default;
MetricsBridge::~MetricsBridge() = default;

bool parse_listen(const std::string& text, BridgeOptions& options) {
    const auto colon = text.rfind(':');
    if (colon == std::string::npos || colon == 0) return false;
    std::uint16_t port = 0;
    const char* end = text.data() + text.size();
    const auto [stop, bad] = std::from_chars(text.data() + colon + 1, end, port);
    if (bad != std::errc{} || stop != end) return false;
    options.address = text.substr(0, colon);
    options.port = port;
    return true;
}

Result<MetricsBridge> MetricsBridge::open(const BridgeOptions& options) {
    auto impl = std::make_unique<Impl>();
    impl->most = options.connections;
    impl->time_limit = options.time_limit;
    impl->daemon.sun_family = AF_UNIX;
    if (options.socket_path.empty() || options.socket_path.size() >= sizeof impl->daemon.sun_path) {
        return fabricshm::explain({Errc::kInvalid, 0, "socket"},
                                  "the path of the socket is too long or empty");
    }
    std::memcpy(impl->daemon.sun_path, options.socket_path.c_str(), options.socket_path.size());

    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(options.port);
    if (::inet_pton(AF_INET, options.address.c_str(), &address.sin_addr) != 1) {
        return fabricshm::explain({Errc::kInvalid, 0, "address"},
                                  "'%s' is no IPv4 address in numbers", options.address.c_str());
    }
    FABRIC_TRY(impl->listener, open_socket(AF_INET, "make socket"));
    const int on = 1;
    ::setsockopt(impl->listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(impl->listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        const bool taken = errno == EADDRINUSE;
        const Error error =
            taken ? Error{Errc::kBusy, 0, "listen"} : fabricshm::error_from_errno(errno, "listen");
        if (!taken) return error;
        return explain(error, "port %u is taken (--listen)", unsigned{options.port});
    }
    if (::listen(impl->listener.get(), kBacklog) != 0) {
        return fabricshm::error_from_errno(errno, "listen");
    }
    return MetricsBridge(std::move(impl));
}

std::uint16_t MetricsBridge::port() const {
    sockaddr_in address{};
    socklen_t bytes = sizeof address;
    (void)::getsockname(impl_->listener.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
    return ntohs(address.sin_port);
}

void MetricsBridge::run(const Fd& stop) {
    for (;;) {
        auto entries = impl_->entries(stop);
        const int ready = ::poll(entries.data(), entries.size(), impl_->milliseconds_left());
        if (ready < 0 && errno != EINTR) return;
        if (entries[0].revents != 0) return;
        impl_->serve(entries);
    }
}

}  // namespace fabricd
