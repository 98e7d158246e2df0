#include "fabricd/jobs/free_port.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "libfabricshm/os/fd.hpp"

namespace fabricd {

unsigned free_port() {
    const fabricshm::Fd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(probe.get(), any, length) != 0 || ::getsockname(probe.get(), any, &length) != 0) {
        return 29500;
    }
    return ::ntohs(address.sin_port);
}

}  // namespace fabricd
