#include "emu/faults/process_tree.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

namespace emu {

namespace {

// What is needed of /proc/PID/stat.
struct Status {
    pid_t parent = 0;
    char state = '?';
};

std::string content_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(file), {}};
}

// "pid (name) state parent ...": the name may have anything in it, so from its last bracket on.
Status status_of(pid_t pid) {
    const std::string text = content_of("/proc/" + std::to_string(pid) + "/stat");
    const auto end = text.rfind(')');
    Status status;
    if (end == std::string::npos) return status;
    std::istringstream rest(text.substr(end + 1));
    rest >> status.state >> status.parent;
    return status;
}

// Whole entries: RANK=1 is not RANK=10. A process of another user can't be read and is not found.
bool has_entry(pid_t pid, const std::string& entry) {
    std::istringstream all(content_of("/proc/" + std::to_string(pid) + "/environ"));
    for (std::string one; std::getline(all, one, '\0');) {
        if (one == entry) return true;
    }
    return false;
}

}  // namespace

std::vector<pid_t> find_processes(pid_t ancestor, const std::string& entry) {
    // One pass over /proc, then the ancestors are followed in the map: what changes meanwhile makes
    // a process be missed, never mistaken.
    std::map<pid_t, pid_t> parents;
    std::error_code error;
    for (const auto& folder : std::filesystem::directory_iterator("/proc", error)) {
        const int pid = std::atoi(folder.path().filename().c_str());
        const Status status = pid > 0 ? status_of(pid) : Status{};
        // The dead are only waiting to be noticed.
        if (status.parent != 0 && status.state != 'Z') parents[pid] = status.parent;
    }
    std::vector<pid_t> found;
    for (const auto& [pid, parent] : parents) {
        pid_t above = parent;
        while (above != ancestor && parents.count(above) != 0) above = parents[above];
        if (above == ancestor && has_entry(pid, entry)) found.push_back(pid);
    }
    return found;
}

bool is_stopped(pid_t pid) {
    return status_of(pid).state == 'T';
}

}  // namespace emu
