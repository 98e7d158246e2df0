#include "libfabricshm/os/unix_socket.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/process.hpp"

namespace fabricshm {

namespace {

constexpr int kKind = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;
constexpr std::size_t kControlBytes = CMSG_SPACE(sizeof(int) * UnixSocket::kDescriptorsMax);

// The most that one packet can have (SCM_MAX_FD of the kernel).
constexpr std::size_t kDescriptorsOfAnyPacket = 253;

// Since Linux 6.16, as below.
constexpr int kSoPassRights = 83;

// Since Linux 6.5; the number is part of the kernel's ABI but newer than Debian 12's headers.
constexpr int kSoPeerPidfd = 77;

Result<sockaddr_un> address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    // One byte has to stay zero. An empty path would mean the abstract namespace: no permissions.
    if (path.empty() || path.size() >= sizeof address.sun_path) {
        return Error{Errc::kInvalid, 0, "socket path (1 to 107 bytes)"};
    }
    std::memcpy(address.sun_path, path.data(), path.size());
    return address;
}

Result<Fd> new_socket() {
    Fd fd(::socket(AF_UNIX, kKind, 0));
    if (!fd) return error_from_errno(errno, "make socket");
    return fd;
}

Error connect_error(int saved_errno) {
    const bool nobody = saved_errno == ENOENT || saved_errno == ECONNREFUSED ||
                        saved_errno == ENOTDIR || saved_errno == EPROTOTYPE;
    if (nobody) return {Errc::kDaemon, 0, "connect"};
    return error_from_errno(saved_errno, "connect");
}

bool peer_is_gone(int saved_errno) {
    return saved_errno == EPIPE || saved_errno == ECONNRESET || saved_errno == ENOTCONN;
}

bool would_block(int saved_errno) {
    return saved_errno == EAGAIN || saved_errno == EWOULDBLOCK;
}

const sockaddr* generic(const sockaddr_un& address) {
    return reinterpret_cast<const sockaddr*>(&address);
}

// True when a socket file is left at `address` by a process that no longer listens.
bool is_stale(const sockaddr_un& address) {
    auto probe = new_socket();
    if (!probe.ok()) return false;
    return ::connect(probe->get(), generic(address), sizeof address) != 0 && errno == ECONNREFUSED;
}

timespec remaining(TimePoint deadline) {
    const auto left = std::max(deadline - Clock::now(), Duration::zero());
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    // A day at most: TimePoint::max() would overflow the kernel's time. wait_ready() loops.
    if (seconds > std::chrono::hours(24)) return {24 * 3600, 0};
    return {seconds.count(), (left - seconds).count()};
}

// Calls `take` with each descriptor of a received message.
template <typename Take>
void for_each_descriptor(msghdr& message, Take take) {
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int number = -1;
            std::memcpy(&number, CMSG_DATA(c) + i * sizeof(int), sizeof number);
            take(Fd(number));
        }
    }
}

// Takes the descriptors out of a received message: as many as fit are kept, the others closed.
Received take_descriptors(msghdr& message, std::span<Fd> wanted) {
    Received received;
    for_each_descriptor(message, [&](Fd owned) {
        if (received.descriptors < wanted.size()) {
            wanted[received.descriptors++] = std::move(owned);
        } else {
            ++received.surplus;
        }
    });
    return received;
}

// One packet into the buffers of `message`, which say afterwards what came. An empty packet looks
// like the end of the connection, and is no message of ours: 0 is for the caller to judge, after it
// has taken the descriptors.
Result<std::size_t> receive_packet(int socket, msghdr& message, TimePoint deadline) {
    const msghdr empty = message;
    bool was_reset = false;
    for (;;) {
        message = empty;
        const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (got >= 0) return static_cast<std::size_t>(got);
        // Said once, of a peer that closed with packets unread; what it sent before is still there.
        if (errno == ECONNRESET && !std::exchange(was_reset, true)) continue;
        if (peer_is_gone(errno)) return Error{Errc::kClosed, 0, "receive"};
        if (would_block(errno)) {
            FABRIC_TRY_VOID(wait_ready(socket, POLLIN, deadline, "receive"));
        } else if (errno != EINTR) {
            return error_from_errno(errno, "receive");
        }
    }
}

