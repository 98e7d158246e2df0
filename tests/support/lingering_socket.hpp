// A TCP socket whose last close() waits for a peer that does not read, for up to an hour.

#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <vector>

#include "libfabricshm/os/fd.hpp"

namespace test_support {

/// On the loopback interface. The peer is in this object, and gone with it: then close() returns.
class LingeringSocket {
  public:
    LingeringSocket() {
        const fabricshm::Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        auto* name = reinterpret_cast<sockaddr*>(&address);
        socklen_t bytes = sizeof address;
        // Small, so that little has to be written until some of it stays unsent.
        const int room = 4096;
        ::setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
        socket_ = fabricshm::Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
        if (::bind(listener.get(), name, bytes) != 0 || ::listen(listener.get(), 1) != 0 ||
            ::getsockname(listener.get(), name, &bytes) != 0 ||
            ::connect(socket_.get(), name, bytes) != 0) {
            socket_.reset();
            return;
        }
        peer_ = fabricshm::Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        const std::vector<char> unsent(1 << 16);
        while (::send(socket_.get(), unsent.data(), unsent.size(), MSG_DONTWAIT) > 0) {
        }
        const linger hour{1, 3600};
        ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &hour, sizeof hour);
    }

    int get() const noexcept { return socket_.get(); }
    fabricshm::Fd duplicate() const { return socket_.duplicate().value(); }
    /// No longer held here; the process that closes the last duplicate waits. Only when there is
    /// another one: otherwise that is the caller.
    void reset() noexcept { socket_.reset(); }

  private:
    fabricshm::Fd socket_;
    fabricshm::Fd peer_;
};

}  // namespace test_support
