#include "libfabricshm/client/connection.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/client/fork_guard.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricshm {

namespace {

// Until calls are let through, the ids of requests only have to differ from each other.
constexpr std::uint64_t kHelloId = 1;

// One request and its answer, on a socket that has no other reader: no thread reads it yet. News
// may come first, since a session that goes on is in its arenas before it has presented them; all
// of it goes to `news`. Any other packet than the answer means that the daemon is wrong.
Result<proto::Message> exchange(const UnixSocket& socket, const proto::Message& request,
                                std::span<const int> descriptors, const char* step, LossNews& news,
                                TimePoint deadline) {
    FABRIC_TRY_VOID(socket.send(proto::bytes_of(request), descriptors, deadline));
    proto::Message reply;
    for (;;) {
        FABRIC_TRY(const Received received,
                   socket.receive(proto::writable_bytes_of(reply), {}, deadline));
        FABRIC_TRY_VOID(proto::check_reply(reply, received.bytes));
        if (!proto::is_news(reply.header)) break;
        // Of other news a session in the middle of this misses nothing that it could not do
        // without.
        const bool is_loss = proto::type_of(reply.header) == proto::Type::kPoisoned;
        if (is_loss && reply.header.status == 0) news.push_back(reply.region);
    }
    const bool ours = reply.header.request_id == request.header.request_id &&
                      proto::type_of(reply.header) == proto::type_of(request.header);
    if (!ours) return Error{Errc::kCorrupt, 0, step};
    if (reply.header.status != 0) return proto::error_of(reply, step);
    return reply;
}

// To a caller that only wants to attach, an end of the connection is an absent daemon.
Error as_daemon_error(const Error& error) {
    const Error absent{Errc::kDaemon, 0, "attach"};
    if (error.code == Errc::kClosed) {
        return explain(
            absent,
            "fabricd closed the connection unanswered: it ends, or has no descriptors or "
            "connections left (limits.sessions); its log says which");
    }
    if (error.code != Errc::kTimeout) return error;
    return explain(absent, "fabricd took the connection, but does not answer in time");
}

}  // namespace

Result<std::shared_ptr<const UnixSocket>> connect_first(std::vector<std::string>& paths,
                                                        TimePoint deadline) {
    Error last{Errc::kDaemon, 0, "connect"};
    for (auto path = paths.begin(); path != paths.end(); ++path) {
        auto socket = fork_guard::connect(*path, deadline);
        if (!socket.ok()) {
            // "Not allowed" says more than "no daemon there" about another path.
            if (last.code == Errc::kDaemon) last = socket.error();
            continue;
        }
        // Tried first from now on: a daemon comes back where it was.
        std::rotate(paths.begin(), path, path + 1);
        return socket;
    }
    if (last.code == Errc::kDenied) {
        return explain(last,
                       "permission denied: ask for server.allow_uids, server.socket_group and "
                       "server.socket_mode of fabricd");
    }
    const bool absent = last.code == Errc::kDaemon || last.code == Errc::kNotFound;
    if (!absent) return last;
    return explain({Errc::kDaemon, 0, "connect"},
                   "no fabricd listens there: start it, or name its socket by FABRIC_SOCKET");
}

bool may_come_back(const std::vector<std::string>& paths) {
    return std::any_of(paths.begin(), paths.end(), [](const std::string& path) {
        struct stat status {};
        const std::string folder = path.substr(0, path.rfind('/'));
        return !folder.empty() && ::stat(folder.c_str(), &status) == 0;
    });
}

Result<void> greet(const UnixSocket& socket, const Introduction& introduction,
                   SessionIdentity& identity, LossNews& news, TimePoint deadline) {
    proto::Message request = proto::make_request(proto::Type::kHello, kHelloId);
    // 0 and an empty token the first time; afterwards the daemon goes on with the session that they
    // name.
    request.hello.session_id = identity.id;
    std::memcpy(request.hello.token, identity.token.data(), identity.token.size());
    proto::set_label(request.hello.label, introduction.label);
    if (!introduction.device.empty()) {
        FABRIC_TRY_VOID(proto::set_name(request.hello.device, introduction.device, "device name"));
    }
    const auto reply = exchange(socket, request, {}, "attach", news, deadline);
    if (!reply.ok()) return as_daemon_error(reply.error());
    const proto::Hello& hello = reply->hello;
    identity.id = hello.session_id;
    identity.daemon_epoch = hello.daemon_epoch;
    std::memcpy(identity.instance.data(), hello.instance, identity.instance.size());
    std::memcpy(identity.pool.data(), hello.pool, identity.pool.size());
    std::memcpy(identity.visibility.data(), hello.visibility, identity.visibility.size());
    identity.visibility.back() = '\0';
    identity.last_type = hello.last_type;
    std::memcpy(identity.token.data(), hello.token, identity.token.size());
    return {};
}

Result<void> present_arenas(const UnixSocket& socket, const ArenaDescriptors& arenas,
                            const OtherDescriptors& others, LossNews& news, TimePoint deadline) {
    std::uint64_t request_id = kHelloId;
    for (const auto& [id, descriptor] : arenas) {
        proto::Message request = proto::make_request(proto::Type::kArenaAdopt, ++request_id);
        request.arena.arena_id = id;
        std::vector<int> numbers{descriptor->get()};
        if (const auto more = others.find(id); more != others.end()) {
            for (const Fd& other : *more->second) numbers.push_back(other.get());
        }
        const auto reply = exchange(socket, request, numbers, "adopt arena", news, deadline);
        // A refusal of one arena concerns that arena, an end of the connection all of them.
        if (reply.ok()) continue;
        const Error& error = reply.error();
        const bool connection_failed = error.code == Errc::kClosed || error.code == Errc::kTimeout;
        if (connection_failed) return as_daemon_error(error);
        log(LogLevel::kWarning, "fabricd does not take arena %llu back: %s",
            static_cast<unsigned long long>(id), describe(error).c_str());
    }
    return {};
}

Result<void> present_pin_pages(const UnixSocket& socket, const OwnPinPages& pages, LossNews& news,
                               TimePoint deadline) {
    std::uint64_t request_id = kHelloId;
    for (const auto& [arena, page] : pages) {
        proto::Message request = proto::make_request(proto::Type::kPinAdopt, ++request_id);
        request.pin_page.arena_id = arena;
        request.pin_page.number = page.number;
        const int number = page.descriptor->get();
        const auto reply =
            exchange(socket, request, std::span(&number, 1), "adopt pin page", news, deadline);
        if (reply.ok()) continue;
        const Error& error = reply.error();
        const bool connection_failed = error.code == Errc::kClosed || error.code == Errc::kTimeout;
        if (connection_failed) return as_daemon_error(error);
        log(LogLevel::kWarning, "fabricd does not take the pin page of arena %llu back: %s",
            static_cast<unsigned long long>(arena), describe(error).c_str());
    }
    return {};
}

}  // namespace fabricshm