msghdr message_into(iovec& content, std::span<char> control) {
    msghdr message{};
    message.msg_iov = &content;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    return message;
}

bool is_cut(const msghdr& message) {
    return (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
}

}  // namespace

Result<void> wait_ready(int fd, short events, TimePoint deadline, const char* step) {
    for (;;) {
        pollfd entry{fd, events, 0};
        const timespec left = remaining(deadline);
        const int ready = ::ppoll(&entry, 1, &left, nullptr);
        if (ready > 0) return {};
        if (ready < 0 && errno != EINTR) return error_from_errno(errno, step);
        if (Clock::now() >= deadline) return Error{Errc::kTimeout, 0, step};
    }
}

Result<UnixSocket> UnixSocket::make() {
    FABRIC_TRY(Fd fd, new_socket());
    return UnixSocket(std::move(fd));
}

Result<UnixSocket> UnixSocket::connect(const std::string& path, TimePoint deadline) {
    FABRIC_TRY(UnixSocket made, make());
    FABRIC_TRY_VOID(made.connect_to(path, deadline));
    return made;
}

Result<void> UnixSocket::connect_to(const std::string& path, TimePoint deadline) const {
    FABRIC_TRY(const sockaddr_un address, address_of(path));
    Duration pause = std::chrono::milliseconds(1);
    while (::connect(get(), generic(address), sizeof address) != 0) {
        if (errno == EINTR) continue;
        if (!would_block(errno)) return connect_error(errno);
        // The queue of the listener is full, and poll() does not report when it has room again.
        if (Clock::now() >= deadline) return Error{Errc::kBusy, 0, "connect"};
        const timespec length{0, pause.count()};
        ::nanosleep(&length, nullptr);
        pause = std::min<Duration>(pause * 2, std::chrono::milliseconds(50));
    }
    return {};
}

bool may_hold_socket(const std::string& path) noexcept {
    struct stat status {};
    return ::lstat(path.c_str(), &status) != 0 || S_ISSOCK(status.st_mode);
}

Result<UnixSocket> UnixSocket::listen(const std::string& path, mode_t mode, int backlog) {
    FABRIC_TRY(const sockaddr_un address, address_of(path));
    FABRIC_TRY(Fd fd, new_socket());
    int failed = ::bind(fd.get(), generic(address), sizeof address);
    if (failed != 0 && errno == EADDRINUSE) {
        // Only a socket is removed: a path that was mistyped must not cost a file.
        if (!may_hold_socket(path)) {
            return explain({Errc::kExists, 0, "listen"}, "%s is there and no socket", path.c_str());
        }
        if (!is_stale(address)) return Error{Errc::kExists, 0, "listen"};
        ::unlink(path.c_str());
        failed = ::bind(fd.get(), generic(address), sizeof address);
    }
    if (failed != 0) return error_from_errno(errno, "bind socket");
    // Until listen() every connect() is refused, so the permissions are in force before the first.
    if (::chmod(path.c_str(), mode) != 0) return error_from_errno(errno, "set socket permissions");
    if (::listen(fd.get(), backlog) != 0) return error_from_errno(errno, "listen");
    return UnixSocket(std::move(fd));
}

Result<std::pair<UnixSocket, UnixSocket>> UnixSocket::pair() {
    int ends[2];
    if (::socketpair(AF_UNIX, kKind, 0, ends) != 0) return error_from_errno(errno, "make socket");
    return std::pair(UnixSocket(Fd(ends[0])), UnixSocket(Fd(ends[1])));
}

