// Fault plans: what goes wrong, where, and when, as a TOML file. docs/emulator.md has every key.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "libfabricshm/base/units.hpp"

namespace emu {

using fabricshm::Bytes;
using fabricshm::Duration;

enum class Action {
    kKill,
    kStop,    // SIGSTOP, and SIGCONT after `length`
    kSlow,    // each passage of the point takes `delay`
    kPoison,  // the page at `offset` of the arena is lost
    kFill,    // all that is free in the pool is taken for `length`
    kTear,    // the daemon dies and the end of its journal is damaged
};

enum class TargetKind { kRank, kDevice, kHost, kDaemon };

/// What a fault is meant for. Ranks are identified by $RANK, devices by $FABRIC_DEVICE unless the
/// plan lists their ranks; hosts are lists of ranks in the plan, since on one machine nothing else
/// distinguishes them.
struct Target {
    TargetKind kind = TargetKind::kRank;
    int rank = 0;      // kRank
    std::string name;  // kDevice, kHost
};

/// What is done to the end of a dead daemon's journal: the last record loses bytes, has a bit
/// turned, or is followed by half of another. All three are what a power failure leaves.
enum class Damage { kCut, kFlip, kGarbage };

/// One thing that goes wrong: at a passage of a named point, or some time after the start (a pool
/// that is filled after no time is full before the command starts).
struct Fault {
    Action action = Action::kKill;
    Target target;
    std::string point;  // empty: `after` counts
    std::int64_t passage = 1;
    Duration after{0};
    std::optional<Duration> length;  // stop, fill; nothing: to the end
    Duration delay{0};               // slow
    Bytes offset = 0;                // poison
    Damage damage = Damage::kCut;    // tear
    bool restart = true;             // of a daemon that dies
    int line = 0;                    // in the file
};

/// A whole file. Faults are in the order of the file, and those of the same moment strike in that
/// order.
/// What a run needs besides: hosts and devices as lists of ranks, and how to start a daemon that
/// may be damaged.
struct FaultPlan {
    std::map<std::string, std::vector<int>> hosts;    // ranks of each
    std::map<std::string, std::vector<int>> devices;  // likewise; others: by $FABRIC_DEVICE
    bool own_daemon = false;                          // there is a [daemon] table
    std::string daemon_program = "fabricd";
    std::vector<std::string> daemon_arguments;
    std::vector<Fault> faults;
};

/// A plan, or a line for people that names file, line and key.
struct ParsedPlan {
    std::optional<FaultPlan> plan;
    std::string error_message;
};

/// `name` stands in front of the error message. Every rule is checked here: a plan that is read can
/// be run.
ParsedPlan parse_plan(const std::string& text, const std::string& name);
ParsedPlan read_plan(const std::string& path);

/// What FABRIC_FAULT has to say for the faults at named points: for the ranks, and for the daemon.
/// Both are empty when nothing is armed. The syntax is that of libfabricshm/base/fault_point.hpp;
/// it is the only thing that the library knows of plans.
std::string armed_in_ranks(const FaultPlan& plan);
std::string armed_in_daemon(const FaultPlan& plan);

/// "rank 1", "host left": as in the file.
std::string text_of(const Target& target);
const char* text_of(Action action) noexcept;

/// Ranks that a target means; nothing for a device that the plan does not list, and the daemon.
std::vector<int> ranks_of(const FaultPlan& plan, const Target& target);

}  // namespace emu
