#include "fabricd/data/serve/data_server.hpp"

#include <grp.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using namespace fabricshm::proto;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Fd;
using fabricshm::kNoWait;
using fabricshm::UnixSocket;

namespace {

constexpr int kBacklog = 256;
constexpr std::size_t kConnectionsMax = 4096;
// Of one connection: beyond these it is not read until some are answered.
constexpr std::size_t kUnansweredMax = 1024;
constexpr int kPacketsATurn = 64;
constexpr auto kBadPacketPause = std::chrono::seconds(10);

Result<void> give_to_group(const std::string& path, const std::string& name) {
    if (name.empty()) return {};
    errno = 0;
    const ::group* group = ::getgrnam(name.c_str());
    if (group == nullptr) {
        return fabricshm::explain({Errc::kInvalid, 0, "group of the data socket"},
                                  "there is no group \"%s\" (service.group)", name.c_str());
    }
    if (::chown(path.c_str(), static_cast<uid_t>(-1), group->gr_gid) != 0 ||
        ::chmod(path.c_str(), 0660) != 0) {
        return fabricshm::error_from_errno(errno, "set group of the data socket");
    }
    return {};
}

}  // namespace

Result<std::unique_ptr<DataServer>> DataServer::open(const Options& options, EventLoop& loop,
                                                     Handler handler) {
    std::unique_ptr<DataServer> server(new DataServer(loop, std::move(handler)));
    FABRIC_TRY(server->listener_, UnixSocket::listen(options.path, 0600, kBacklog));
    server->path_ = options.path;
    FABRIC_TRY_VOID(give_to_group(options.path, options.group));
    FABRIC_TRY(server->listening_,
               loop.add(server->listener_.get(), EPOLLIN,
                        [server = server.get()](std::uint32_t) { server->accept(); }));
    return server;
}

DataServer::~DataServer() {
    for (auto& [id, connection] : connections_) loop_.remove(connection.watch);
    if (!listener_) return;
    loop_.remove(listening_);
    ::unlink(path_.c_str());
}

void DataServer::accept() {
    for (int i = 0; i < kPacketsATurn; ++i) {
        auto socket = listener_.accept(kNoWait);
        if (!socket.ok()) return;
        const auto peer = socket->peer();
        if (!peer.ok() || connections_.size() >= kConnectionsMax) continue;
        const std::uint64_t id = ++last_;
        Connection& connection = connections_[id];
        connection.socket = std::move(socket).value();
        connection.peer = *peer;
        connection.events = EPOLLIN;
        const auto watch = loop_.add(connection.socket.get(), EPOLLIN,
                                     [this, id](std::uint32_t events) { serve(id, events); });
        if (watch.ok()) {
            connection.watch = *watch;
        } else {
            connections_.erase(id);
        }
    }
}

void DataServer::serve(std::uint64_t id, std::uint32_t events) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    if ((events & EPOLLOUT) != 0 && !write_some(found->second)) return end(id);
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !read_some(id)) return end(id);
    const auto still = connections_.find(id);
    if (still != connections_.end()) watch(still->second);
}

// False: the connection is over. Its requests are handled as they come; a handler may answer at
// once.
bool DataServer::read_some(std::uint64_t id) {
    for (int i = 0; i < kPacketsATurn; ++i) {
        const auto found = connections_.find(id);
        if (found == connections_.end()) return true;
        Connection& connection = found->second;
        if (connection.unanswered + connection.out.size() >= kUnansweredMax) return true;
        alignas(8) std::array<std::byte, kDataPacketMax> buffer;
        std::array<Fd, 1> descriptors;
        const auto got = connection.socket.receive(buffer, descriptors, kNoWait);
        if (!got.ok()) return got.error().code == Errc::kTimeout;
        auto message = decode_data_message(std::span(buffer).first(got->bytes));
        if (!message.ok() || message->is_reply) {
            log_bad_packet(connection.peer.pid);
            return false;
        }
        ++connection.unanswered;
        handler_({id, connection.peer, std::move(message).value(), std::move(descriptors[0])});
    }
    return true;
}

// A process that sends such packets without end fills no log.
void DataServer::log_bad_packet(int pid) {
    const TimePoint now = fabricshm::Clock::now();
    if (now < next_line_) {
        ++unlogged_;
        return;
    }
    next_line_ = now + kBadPacketPause;
    const std::string others =
        unlogged_ == 0 ? "" : ", after " + std::to_string(unlogged_) + " more that were not logged";
    unlogged_ = 0;
    fabricshm::log(fabricshm::LogLevel::kWarning, "process %d: no request of this protocol%s", pid,
                   others.c_str());
}

bool DataServer::write_some(Connection& connection) {
    while (!connection.out.empty()) {
        const Packet& packet = connection.out.front();
        const int fd = packet.descriptor != nullptr ? packet.descriptor->get() : -1;
        const auto sent = connection.socket.send(
            packet.bytes, std::span(&fd, packet.descriptor != nullptr ? 1 : 0), kNoWait);
        if (!sent.ok()) return sent.error().code == Errc::kTimeout;
        connection.out.pop_front();
    }
    return true;
}

void DataServer::watch(Connection& connection) {
    std::uint32_t events = 0;
    const std::size_t queued = connection.unanswered + connection.out.size();
    if (queued < kUnansweredMax) events |= EPOLLIN;
    if (!connection.out.empty()) events |= EPOLLOUT;
    if (events == connection.events) return;
    connection.events = events;
    loop_.change(connection.watch, events);
}

void DataServer::answer(std::uint64_t id, DataMessage message,
                        std::shared_ptr<const Fd> descriptor) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    Connection& connection = found->second;
    message.is_reply = true;
    if (message.payload.size() > kDataPayloadMax) message.payload.resize(kDataPayloadMax);
    auto packet = encode(message);
    if (connection.unanswered > 0) --connection.unanswered;
    connection.out.push_back({std::move(packet).value(), std::move(descriptor)});
    // A broken connection is found by its reader.
    (void)write_some(connection);
    watch(connection);
}

void DataServer::end(std::uint64_t id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    loop_.remove(found->second.watch);
    connections_.erase(found);
    if (on_end) on_end(id);
}

}  // namespace fabricd
