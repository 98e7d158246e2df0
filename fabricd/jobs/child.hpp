// Children that do not outlive their parent.

#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

struct ChildSpec {
    std::vector<std::string> arguments;    // the first is the program's path
    std::vector<std::string> environment;  // NAME=VALUE, all of it
    int input = -1;                        // descriptors of the parent; -1: /dev/null, of the
    int output = -1;                       // outputs: the parent's own
    int error = -1;
    int extra = -1;         // becomes descriptor 3; -1: closed
    std::string directory;  // "": the parent's
    int parent_death = 0;   // the signal that it gets when its parent's thread ends
};

struct Child {
    pid_t pid = -1;
    fabricshm::Fd pidfd;
};

/// Starts a session and process group of its own, with no signal blocked or ignored, and none of
/// this process's descriptors but those named. Returns once the program runs: kNotFound, kDenied or
/// kSystem when it can't be executed. `parent_death` counts the calling *thread* as the parent:
/// call from one that lives as long as the process.
fabricshm::Result<Child> start_child(const ChildSpec& spec);

/// To all of its process group. Nothing when it is gone.
void signal_group(pid_t leader, int number) noexcept;

/// The exit code as a shell has it, 128 + signal; of a child that has ended (its pidfd is
/// readable).
int reap(const Child& child) noexcept;

/// From now on processes whose parents end become children of this one, if those are below it.
void adopt_orphans() noexcept;

/// Kills and reaps all children of this process but `kept`, until there are none: what children
/// left behind, in whatever session it is. Needs adopt_orphans(). Bounded: gives up after a second.
void kill_strays(const std::vector<pid_t>& kept) noexcept;

}  // namespace fabricd
