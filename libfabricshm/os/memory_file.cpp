#include "libfabricshm/os/memory_file.hpp"

#include <sys/mman.h>

#include <cerrno>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U  // Linux 6.3
#endif

namespace fabricshm {

Result<Fd> open_memory_file(const char* name, const char* step) {
    const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = ::memfd_create(name, flags | MFD_NOEXEC_SEAL);
    // Kernels before 6.3 do not know the flag.
    if (fd < 0 && errno == EINVAL) fd = ::memfd_create(name, flags);
    if (fd < 0) return error_from_errno(errno, step);
    return Fd(fd);
}

}  // namespace fabricshm
