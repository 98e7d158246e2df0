#include "libfabricshm/os/random.hpp"

#include <sys/random.h>

#include <cerrno>

namespace fabricshm {

Result<void> fill_random(std::span<std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t got = ::getrandom(bytes.data(), bytes.size(), 0);
        if (got < 0 && errno != EINTR) return error_from_errno(errno, "get random bytes");
        if (got > 0) bytes = bytes.subspan(static_cast<std::size_t>(got));
    }
    return {};
}

}  // namespace fabricshm
