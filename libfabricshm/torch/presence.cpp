#include "libfabricshm/torch/presence.hpp"

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <thread>
#include <utility>

#include "libfabricshm/os/identity.hpp"

namespace fabricshm::torch_backend {
namespace {

using std::chrono::microseconds;

// A check for life reads a file of /proc, and may ask the store.
constexpr std::chrono::milliseconds kLookEvery{100};
// From a connection that has ended to the end of its process, on a busy machine.
constexpr std::chrono::seconds kSoon{2};

std::string process_key(const std::string& prefix, int rank) {
    return prefix + "/process/" + std::to_string(rank);
}

}  // namespace

void Presence::announce(int rank) {
    const auto own = own_identity();
    // Then its death is not noticed before the timeout.
    if (!own.ok()) return;
    std::ostringstream text;
    text << own->pid << ' ' << own->start_time << ' ' << own->pid_namespace << ' '
         << own_host().boot;
    const std::string line = text.str();
    store_->set(process_key(prefix_, rank), std::vector<std::uint8_t>(line.begin(), line.end()));
}

std::optional<ProcessIdentity> Presence::process_of(int rank) {
    if (const auto known = known_.find(rank); known != known_.end()) return known->second;
    const std::string key = process_key(prefix_, rank);
    if (!store_->check({key})) return std::nullopt;
    const auto bytes = store_->get(key);
    std::istringstream text(std::string(bytes.begin(), bytes.end()));
    ProcessIdentity process;
    std::uint64_t boot = 0;
    text >> process.pid >> process.start_time >> process.pid_namespace >> boot;
    // Numbers of another host, or none: they say nothing about a process here.
    const bool is_here = !text.fail() && boot != 0 && boot == own_host().boot;
    return known_[rank] = is_here ? std::optional(process) : std::nullopt;
}

bool Presence::has_ended(int rank) {
    const auto process = process_of(rank);
    return process && liveness_of(*process) == Liveness::kDead;
}

bool Presence::has_come(int rank) {
    return store_->check({process_key(prefix_, rank)});
}

bool Presence::ends_soon(int rank) {
    const auto known = known_.find(rank);
    if (known == known_.end() || !known->second) return false;
    const auto limit = std::chrono::steady_clock::now() + kSoon;
    while (liveness_of(*known->second) != Liveness::kDead) {
        if (std::chrono::steady_clock::now() >= limit) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
}

bool await_keys(c10d::Store& store, const std::vector<std::string>& keys,
                std::chrono::steady_clock::time_point deadline, const std::function<void()>& look) {
    const auto begun = std::chrono::steady_clock::now();
    auto looks_at = begun;
    while (!store.check(keys)) {
        const auto now = std::chrono::steady_clock::now();
        if (now >= looks_at) {
            look();
            looks_at = now + kLookEvery;
        }
        if (now >= deadline) return false;
        // An eighth longer than it has to be at most, and a rank that loads its libraries for
        // seconds is not waited for by the microsecond.
        const auto eighth = std::chrono::duration_cast<microseconds>(now - begun) / 8;
        std::this_thread::sleep_for(std::clamp(eighth, microseconds(200), microseconds(50'000)));
    }
    return true;
}

}  // namespace fabricshm::torch_backend
