#include "tests/support/mock_gpu/stage.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <thread>

namespace mock_gpu {

namespace {

constexpr int kTimeoutMs = 60000;

}  // namespace

Player::Player(const std::vector<std::string>& environment, std::string program) {
    int to[2];
    int from[2];
    if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) return;
    // All made before the fork: other threads may hold any lock of the C library at that moment.
    std::vector<char*> variables;
    for (const auto& entry : environment) variables.push_back(const_cast<char*>(entry.c_str()));
    for (char** entry = environ; *entry != nullptr; ++entry) variables.push_back(*entry);
    variables.push_back(nullptr);
    if (program.empty()) program = GPU_PLAYER_PATH;
    char* arguments[] = {program.data(), nullptr};
    pid_ = ::fork();
    if (pid_ == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::dup2(to[0], 0);
        ::dup2(from[1], 1);
        ::execve(arguments[0], arguments, variables.data());
        ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    to_ = to[1];
    from_ = from[0];
}

Player::~Player() {
    kill();
    ::close(to_);
    ::close(from_);
}

void Player::kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
}

void Player::tell(const std::string& command) {
    // To a dead one the write fails, and the answer says so.
    const std::string line = command + "\n";
    ::signal(SIGPIPE, SIG_IGN);
    [[maybe_unused]] const auto written = ::write(to_, line.data(), line.size());
}

std::string Player::answer() {
    for (;;) {
        if (const auto end = pending_.find('\n'); end != std::string::npos) {
            const std::string line = pending_.substr(0, end);
            pending_.erase(0, end + 1);
            return line;
        }
        pollfd wait{from_, POLLIN, 0};
        if (::poll(&wait, 1, kTimeoutMs) != 1) return "late";
        char piece[512];
        const auto length = ::read(from_, piece, sizeof piece);
        if (length <= 0) return "dead";
        pending_.append(piece, static_cast<std::size_t>(length));
    }
}

std::string Player::ask(const std::string& command) {
    tell(command);
    return answer();
}

std::vector<std::uint64_t> Player::numbers(const std::string& command) {
    std::istringstream text(ask(command));
    std::string word;
    std::vector<std::uint64_t> found;
    if (!(text >> word) || word != "ok") return found;
    for (std::uint64_t value = 0; text >> value;) found.push_back(value);
    return found;
}

Stage::Stage(std::vector<fabricd::VgpuSpec> specs, std::uint64_t capacity,
             std::uint64_t context_bytes)
    : specs_(std::move(specs)) {
    const std::string file = directory_.file("gpu");
    make_device(file, capacity, context_bytes);
    gpu_ = open_device(file);
    for (auto& spec : specs_) spec.device_bytes = capacity;
    start_daemon();
}

void Stage::start_daemon() {
    limits_ = fabricd::VgpuLimits::open(directory_.file("vgpu"), specs_).value();
    fabricd::VgpuServer::Options options;
    options.socket_path = directory_.file("attach.sock.vgpu");
    options.admits = [](std::uint32_t, std::uint32_t, int) { return true; };
    server_ = fabricd::VgpuServer::start(std::move(options), *limits_).value();
}

void Stage::stop_daemon() {
    server_.reset();
    limits_.reset();
}

std::unique_ptr<Player> Stage::player(const std::string& name,
                                      const std::vector<std::string>& environment,
                                      const std::string& program) {
    // The first of two with the same name counts.
    std::vector<std::string> all = environment;
    for (const std::string& entry :
         {"FABRIC_VGPU=" + name, "FABRIC_SOCKET=" + directory_.file("attach.sock"),
          "FABRIC_MOCK_GPU=" + directory_.file("gpu"), std::string("FABRIC_LOG=error"),
          std::string("LD_LIBRARY_PATH=" GPU_MOCK_FOLDER)}) {
        all.push_back(entry);
    }
    if (VGPU_SHIM_PATH[0] != '\0' && name != "bare") all.emplace_back("LD_PRELOAD=" VGPU_SHIM_PATH);
    auto made = std::make_unique<Player>(all, program);
    made->ask("init");
    made->ask("context");
    return made;
}

fabricd::VgpuView Stage::view(const std::string& name) {
    for (auto& found : limits_->list()) {
        if (found.spec.name == name) return found;
    }
    return {};
}

bool Stage::settles_at(const std::string& name, std::uint64_t bytes) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (view(name).used_bytes != bytes) {
        if (std::chrono::steady_clock::now() > until) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
}

std::vector<std::string> runtime_programs() {
    std::istringstream text(GPU_RUNTIME_PROGRAMS);
    std::vector<std::string> found;
    for (std::string path; std::getline(text, path, ',');) found.push_back(path);
    return found;
}

bool has_kernel() {
    return GPU_RUNTIME_KERNEL != 0;
}

std::string runtime_version() {
    return GPU_RUNTIME_VERSION;
}

fabricd::VgpuSpec slice(const std::string& name, std::uint64_t quota, std::uint32_t share) {
    fabricd::VgpuSpec spec;
    spec.name = name;
    spec.gpu = "0";
    spec.quota_bytes = quota;
    spec.share_percent = share;
    return spec;
}

}  // namespace mock_gpu
