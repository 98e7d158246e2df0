#include "fabricd/server/outbox.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <utility>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Result;
using fabricshm::UnixSocket;

namespace {

// Descriptors in packets that are not read count against the daemon's own limit, so a client gets
// them only while less than this waits for it in the kernel: twelve replies or so.
constexpr int kUnreadBytes = 16 * 1024;

// Writable is a socket whose peer has left unread at most a quarter of the buffer; then it would
// also wake the loop. (One that is gone is an answer, too: sending says so.)
bool keeps_up(const UnixSocket& socket) noexcept {
    pollfd entry{socket.get(), POLLOUT, 0};
    return ::poll(&entry, 1, 0) != 0;
}

}  // namespace

void Outbox::bound_unread(const UnixSocket& socket) noexcept {
    const int bytes = 4 * kUnreadBytes / 2;  // the kernel doubles it
    ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

Result<void> Outbox::push(const UnixSocket& socket, Packet packet,
                          const DescriptorsOf& descriptors_of, int links,
                          const ReplyLimits& limits) {
    // In the order in which they were made.
    if (held_.empty()) {
        const auto sent = attempt(socket, packet, descriptors_of, links);
        // A client that has shut down hears no more, but what it sent before that has yet to be
        // read: its goodbye, as a rule. The end of its packets drops it.
        if (sent.ok() || sent.error().code == Errc::kClosed) return {};
        if (sent.error().code != Errc::kTimeout) return sent;
    }
    if (held_.size() >= limits.max_held) {
        return Error{Errc::kBusy, 0, "it does not read its replies; end its process if it hangs"};
    }
    held_.push_back(std::move(packet));
    return {};
}

Result<void> Outbox::flush(const UnixSocket& socket, const DescriptorsOf& descriptors_of,
                           int links) {
    while (!held_.empty()) {
        const auto sent = attempt(socket, held_.front(), descriptors_of, links);
        if (sent.ok()) {
            held_.pop_front();
        } else if (sent.error().code == Errc::kClosed) {
            held_.clear();  // as in push()
        } else if (sent.error().code == Errc::kTimeout) {
            return {};
        } else {
            return sent;
        }
    }
    return {};
}

// kTimeout: not before the peer has read some of what it got.
Result<void> Outbox::attempt(const UnixSocket& socket, const Packet& packet,
                             const DescriptorsOf& descriptors_of, int links) {
    std::vector<int> descriptors;
    if (packet.arena) {
        descriptors = descriptors_of(*packet.arena);
    } else if (packet.page) {
        descriptors.push_back(packet.page.get());
    }
    if (!descriptors.empty() && packet.has_links && links >= 0) descriptors.push_back(links);
    if (!descriptors.empty() && !keeps_up(socket)) return Error{Errc::kTimeout, 0, "send"};
    FAULT_POINT("reply.before");
    const auto sent = socket.send(proto::bytes_of(packet.message), descriptors, fabricshm::kNoWait);
    FAULT_POINT("reply.after");
    return sent;
}

}  // namespace fabricd
