// A cluster of hosts in simulated time: the daemons' own membership code (fabricd/net), with an
// etcd and with failures that are not there.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "emu/sim/cluster_oracle.hpp"
#include "emu/sim/simulated_store.hpp"
#include "fabricd/net/cluster_member.hpp"

namespace emu {

enum class FailureKind {
    kDeath,    // power is lost; it boots again later, if it does
    kCut,      // no network
    kPause,    // the whole machine stands still, and goes on
    kRestart,  // its daemon ends and is started again
    kLeader,   // etcd has none for a moment
    kDown,     // etcd does not answer for 10 s
    kData,     // etcd begins again from nothing
    kRestore,  // etcd begins again from a snapshot of before
};
inline constexpr int kFailureKinds = 8;

/// "death"; nullptr beyond the last.
const char* name_of_failure(int kind) noexcept;

struct ClusterScenario {
    int hosts = 8;
    Seconds ttl = 5;
    int failures = 8;
    std::vector<FailureKind> kinds;  // in turn
    Seconds calm = 20;               // before the first failure: what an idle cluster costs
    Seconds length = 60;             // in which all failures begin
    Seconds reboot = 20;             // of a host that lost its power; below 0: never
    bool has_fence_command = true;
    Seconds fence_takes = 2;
    double fence_fails = 0.1;  // share of commands
    EtcdFigures etcd;
    std::uint64_t seed = 1;
    /// A wrong rule: memory is granted when its host is lost. For a test that the oracle finds it.
    bool grants_when_lost = false;
};

struct ClusterFailure {
    FailureKind kind = FailureKind::kDeath;
    int host = -1;  // of those that a host has
    Seconds at = 0;
    Seconds length = 0;
};

struct ClusterResult {
    StoreCounts joining;  // all hosts, within the first seconds
    StoreCounts idle;     // in the calm
    Seconds idle_s = 0;
    StoreCounts failing;  // after it
    Seconds failing_s = 0;
    std::vector<ClusterFailure> failures;
    std::vector<HostLoss> losses;
    int observers = 0;
    std::uint64_t self_fences = 0;
    std::uint64_t commands = 0;
    std::uint64_t ended_again = 0;  // hosts that a fence command ended while they were up again
    std::uint64_t fault_count = 0;
    std::vector<std::string> faults;  // the first ones
    Seconds simulated_s = 0;
    std::uint64_t events = 0;
};

/// The same scenario gives the same result, to the last digit. Some 0.4 MB of memory for each host
/// of a thousand.
ClusterResult run_cluster(const ClusterScenario& scenario);

}  // namespace emu
