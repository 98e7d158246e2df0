#include "tests/support/wire_client.hpp"

#include <sched.h>

#include <algorithm>

#include "libfabricshm/proto/codec.hpp"

namespace test_support {

using namespace fabricshm;
namespace proto = fabricshm::proto;
using proto::Message;
using proto::Type;

namespace {

void put_name(char (&field)[proto::kNameBytes], const char* name) {
    [[maybe_unused]] const auto set = proto::set_name(field, name, "name");
}

Message group_request(Type type, std::uint64_t group_id, std::int64_t timeout_ms) {
    Message request = proto::make_request(type, 1);
    request.group.group_id = group_id;
    request.group.rank = -1;
    request.group.timeout_ms = timeout_ms;
    return request;
}

Message region_request(Type type, const proto::Region& region) {
    Message request = proto::make_request(type, 1);
    request.region = region;
    return request;
}

}  // namespace

Message join_request(std::uint64_t arena_id, const char* name, int rank, int world,
                     std::int64_t timeout_ms) {
    Message request = proto::make_request(Type::kGroupJoin, 1);
    request.group.arena_id = arena_id;
    put_name(request.group.name, name);
    request.group.rank = rank;
    request.group.world = world;
    request.group.timeout_ms = timeout_ms;
    return request;
}

Message arena_request(const char* name, Bytes bytes, std::uint32_t flags) {
    Message request = proto::make_request(Type::kArenaOpen, 1);
    put_name(request.arena_open.name, name);
    request.arena_open.bytes = bytes;
    request.arena_open.flags = flags;
    return request;
}

Result<WireClient> WireClient::connect(const std::string& socket_path, Duration timeout) {
    const TimePoint deadline = Clock::now() + timeout;
    for (;;) {
        auto socket = UnixSocket::connect(socket_path, deadline);
        if (socket.ok()) {
            WireClient client;
            client.socket_ = std::move(socket).value();
            return client;
        }
        if (socket.error().code != Errc::kDaemon || Clock::now() >= deadline) {
            return socket.error();
        }
        ::sched_yield();
    }
}

Result<WireClient> WireClient::attach(const std::string& socket_path, const char* label,
                                      Duration timeout) {
    FABRIC_TRY(WireClient client, connect(socket_path, timeout));
    FABRIC_TRY_VOID(client.hello(label));
    return client;
}

Result<std::uint64_t> WireClient::send(Message request, int fd) {
    request.header.request_id = ++last_request_;
    const auto descriptors = fd < 0 ? std::span<const int>() : std::span<const int>(&fd, 1);
    FABRIC_TRY_VOID(socket_.send(proto::bytes_of(request), descriptors, Clock::now() + kTimeout));
    return last_request_;
}

Result<Message> WireClient::receive() {
    Message reply{};
    Fd descriptors[1];
    FABRIC_TRY(const Received received, socket_.receive(proto::writable_bytes_of(reply),
                                                        descriptors, Clock::now() + kTimeout));
    FABRIC_TRY_VOID(proto::check_reply(reply, received.bytes));
    if (received.descriptors == 1) descriptor = std::move(descriptors[0]);
    return reply;
}

Result<Message> WireClient::ask(const Message& request, int fd) {
    FABRIC_TRY(const std::uint64_t id, send(request, fd));
    for (;;) {
        FABRIC_TRY(const Message reply, receive());
        if (reply.header.request_id != id) continue;
        if (reply.header.status != 0) return proto::error_of(reply, "ask");
        return reply;
    }
}

Result<void> WireClient::hello(const char* label) {
    Message request = proto::make_request(Type::kHello, 1);
    proto::set_label(request.hello.label, label);
    FABRIC_TRY(const Message reply, ask(request));
    session = reply.hello;
    return {};
}

Result<void> WireClient::hello_again(const WireClient& other) {
    Message request = proto::make_request(Type::kHello, 1);
    request.hello.session_id = other.session.session_id;
    std::copy(std::begin(other.session.token), std::end(other.session.token),
              std::begin(request.hello.token));
    FABRIC_TRY(const Message reply, ask(request));
    session = reply.hello;
    return {};
}

Result<proto::ArenaOpen> WireClient::open_arena(const char* name, Bytes bytes,
                                                std::uint32_t flags) {
    FABRIC_TRY(const Message reply, ask(arena_request(name, bytes, flags)));
    return reply.arena_open;
}

Result<void> WireClient::adopt(std::uint64_t arena_id, int fd) {
    Message request = proto::make_request(Type::kArenaAdopt, 1);
    request.arena.arena_id = arena_id;
    FABRIC_TRY([[maybe_unused]] const Message reply, ask(request, fd));
    return {};
}

Result<void> WireClient::close_arena(std::uint64_t arena_id) {
    Message request = proto::make_request(Type::kArenaClose, 1);
    request.arena.arena_id = arena_id;
    FABRIC_TRY([[maybe_unused]] const Message reply, ask(request));
    return {};
}

Result<proto::Region> WireClient::create_region(std::uint64_t arena_id, Bytes bytes) {
    FABRIC_TRY(const Message reply,
               ask(region_request(Type::kRegionCreate, {arena_id, 0, 0, 0, bytes})));
    return reply.region;
}

Result<void> WireClient::free_region(const proto::Region& region) {
    FABRIC_TRY([[maybe_unused]] const Message reply,
               ask(region_request(Type::kRegionFree, region)));
    return {};
}

Result<proto::Region> WireClient::open_region(const proto::Region& region) {
    FABRIC_TRY(const Message reply, ask(region_request(Type::kRegionOpen, region)));
    return reply.region;
}

Result<proto::Tensor> WireClient::create_tensor(std::uint64_t arena_id, const char* name,
                                                std::int64_t elements) {
    Message request = proto::make_request(Type::kTensorCreate, 1);
    request.tensor.region.arena_id = arena_id;
    put_name(request.tensor.name, name);
    request.tensor.dtype = 1;  // f32
    request.tensor.ndim = 1;
    request.tensor.shape[0] = elements;
    FABRIC_TRY(const Message reply, ask(request));
    return reply.tensor;
}

Result<proto::Tensor> WireClient::open_tensor(std::uint64_t arena_id, const char* name,
                                              std::int64_t timeout_ms) {
    Message request = proto::make_request(Type::kTensorOpen, 1);
    request.tensor.region.arena_id = arena_id;
    put_name(request.tensor.name, name);
    request.tensor.timeout_ms = timeout_ms;
    FABRIC_TRY(const Message reply, ask(request));
    return reply.tensor;
}

Result<proto::Group> WireClient::join(std::uint64_t arena_id, const char* name, int rank, int world,
                                      std::int64_t timeout_ms) {
    FABRIC_TRY(const Message reply, ask(join_request(arena_id, name, rank, world, timeout_ms)));
    return reply.group;
}

Result<void> WireClient::leave(std::uint64_t group_id) {
    FABRIC_TRY([[maybe_unused]] const Message reply,
               ask(group_request(Type::kGroupLeave, group_id, 0)));
    return {};
}

Result<proto::Group> WireClient::shrink(std::uint64_t group_id, std::int64_t timeout_ms) {
    FABRIC_TRY(const Message reply, ask(group_request(Type::kGroupShrink, group_id, timeout_ms)));
    return reply.group;
}

void WireClient::bye() {
    [[maybe_unused]] const auto sent = send(proto::make_request(Type::kBye, 1));
}

}  // namespace test_support
