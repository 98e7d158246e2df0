#include "fabricd/server/descriptor_plan.hpp"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>
#include <limits>

namespace fabricd {

namespace {

constexpr long kPerConnection = 2;

}  // namespace

long raise_descriptor_limit() noexcept {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
    const rlimit raised{limit.rlim_max, limit.rlim_max};
    const rlim_t now = ::setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : limit.rlim_cur;
    constexpr auto kMax = static_cast<rlim_t>(std::numeric_limits<long>::max());
    return static_cast<long>(std::min(now, kMax));
}

long open_descriptors() noexcept {
    DIR* folder = ::opendir("/proc/self/fd");
    if (folder == nullptr) return 64;  // without /proc; a daemon that has begun has about so many
    long count = 0;
    while (::readdir(folder) != nullptr) ++count;
    ::closedir(folder);
    return count;
}

int connections_for(long limit, long in_use, int wanted) noexcept {
    const long free = std::max(0L, limit - in_use);
    const long apart = std::min(kDescriptorsApart, free / 2);
    return static_cast<int>(std::min<long>(wanted, (free - apart) / kPerConnection));
}

}  // namespace fabricd
