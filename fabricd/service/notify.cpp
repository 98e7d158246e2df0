#include "fabricd/service/notify.hpp"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "libfabricshm/os/fd.hpp"

namespace fabricd {

void notify_systemd(const std::string& state, fabricshm::Duration timeout) noexcept {
    const char* path = std::getenv("NOTIFY_SOCKET");
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path == nullptr || std::strlen(path) >= sizeof address.sun_path) return;
    const std::size_t length = std::strlen(path);
    std::memcpy(address.sun_path, path, length);
    // A leading @ stands for the zero byte of the abstract name space.
    if (path[0] == '@') address.sun_path[0] = '\0';
    // A socket per message: they are rare, and a kept one would be one more thing that a fork
    // inherits.
    const fabricshm::Fd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    // Exactly as long as the path: in an abstract name a zero byte at the end would be part of it.
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
    const bool waits = timeout > fabricshm::Duration::zero();
    if (waits) {
        const auto length = std::chrono::duration_cast<std::chrono::microseconds>(timeout);
        const timeval limit{length.count() / 1'000'000, length.count() % 1'000'000};
        ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    }
    ::sendto(fd.get(), state.data(), state.size(), (waits ? 0 : MSG_DONTWAIT) | MSG_NOSIGNAL,
             reinterpret_cast<const sockaddr*>(&address), size);
}

std::optional<fabricshm::Duration> watchdog_interval() {
    const char* interval = std::getenv("WATCHDOG_USEC");
    const char* pid = std::getenv("WATCHDOG_PID");
    // The variables are inherited: only the process that is meant may answer.
    if (pid != nullptr && std::atol(pid) != static_cast<long>(::getpid())) return std::nullopt;
    const long long microseconds = interval != nullptr ? std::atoll(interval) : 0;
    if (microseconds <= 0) return std::nullopt;
    return std::chrono::microseconds(microseconds);
}

}  // namespace fabricd
