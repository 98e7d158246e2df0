#include "libfabricshm/os/fd.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace fabricshm {

void Fd::reset() noexcept {
    // Linux frees the number even when close() reports an error, so trying again would be a bug.
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
}

Result<Fd> Fd::duplicate() const {
    const int copy = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return error_from_errno(errno, "duplicate descriptor");
    return Fd(copy);
}

}  // namespace fabricshm
