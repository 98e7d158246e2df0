#include "fabricd/data/mount/notifier.hpp"

#define FUSE_USE_VERSION 314
#include <fcntl.h>
#include <fuse3/fuse_lowlevel.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>

namespace fabricd {

using fabricshm::error_from_errno;
using fabricshm::Fd;

enum class NoticeKind : std::uint32_t { kEntry = 1, kFolder = 2, kFlush = 3 };

struct Notifier::Message {
    NoticeKind kind;
    std::uint32_t name_bytes;
    NodeNumber node;
    char name[kNodeNameBytes + 1];
};

namespace {

// An entry that the kernel does not have is an error of its, and none here.
template <typename Message>
void pass_on(fuse_session* session, const Message& message, int socket) {
    switch (message.kind) {
        case NoticeKind::kEntry:
            fuse_lowlevel_notify_inval_entry(
                session, message.node, message.name,
                std::min<std::size_t>(message.name_bytes, kNodeNameBytes));
            return;
        case NoticeKind::kFolder:
            fuse_lowlevel_notify_inval_inode(session, message.node, 0, 0);
            return;
        case NoticeKind::kFlush:
            [[maybe_unused]] const auto sent = ::send(socket, "!", 1, MSG_NOSIGNAL);
            return;
    }
}

}  // namespace

Result<Notifier> Notifier::start(fuse_session* session) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return error_from_errno(errno, "make notifier");
    }
    Notifier notifier;
    notifier.socket_ = Fd(ends[0]);
    Fd other(ends[1]);
    const pid_t server = ::getpid();
    const pid_t child = ::fork();
    if (child < 0) return error_from_errno(errno, "fork notifier");
    if (child > 0) return notifier;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::prctl(PR_SET_NAME, "mount-notifier");
    notifier.socket_.reset();
    // It may have been forked before the server let go of it: a program that started the mount and
    // reads its messages to their end would wait as long as the mount lasts.
    const Fd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
    ::dup2(nothing.get(), STDERR_FILENO);
    while (::getppid() == server) {
        Message message{};
        const ssize_t got = ::recv(other.get(), &message, sizeof message, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        pass_on(session, message, other.get());
    }
    ::_exit(0);
}

Result<void> Notifier::send(const Message& message) const {
    const std::size_t bytes = offsetof(Message, name) + message.name_bytes + 1;
    for (;;) {
        if (::send(socket_.get(), &message, bytes, MSG_NOSIGNAL) >= 0) return {};
        if (errno != EINTR) return error_from_errno(errno, "send notice");
    }
}

Result<void> Notifier::entry_changed(NodeNumber parent, std::string_view name) const {
    Message message{NoticeKind::kEntry, static_cast<std::uint32_t>(name.size()), parent, {}};
    std::memcpy(message.name, name.data(), std::min(name.size(), kNodeNameBytes));
    return send(message);
}

Result<void> Notifier::folder_changed(NodeNumber folder) const {
    return send({NoticeKind::kFolder, 0, folder, {}});
}

Result<void> Notifier::flush() const {
    FABRIC_TRY_VOID(send({NoticeKind::kFlush, 0, 0, {}}));
    char answer = 0;
    for (;;) {
        const ssize_t got = ::recv(socket_.get(), &answer, 1, 0);
        if (got == 1) return {};
        if (got == 0) return fabricshm::Error{fabricshm::Errc::kClosed, 0, "wait for notifier"};
        if (errno != EINTR) return error_from_errno(errno, "wait for notifier");
    }
}

}  // namespace fabricd