Result<UnixSocket> UnixSocket::accept(TimePoint deadline) const {
    for (;;) {
        Fd fd(::accept4(get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (fd) return UnixSocket(std::move(fd));
        if (would_block(errno)) {
            FABRIC_TRY_VOID(wait_ready(get(), POLLIN, deadline, "accept"));
        } else if (errno == EINVAL) {
            return Error{Errc::kClosed, 0, "accept"};  // shut_down() was called
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return error_from_errno(errno, "accept");
        }
    }
}

Result<void> UnixSocket::send(std::span<const std::byte> packet, std::span<const int> descriptors,
                              TimePoint deadline) const {
    if (descriptors.size() > kDescriptorsMax) return Error{Errc::kInvalid, 0, "send descriptors"};
    alignas(cmsghdr) char control[kControlBytes] = {};
    iovec content{const_cast<std::byte*>(packet.data()), packet.size()};
    msghdr message{};
    message.msg_iov = &content;
    message.msg_iovlen = 1;
    if (!descriptors.empty()) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
        cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
        std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
    }
    for (;;) {
        // A packet goes whole or not at all, so there is never a rest to send.
        if (::sendmsg(get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return {};
        if (peer_is_gone(errno)) return Error{Errc::kClosed, 0, "send"};
        if (would_block(errno)) {
            FABRIC_TRY_VOID(wait_ready(get(), POLLOUT, deadline, "send"));
        } else if (errno != EINTR) {
            return error_from_errno(errno, "send");
        }
    }
}

Result<Received> UnixSocket::receive(std::span<std::byte> buffer, std::span<Fd> descriptors,
                                     TimePoint deadline) const {
    alignas(cmsghdr) char control[kControlBytes] = {};
    iovec content{buffer.data(), buffer.size()};
    msghdr message = message_into(content, control);
    FABRIC_TRY(const std::size_t got, receive_packet(get(), message, deadline));
    const bool cut = is_cut(message);
    Received received = take_descriptors(message, cut ? std::span<Fd>() : descriptors);
    if (got == 0) return Error{Errc::kClosed, 0, "receive"};
    // The kernel says the same of a packet with too many, but then it has given us kDescriptorsMax.
    const bool is_full = (message.msg_flags & MSG_TRUNC) == 0 && received.surplus < kDescriptorsMax;
    if (cut && !is_full) return Error{Errc::kCorrupt, 0, "receive"};
    received.lacks_descriptors = cut;
    received.bytes = got;
    return received;
}

Result<std::size_t> UnixSocket::receive_all(std::span<std::byte> buffer,
                                            std::vector<Fd>& descriptors,
                                            TimePoint deadline) const {
    // Room for all that there can be: what does not fit the kernel closes in this very call.
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kDescriptorsOfAnyPacket)];
    iovec content{buffer.data(), buffer.size()};
    msghdr message = message_into(content, control);
    FABRIC_TRY(const std::size_t got, receive_packet(get(), message, deadline));
    for_each_descriptor(message, [&](Fd owned) { descriptors.push_back(std::move(owned)); });
    if (got == 0) return Error{Errc::kClosed, 0, "receive"};
    if (is_cut(message)) return Error{Errc::kCorrupt, 0, "receive"};
    return got;
}

bool UnixSocket::has_descriptors() const noexcept {
    std::byte first{};
    iovec content{&first, sizeof first};
    msghdr message = message_into(content, {});
    // Without room for one the kernel says that there was more, and keeps the packet's own.
    const ssize_t got = ::recvmsg(get(), &message, MSG_PEEK | MSG_DONTWAIT);
    return got >= 0 && (message.msg_flags & MSG_CTRUNC) != 0;
}

bool UnixSocket::allow_descriptors(bool allowed) const noexcept {
    const int value = allowed ? 1 : 0;
    return ::setsockopt(get(), SOL_SOCKET, kSoPassRights, &value, sizeof value) == 0;
}

Result<PeerCredentials> UnixSocket::peer() const {
    ucred credentials{};
    socklen_t length = sizeof credentials;
    if (::getsockopt(get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
        return error_from_errno(errno, "ask for peer");
    }
    return PeerCredentials{credentials.pid, credentials.uid, credentials.gid};
}

Result<Fd> UnixSocket::peer_pidfd() const {
    int number = -1;
    socklen_t length = sizeof number;
    if (::getsockopt(get(), SOL_SOCKET, kSoPeerPidfd, &number, &length) == 0) return Fd(number);
    FABRIC_TRY(const PeerCredentials credentials, peer());
    return open_pidfd(credentials.pid);
}

void UnixSocket::shut_down() const noexcept {
    ::shutdown(get(), SHUT_RDWR);
}

void UnixSocket::end_sending() const noexcept {
    ::shutdown(get(), SHUT_WR);
}

}  // namespace fabricshm
