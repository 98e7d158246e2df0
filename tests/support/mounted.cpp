#include "tests/support/mounted.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace test_support {

namespace {

using Clock = std::chrono::steady_clock;

std::string text_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// -1: it does not end.
int wait_for(pid_t child, std::chrono::seconds most) {
    const auto until = Clock::now() + most;
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
        if (Clock::now() > until) return -1;
        ::poll(nullptr, 0, 2);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

std::string why_no_mount() {
    const int device = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0) return "/dev/fuse can't be opened";
    ::close(device);
    return ::geteuid() == 0 ? "" : "only root mounts here";
}

Mounted::Mounted(const std::string& from, const std::vector<std::string>& words,
                 const std::vector<std::pair<std::string, std::string>>& environment)
    : path_(folder_.file("mount")), from_(from), words_(words), environment_(environment) {
    ::mkdir(path_.c_str(), 0755);
    start();
}

Mounted::~Mounted() {
    if (keeper_ > 0 && end() == -1) kill_keeper();
    // What a failed test left.
    while (::umount2(path_.c_str(), MNT_DETACH) == 0) {
    }
}

void Mounted::start() {
    std::vector<std::string> all{FABRIC_MOUNT_PATH, path_, "--foreground"};
    if (!from_.empty()) all.insert(all.end(), {"--from-folder", from_});
    all.insert(all.end(), words_.begin(), words_.end());
    keeper_ = ::fork();
    if (keeper_ == 0) {
        for (const auto& [name, value] : environment_) ::setenv(name.c_str(), value.c_str(), 1);
        const int log = ::open(folder_.file("log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
        ::dup2(log, STDERR_FILENO);
        std::vector<char*> pointers;
        for (std::string& word : all) pointers.push_back(word.data());
        pointers.push_back(nullptr);
        ::execv(pointers[0], pointers.data());
        ::_exit(127);
    }
    const auto until = Clock::now() + std::chrono::seconds(30);
    while (Clock::now() < until && log().find(" is mounted") == std::string::npos) {
        if (const int code = wait_for(keeper_, std::chrono::seconds(0)); code != -1) {
            keeper_ = -1;
            return;
        }
        ::poll(nullptr, 0, 2);
    }
}

bool Mounted::is_mounted() const {
    return text_of("/proc/self/mountinfo").find(" " + path_ + " ") != std::string::npos;
}

pid_t Mounted::server() const {
    return child(false);
}

pid_t Mounted::standby() const {
    return child(true);
}

pid_t Mounted::child(bool stands_by) const {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        const pid_t number = std::atoi(entry.path().filename().c_str());
        if (number <= 0) continue;
        const std::string line = text_of(entry.path().string() + "/stat");
        const auto name_end = line.rfind(')');
        // "PID (name) STATE PARENT": what has ended is not the one that runs.
        if (name_end == std::string::npos || line.size() < name_end + 5) continue;
        const bool waits = line.find("(mount-standby)") != line.npos;
        if (line[name_end + 2] == 'Z' || waits != stands_by) continue;
        if (std::atoi(line.c_str() + name_end + 4) == keeper_) return number;
    }
    return 0;
}

bool Mounted::kill_server() const {
    const pid_t now = server();
    return now > 0 && ::kill(now, SIGKILL) == 0;
}

int Mounted::end() {
    if (keeper_ <= 0) return -1;
    ::kill(keeper_, SIGTERM);
    const int code = wait_for(keeper_, std::chrono::seconds(20));
    if (code != -1) keeper_ = -1;
    return code;
}

void Mounted::kill_keeper() {
    ::kill(keeper_, SIGKILL);
    wait_for(keeper_, std::chrono::seconds(20));
    keeper_ = -1;
}

void Mounted::start_again() {
    ::truncate(folder_.file("log").c_str(), 0);
    start();
}

std::string Mounted::log() const {
    return text_of(folder_.path() + "/log");
}

// splitmix64 of the number of each eight bytes.
std::string content_of(std::uint64_t seed, std::uint64_t from, std::uint64_t bytes) {
    std::string content(bytes + 16, '\0');
    const std::uint64_t first = from / 8;
    std::size_t at = 0;
    for (std::uint64_t word = first; at < bytes + 8; ++word, at += 8) {
        std::uint64_t mixed = seed * 0x9e3779b97f4a7c15U + word * 0xd1b54a32d192ed03U;
        mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9U;
        mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
        mixed ^= mixed >> 31;
        std::memcpy(content.data() + at, &mixed, 8);
    }
    return content.substr(from % 8, bytes);
}

void write_file(const std::string& path, const std::string& content) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

void replace_file(const std::string& path, const std::string& content) {
    write_file(path + ".new", content);
    ::rename((path + ".new").c_str(), path.c_str());
}

}  // namespace test_support
