#include "libfabricshm/os/listener_probe.hpp"

#include <poll.h>

#include <cerrno>
#include <utility>

namespace fabricshm {

namespace {

ListenerProbe::Answer answer_of(int error) noexcept {
    if (error == 0) return ListenerProbe::Answer::kListens;
    return error == ECONNREFUSED ? ListenerProbe::Answer::kRefused : ListenerProbe::Answer::kNone;
}

}  // namespace

ListenerProbe::Answer ListenerProbe::ask(const sockaddr* address, socklen_t bytes) noexcept {
    if (!connecting_) {
        Fd made(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (!made) return Answer::kNone;
        if (::connect(made.get(), address, bytes) == 0) return Answer::kListens;
        if (errno != EINPROGRESS) return answer_of(errno);
        connecting_ = std::move(made);
    }
    pollfd connected{connecting_.get(), POLLOUT, 0};
    if (::poll(&connected, 1, 0) != 1) return Answer::kNone;
    int error = 0;
    socklen_t length = sizeof error;
    const int code = ::getsockopt(connecting_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    connecting_.reset();
    return code == 0 ? answer_of(error) : Answer::kNone;
}

}  // namespace fabricshm
