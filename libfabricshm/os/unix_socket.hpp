// UnixSocket: packets and descriptors between two processes of one host, each wait with a deadline.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricshm {

/// The process on the other end when it connected, as the kernel recorded it.
struct PeerCredentials {
    pid_t pid = 0;
    uid_t uid = 0;
    gid_t gid = 0;
};

/// What came in with one packet.
struct Received {
    std::size_t bytes = 0;
    std::size_t descriptors = 0;  // stored into the caller's span
    std::size_t surplus = 0;      // more came than the caller had room for; closed at once
    // This process has no room for all that came (RLIMIT_NOFILE): it gets none of them.
    bool lacks_descriptors = false;
};

/// Whether a listener may take the path: nothing is there, or a socket.
bool may_hold_socket(const std::string& path) noexcept;

/// A SOCK_SEQPACKET unix socket, close-on-exec and non-blocking. Move-only. One thread may send
/// while another receives; two senders (or two receivers) need no lock either, packets are atomic.
///
/// A deadline in the past makes every call a mere attempt: what would block is kTimeout. A peer
/// that is gone is kClosed. No call raises SIGPIPE.
class UnixSocket {
  public:
    /// Connects to `path`. kDaemon when no process listens there, kDenied when this user may not,
    /// kBusy when the listener's queue stays full until `deadline`.
    static Result<UnixSocket> connect(const std::string& path, TimePoint deadline);

    /// The two steps of it.
    static Result<UnixSocket> make();
    Result<void> connect_to(const std::string& path, TimePoint deadline) const;

    /// Listens at `path` with file permissions `mode`. A socket file that has no listener any more
    /// is replaced; kExists when it has one. Two starters at the same moment have to be kept apart
    /// by the caller (a lock file next to it).
    static Result<UnixSocket> listen(const std::string& path, mode_t mode, int backlog);

    /// Two connected ends. For tests.
    static Result<std::pair<UnixSocket, UnixSocket>> pair();

    UnixSocket() = default;
    explicit UnixSocket(Fd fd) noexcept : fd_(std::move(fd)) {}

    /// The next connection.
    Result<UnixSocket> accept(TimePoint deadline) const;

    /// Sends one packet whole, with duplicates of `descriptors` (at most kDescriptorsMax).
    Result<void> send(std::span<const std::byte> packet, std::span<const int> descriptors,
                      TimePoint deadline) const;

    /// Receives one packet. kCorrupt when it is longer than `buffer` or came with more descriptors
    /// than kDescriptorsMax; the packet is gone then and its descriptors are closed.
    Result<Received> receive(std::span<std::byte> buffer, std::span<Fd> descriptors,
                             TimePoint deadline) const;

    /// Receives one packet of any sender with all its descriptors, and returns its bytes. Whatever
    /// the outcome, no descriptor is closed here: the last close() of a file may block for as long
    /// as its sender likes, so the caller leaves that to a Closer. Errors as receive().
    Result<std::size_t> receive_all(std::span<std::byte> buffer, std::vector<Fd>& descriptors,
                                    TimePoint deadline) const;

    /// Whether the next packet that waits has descriptors. The packet stays.
    bool has_descriptors() const noexcept;

    /// Whether the other end may send descriptors from now on; connections of a listener begin as
    /// it was set there. Where it may not, its send() ends with kDenied. False: the kernel can't
    /// refuse them (before Linux 6.16).
    bool allow_descriptors(bool allowed) const noexcept;

    /// The process that connected (on an accepted socket), or that listens (on a connected one).
    Result<PeerCredentials> peer() const;

    /// A pidfd of that process. On kernels before 6.5 it is opened by number after the fact, so
    /// compare the start time of the process where reuse of the number matters.
    Result<Fd> peer_pidfd() const;

    /// Wakes every thread that waits on this socket: they see kClosed.
    void shut_down() const noexcept;

    /// Nothing is sent any more: the peer reads what was sent, then the end.
    void end_sending() const noexcept;

    int get() const noexcept { return fd_.get(); }
    explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
    void reset() noexcept { fd_.reset(); }
    /// The descriptor alone; this object has none afterwards.
    Fd release() noexcept { return std::move(fd_); }

    static constexpr std::size_t kDescriptorsMax = 8;

  private:
    Fd fd_;
};

/// Waits until `fd` is ready for `events` (POLLIN, POLLOUT), has an error or hung up. kTimeout when
/// the deadline passed first. Signals do not end the wait.
Result<void> wait_ready(int fd, short events, TimePoint deadline, const char* step);

}  // namespace fabricshm
