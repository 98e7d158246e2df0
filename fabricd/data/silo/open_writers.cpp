#include "fabricd/data/silo/open_writers.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <cerrno>
#include <csignal>

namespace fabricd {

bool has_late_times(int fd) noexcept {
    struct statfs status {};
    if (::fstatfs(fd, &status) != 0) return false;
    return status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC;
}

OpenWriters open_writers(int fd) noexcept {
    // The signal of a broken lease is to be one that is ignored where nothing handles it; SIGIO
    // would end the process.
    if (::fcntl(fd, F_SETSIG, SIGURG) != 0) return OpenWriters::kUnknown;
    if (::fcntl(fd, F_SETLEASE, F_RDLCK) == 0) {
        static_cast<void>(::fcntl(fd, F_SETLEASE, F_UNLCK));
        return OpenWriters::kNone;
    }
    return errno == EAGAIN ? OpenWriters::kSome : OpenWriters::kUnknown;
}

}  // namespace fabricd
