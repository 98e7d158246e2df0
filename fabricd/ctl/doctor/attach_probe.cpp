#include "fabricd/ctl/doctor/attach_probe.hpp"

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/unix_socket.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Received;
using fabricshm::Result;
using fabricshm::TimePoint;
using fabricshm::UnixSocket;
namespace proto = fabricshm::proto;

namespace {

Result<void> hello_and_goodbye(const std::string& path, TimePoint deadline) {
    FABRIC_TRY(const UnixSocket socket, UnixSocket::connect(path, deadline));
    proto::Message hello = proto::make_request(proto::Type::kHello, 1);
    proto::set_label(hello.hello.label, "fabricctl doctor");
    FABRIC_TRY_VOID(socket.send(proto::bytes_of(hello), {}, deadline));
    proto::Message reply{};
    FABRIC_TRY(const Received received,
               socket.receive(proto::writable_bytes_of(reply), {}, deadline));
    FABRIC_TRY_VOID(proto::check_reply(reply, received.bytes));
    if (reply.header.status != 0) return proto::error_of(reply, "attach");
    const bool is_ours = reply.header.request_id == hello.header.request_id &&
                         proto::type_of(reply.header) == proto::Type::kHello;
    if (!is_ours) return Error{Errc::kCorrupt, 0, "attach: not the answer to a hello"};
    // Nothing follows it. If it is lost, the daemon ends the session with this process.
    return socket.send(proto::bytes_of(proto::make_request(proto::Type::kBye, 2)), {}, deadline);
}

}  // namespace

SocketFacts try_attach(const std::string& path, Duration timeout) {
    SocketFacts facts;
    facts.path = path;
    // Of this machine's own files: what tests make up has no listener.
    facts.owner = owner_of(fabricshm::HostFiles(), path);
    const TimePoint began = Clock::now();
    const auto done = hello_and_goodbye(path, fabricshm::deadline_after(began, timeout));
    facts.took = Clock::now() - began;
    facts.answer = done.ok() ? Errc::kOk : done.error().code;
    if (!done.ok()) facts.text = fabricshm::explanation_of(done.error());
    // A missing file is kDaemon of a socket; to a person it is another thing than a dead daemon.
    if (facts.answer == Errc::kDaemon && !facts.owner) facts.answer = Errc::kNotFound;
    return facts;
}

}  // namespace fabricd
