#include "fabricd/data/silo/folder_place.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;
using fabricshm::Fd;

std::uint64_t nanoseconds_of(const timespec& time) noexcept {
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000U +
           static_cast<std::uint64_t>(time.tv_nsec);
}

FileFacts facts_of_file(const struct stat& status) noexcept {
    FileFacts facts;
    facts.bytes = static_cast<Bytes>(status.st_size);
    facts.version.words = {facts.bytes, nanoseconds_of(status.st_mtim), status.st_ino,
                           nanoseconds_of(status.st_ctim)};
    return facts;
}

Error folder_error(int saved_errno, const std::string& path, const char* step) {
    const std::string shown = path.empty() ? "the silo's root" : printable(path);
    if (saved_errno == ELOOP) {
        return explain({Errc::kDenied, 0, step}, "%s is a loop of links", shown.c_str());
    }
    if (saved_errno == EXDEV) {
        return explain({Errc::kDenied, 0, step}, "%s leads out of the silo", shown.c_str());
    }
    if (saved_errno == ENOENT || saved_errno == ENOTDIR) {
        return explain({Errc::kNotFound, 0, step}, "%s is not there", shown.c_str());
    }
    if (saved_errno == EACCES || saved_errno == EPERM) {
        return explain({Errc::kDenied, 0, step}, "%s may not be read", shown.c_str());
    }
    return explain(fabricshm::error_of_disk(saved_errno, step), "%s: %s", shown.c_str(),
                   std::strerror(saved_errno));
}

Result<Fd> open_silo_root(const std::string& place) {
    Fd root(::open(place.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!root && errno == ENOTDIR) {
        return explain({Errc::kNotFound, 0, "open silo"}, "%s is no folder",
                       printable(place).c_str());
    }
    if (!root) return folder_error(errno, place, "open silo");
    return root;
}

Result<Fd> open_beneath(int root, const std::string& path, int flags, mode_t mode) {
    if (!is_silo_path(path)) {
        return explain({Errc::kInvalid, 0, "open in silo"}, "%s is no path in a silo",
                       printable(path).c_str());
    }
    open_how how{};
    // Not to wait for the writer of a FIFO. openat2() refuses flags that O_PATH has no use for.
    const int gentle = (flags & O_PATH) != 0 ? 0 : O_NONBLOCK | O_NOCTTY;
    how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC | gentle);
    how.mode = mode;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
    const char* const name = path.empty() ? "." : path.c_str();
    for (;;) {
        const long fd = ::syscall(SYS_openat2, root, name, &how, sizeof how);
        if (fd >= 0) return Fd(static_cast<int>(fd));
        // A rename somewhere raced with the look at "..".
        if (errno != EAGAIN && errno != EINTR) return folder_error(errno, path, "open in silo");
    }
}

}  // namespace fabricd
