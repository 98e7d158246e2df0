#include "libfabricshm/base/fault_point.hpp"

#include <unistd.h>
#include <csignal>

#include <atomic>
#include <cstdlib>
#include <string>

namespace fabricshm::fault {

namespace {

struct Armed {
    std::string name;
    std::string action = "kill";
    std::atomic<long> left{1};
};

Armed* parse(const char* text) {
    if (text == nullptr || *text == '\0') return nullptr;
    auto* armed = new Armed;  // lives as long as the process: points may pass until its last moment
    const std::string all = text;
    const auto first = all.find(':');
    const auto second = first == std::string::npos ? first : all.find(':', first + 1);
    armed->name = all.substr(0, first);
    if (first != std::string::npos) armed->action = all.substr(first + 1, second - first - 1);
    if (second != std::string::npos) armed->left = std::atol(all.c_str() + second + 1);
    return armed;
}

Armed* g_plan = parse(std::getenv("FABRIC_FAULT"));

}  // namespace

bool g_armed = g_plan != nullptr;

void arm(const char* text) {
    g_plan = parse(text);
    g_armed = g_plan != nullptr;
}

void pass(const char* name) noexcept {
    if (g_plan == nullptr || g_plan->name != name) return;
    // The passage that takes the counter from 1 to 0 fires; relaxed, the counter orders nothing.
    if (g_plan->left.fetch_sub(1, std::memory_order_relaxed) != 1) return;
    if (g_plan->action == "exit") ::_exit(86);
    ::raise(g_plan->action == "stop" ? SIGSTOP : SIGKILL);
}

}  // namespace fabricshm::fault
