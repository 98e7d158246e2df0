#include "libfabricshm/os/reopen.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>

namespace fabricshm {

namespace {

constexpr ::mode_t kOwnerReads = 0400;
constexpr ::mode_t kOwnerWrites = 0600;

Result<Fd> open_again(const Fd& file, int access, const char* step) {
    const std::string link = "/proc/self/fd/" + std::to_string(file.get());
    const int fd = ::open(link.c_str(), access | O_CLOEXEC);
    if (fd < 0) return error_from_errno(errno, step);
    return Fd(fd);
}

}  // namespace

Result<Fd> open_read_only(const Fd& file) {
    return open_again(file, O_RDONLY, "open file for reading");
}

Result<void> keep_to_owner(const Fd& file) {
    if (::fchmod(file.get(), kOwnerReads) != 0)
        return error_from_errno(errno, "keep file to owner");
    return {};
}

Result<Fd> open_writable(const Fd& file) {
    // For a moment its owner may write, and no other: for other users nothing changes.
    if (::fchmod(file.get(), kOwnerWrites) != 0)
        return error_from_errno(errno, "open file to write");
    auto opened = open_again(file, O_RDWR, "open file to write");
    FABRIC_TRY_VOID(keep_to_owner(file));
    return opened;
}

}  // namespace fabricshm
