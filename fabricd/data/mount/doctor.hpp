// `fabric-mount doctor`: what keeps a mount from working.

#pragma once

#include <string>
#include <vector>

namespace fabricd {

struct MountFinding {
    bool is_well = false;
    std::string text;
};

/// What was looked at, in the order of a start. `mount_point` "": without a mount. `socket` is the
/// data service's, "" where it usually is.
std::vector<MountFinding> examine_mount(const std::string& mount_point, const std::string& socket);

}  // namespace fabricd
