#include "fabricd/server/admission.hpp"

#include <grp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "libfabricshm/base/reason.hpp"

namespace fabricd {

// Since Linux 4.13.
std::vector<std::uint32_t> groups_of_peer(int socket) {
    // At its largest at once, which spares a first call for the size.
    std::vector<std::uint32_t> groups(65536);  // the kernel's NGROUPS_MAX
    static_assert(sizeof(gid_t) == sizeof(std::uint32_t));
    socklen_t bytes = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &bytes) != 0) return {};
    groups.resize(bytes / sizeof(gid_t));
    return groups;
}

Result<Admission> Admission::make(std::vector<std::uint32_t> uids, const std::string& group) {
    Admission admission;
    admission.uids_ = std::move(uids);
    // Root can read the arenas' memory in other ways, and the daemon's own user can send it
    // signals: refusing them would protect nothing.
    admission.uids_.push_back(0);
    admission.uids_.push_back(::geteuid());
    if (group.empty()) return admission;
    // Once, at the start: a name service may be slow, and no client may wait for it on the control
    // thread.
    const struct group* entry = ::getgrnam(group.c_str());
    if (entry == nullptr) {
        return fabricshm::explain({Errc::kInvalid, 0, "socket group"},
                                  "there is no group '%s' on this host (server.socket_group)",
                                  group.c_str());
    }
    admission.group_ = entry->gr_gid;
    admission.has_group_ = true;
    return admission;
}

bool Admission::admits(std::uint32_t uid, std::uint32_t gid, int socket) const {
    if (std::find(uids_.begin(), uids_.end(), uid) != uids_.end()) return true;
    if (!has_group_) return false;
    // The cheap question first; supplementary groups cost a system call and a list of up to 65536
    // numbers.
    if (gid == group_) return true;
    const std::vector<std::uint32_t> groups = groups_of_peer(socket);
    return std::find(groups.begin(), groups.end(), group_) != groups.end();
}

}  // namespace fabricd
