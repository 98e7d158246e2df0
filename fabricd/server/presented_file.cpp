#include "fabricd/server/presented_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <vector>

#include "libfabricshm/base/reason.hpp"

namespace fabricd {

namespace {

// What the kernel knows already: no file system is asked for it, however far away it is.
bool look(int fd, struct statx& seen) {
    return ::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO, &seen) == 0;
}

}  // namespace

bool is_harmless(const fabricshm::Fd& presented, int own) noexcept {
    if (!presented) return false;
    // Files that can be sealed are the kernel's own memory.
    if (::fcntl(presented.get(), F_GET_SEALS) >= 0) return true;
    struct statx theirs {};
    struct statx ours {};
    if (own < 0 || !look(presented.get(), theirs) || !look(own, ours)) return false;
    return theirs.stx_ino == ours.stx_ino && theirs.stx_dev_major == ours.stx_dev_major &&
           theirs.stx_dev_minor == ours.stx_dev_minor;
}

fabricshm::Result<void> compare_with(const fabricshm::DaxDevices& devices,
                                     std::span<const fabricshm::Fd> presented) {
    const std::vector<int> own = devices.client_numbers();
    // Each is looked at from afar before anything is asked of it.
    const bool is_ours = presented.size() == own.size() && !own.empty() &&
                         std::equal(presented.begin(), presented.end(), own.begin(), is_harmless) &&
                         devices.are_same(presented[0], presented.subspan(1));
    if (is_ours) return {};
    return fabricshm::explain({fabricshm::Errc::kCorrupt, 0, "adopt arena"},
                              "the %zu devices that the session has mapped are not the %zu of this "
                              "host's pool, in their order",
                              presented.size(), own.size());
}

}  // namespace fabricd
