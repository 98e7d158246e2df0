#include "emu/faults/own_daemon.hpp"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "libfabricshm/os/unix_socket.hpp"

extern char** environ;

namespace emu {

namespace {

using namespace std::chrono_literals;
using fabricshm::Clock;

constexpr auto kMaxReady = 30s;
constexpr auto kMaxEnd = 10s;

// A plan says "fabricd" and means the one of this build, not one that happens to be in PATH.
std::string beside_me(const std::string& program) {
    std::error_code error;
    const auto here = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
    // Installed both are in bin/; in a build folder fabricd has its own.
    for (const char* place : {"", "../../fabricd"}) {
        const auto path = here / place / program;
        if (program.find('/') == std::string::npos && ::access(path.c_str(), X_OK) == 0) {
            return path.string();
        }
    }
    return program;
}

// Reaps the process as well: one that is not reaped still looks alive to kill(pid, 0).
bool ended_by(pid_t pid, fabricshm::TimePoint deadline) {
    while (::waitpid(pid, nullptr, WNOHANG) != pid) {
        if (Clock::now() > deadline) return false;
        ::usleep(2000);
    }
    return true;
}

}  // namespace

OwnDaemon::OwnDaemon(const std::string& program, std::vector<std::string> arguments)
    : program_(beside_me(program)), arguments_(std::move(arguments)) {
    const char* base = std::getenv("TMPDIR");
    std::string name = std::string(base != nullptr ? base : "/tmp") + "/fabric-faults-XXXXXX";
    if (::mkdtemp(name.data()) != nullptr) folder_ = name;
}

OwnDaemon::~OwnDaemon() {
    if (pid_ > 0) {
        ::kill(pid_, SIGTERM);
        ::kill(pid_, SIGCONT);  // it may be stopped
        if (!ended_by(pid_, Clock::now() + kMaxEnd)) {
            ::kill(pid_, SIGKILL);
            ::waitpid(pid_, nullptr, 0);
        }
    }
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

bool OwnDaemon::start(const std::string& armed, const std::string& report) {
    std::vector<std::string> words{program_,
                                   "--config=/dev/null",
                                   "--server-runtime-dir=" + folder_,
                                   "--server-socket=" + socket(),
                                   "--state-dir=" + folder_ + "/state",
                                   "--pool-backend=emu",
                                   "--log-file=" + folder_ + "/log"};
    words.insert(words.end(), arguments_.begin(), arguments_.end());
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    // By the environment of this process, for posix_spawn() passes on the whole of it; the
    // command's is set later and differs.
    ::setenv("FABRIC_FAULT", armed.c_str(), 1);
    ::setenv("FABRIC_FAULT_REPORT", report.c_str(), 1);
    const int failed =
        ::posix_spawnp(&pid_, program_.c_str(), nullptr, nullptr, pointers.data(), environ);
    // A spawn that failed leaves it unspecified.
    if (failed != 0) pid_ = -1;
    last_pid_ = pid_;
    return failed == 0;
}

bool OwnDaemon::wait_until_ready() {
    const auto deadline = Clock::now() + kMaxReady;
    // That it takes connections is what readiness means to a client; the log would have to be
    // parsed.
    while (!fabricshm::UnixSocket::connect(socket(), Clock::now() + 1s).ok()) {
        if (Clock::now() > deadline || !is_running()) return false;
        ::usleep(2000);
    }
    return true;
}

// Not by kill(pid_, 0): that takes -1 for all processes, and one that is not reaped for alive. It
// is left to died() to be reaped, which reports it to the runner.
bool OwnDaemon::is_running() const {
    if (pid_ <= 0) return false;
    siginfo_t info{};
    const auto id = static_cast<id_t>(pid_);
    return ::waitid(P_PID, id, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
}

std::vector<pid_t> OwnDaemon::processes() const {
    if (pid_ <= 0) return {};
    return {pid_};
}

bool OwnDaemon::died() {
    if (pid_ <= 0 || ::waitpid(pid_, nullptr, WNOHANG) != pid_) return false;
    pid_ = -1;
    return true;
}

void OwnDaemon::signal(int number) const {
    if (pid_ > 0) ::kill(pid_, number);
}

// The last record ends where the file ends. Whatever of it is missing or wrong, its checksum no
// longer fits, and that is what the daemon has to find out.
bool OwnDaemon::damage_journal(Damage damage) const {
    const std::string path = folder_ + "/state/journal";
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path, error);
    // Less than that is no record, and a journal that never was can't be torn.
    if (error || bytes < 8) return false;
    if (damage == Damage::kCut) {
        // An odd number: what is left of the last record ends within one of its fields.
        std::filesystem::resize_file(path, bytes - 7, error);
        return !error;
    }
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    if (damage == Damage::kFlip) {
        file.seekg(-1, std::ios::end);
        const char last = static_cast<char>(file.get());
        file.seekp(-1, std::ios::end);
        file.put(static_cast<char>(last ^ 0x40));
    } else {
        file.seekp(0, std::ios::end);
        file << "half of a record";
    }
    return file.good();
}

}  // namespace emu
