#include "fabricd/server/presented_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>

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
    const fabricshm::Error wrong{fabricshm::Errc::kCorrupt, 0, "adopt arena"};
    if (presented.size() != own.size()) {
        return fabricshm::explain(wrong,
                                  "the session has mapped %zu devices, and the pool has %zu: %s",
                                  presented.size(), own.size(), devices.names().c_str());
    }
    for (std::size_t i = 0; i < own.size(); ++i) {
        // Looked at from afar before anything is asked of it.
        if (is_harmless(presented[i], own[i]) && devices.is_same(i, presented[i])) continue;
        return fabricshm::explain(wrong, "device %zu of %zu that the session has mapped is not %s",
                                  i + 1, own.size(), devices.path(i).c_str());
    }
    return {};
}

}  // namespace fabricd
