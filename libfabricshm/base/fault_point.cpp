#include "libfabricshm/base/fault_point.hpp"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libfabricshm/base/launcher.hpp"

namespace fabricshm::fault {

namespace {

struct Armed {
    std::string name;
    std::string action = "kill";
    std::atomic<long> left{1};
    long argument = 0;
};
using Plan = std::vector<std::unique_ptr<Armed>>;

// Cuts `text` at the first `mark`; what is left of it afterwards is "" when there is none.
std::string_view take(std::string_view& text, char mark) {
    const auto at = text.find(mark);
    const std::string_view first = text.substr(0, at);
    text = at == std::string_view::npos ? std::string_view() : text.substr(at + 1);
    return first;
}

bool is_variable(const char* variable, std::string_view wanted) {
    const char* value = std::getenv(variable);
    return value != nullptr && wanted == value;
}

bool is_rank(std::string_view wanted) {
    for (const LauncherRow& row : launcher_table()) {
        if (std::getenv(row.rank[0]) != nullptr) return is_variable(row.rank[0], wanted);
    }
    return false;
}

// Whether this process is meant.
bool is_me(std::string_view who) {
    if (who == "daemon") return std::strcmp(::program_invocation_short_name, "fabricd") == 0;
    const std::string_view kind = take(who, '=');
    if (kind == "rank") return is_rank(who);
    if (kind == "device") return is_variable("FABRIC_DEVICE", who);
    return kind == "host" && is_variable("FABRIC_HOST", who);
}

std::unique_ptr<Armed> parse_entry(std::string_view entry) {
    if (entry.find('@') != std::string_view::npos && !is_me(take(entry, '@'))) return nullptr;
    auto armed = std::make_unique<Armed>();
    armed->name = take(entry, ':');
    if (armed->name.empty()) return nullptr;
    if (!entry.empty()) armed->action = take(entry, ':');
    if (!entry.empty()) armed->left = std::atol(std::string(take(entry, ':')).c_str());
    if (!entry.empty()) armed->argument = std::atol(std::string(entry).c_str());
    return armed;
}

// Never freed: points may pass until the last moment of the process.
Plan* parse(const char* text) {
    if (text == nullptr) return nullptr;
    auto* plan = new Plan;
    for (std::string_view rest = text; !rest.empty();) {
        if (auto armed = parse_entry(take(rest, ';')); armed) plan->push_back(std::move(armed));
    }
    return plan;
}

void delay(long microseconds) noexcept {
    timespec left{microseconds / 1'000'000, microseconds % 1'000'000 * 1000};
    while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

// One line for the author of the plan: one write, so that lines of several processes do not mix.
void report(const Armed& armed) noexcept {
    const char* path = std::getenv("FABRIC_FAULT_REPORT");
    if (path == nullptr || *path == '\0') return;
    const int fd = ::open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return;
    char line[256];
    const int length = std::snprintf(line, sizeof line, "%d %s %s\n", ::getpid(),
                                     armed.action.c_str(), armed.name.c_str());
    if (length > 0 && static_cast<std::size_t>(length) < sizeof line) {
        [[maybe_unused]] const auto written = ::write(fd, line, static_cast<std::size_t>(length));
    }
    ::close(fd);
}

void fire(const Armed& armed) noexcept {
    report(armed);
    if (armed.action == "exit") ::_exit(86);
    if (armed.action == "poison") {
        if (g_poison != nullptr) g_poison(armed.argument);
        return;
    }
    if (armed.action == "host") ::kill(0, SIGKILL);
    ::raise(armed.action == "stop" ? SIGSTOP : SIGKILL);
}

Plan* g_plan = parse(std::getenv("FABRIC_FAULT"));

}  // namespace

bool g_armed = g_plan != nullptr && !g_plan->empty();
void (*g_poison)(long argument) = nullptr;

void arm(const char* text) {
    // Plans of before are kept, since another thread may be passing a point: tests arm a few.
    static auto* const earlier = new std::vector<Plan*>;
    earlier->push_back(g_plan);
    g_plan = parse(text);
    g_armed = g_plan != nullptr && !g_plan->empty();
}

void pass(const char* name) noexcept {
    if (g_plan == nullptr) return;
    for (const auto& armed : *g_plan) {
        if (armed->name != name) continue;
        // The passage that takes the counter from 1 to 0 fires; relaxed, the counter orders
        // nothing. A slow point stays slow.
        const long left = armed->left.fetch_sub(1, std::memory_order_relaxed);
        if (armed->action == "slow" && left == 1) report(*armed);
        if (armed->action == "slow" && left <= 1) delay(armed->argument);
        if (armed->action != "slow" && left == 1) fire(*armed);
    }
}

}  // namespace fabricshm::fault
