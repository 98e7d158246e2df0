#include "fabricd/ctl/doctor/host_facts.hpp"

#include <sys/stat.h>

#include <algorithm>

namespace fabricd {

bool UserFacts::may_use(const FileOwner& file) const {
    if (uid == 0) return true;
    // The first class that fits decides, as in the kernel: an owner without rights is not helped by
    // those of all others.
    const auto has = [&](mode_t bits) { return (file.mode & bits) == bits; };
    if (file.uid == uid) return has(S_IRUSR | S_IWUSR);
    const bool is_member = std::find(groups.begin(), groups.end(), file.gid) != groups.end();
    return is_member ? has(S_IRGRP | S_IWGRP) : has(S_IROTH | S_IWOTH);
}

std::string HostFacts::process() const {
    if (!status) return "self";
    const std::string pid = std::to_string(status->pid);
    // A daemon in a container counts its processes differently: that number is another process's
    // here. There is no process 0, so that what is read of it is unknown.
    const auto name = files.text("/proc/" + pid + "/comm");
    return name && *name != "fabricd" ? "0" : pid;
}

Bytes HostFacts::pool_capacity() const {
    return status ? status->pool.capacity_bytes : config.config.pool.capacity;
}

Bytes HostFacts::pool_missing() const {
    const Bytes used = status ? status->pool.used_bytes : 0;
    return pool_capacity() - std::min(used, pool_capacity());
}

std::optional<FileOwner> owner_of(const fabricshm::HostFiles& files, const std::string& path) {
    struct stat status {};
    if (::stat((files.root() + path).c_str(), &status) != 0) return std::nullopt;
    return FileOwner{status.st_mode, status.st_uid, status.st_gid};
}

std::string chosen_word(const std::string& text) {
    const auto begin = text.find('[');
    if (begin == std::string::npos) return "";
    const auto end = text.find(']', begin);
    if (end == std::string::npos) return "";
    return text.substr(begin + 1, end - begin - 1);
}

std::string write_to(const std::string& path, const std::string& value) {
    return "echo " + value + " | sudo tee " + path;
}

}  // namespace fabricd
