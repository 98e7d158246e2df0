// The fabricd that a fault plan may harm: started for one command, in a folder of its own.

#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "emu/faults/fault_plan.hpp"

namespace emu {

/// One folder, one daemon at a time in it, several one after the other: socket, journal and log
/// stay in the same places, as after a restart by an init system.
class OwnDaemon {
  public:
    /// Makes the folder. `program` is searched for next to this program, then in PATH.
    OwnDaemon(const std::string& program, std::vector<std::string> arguments);
    /// Ends the daemon (SIGTERM, then SIGKILL after 10 s) and removes the folder.
    ~OwnDaemon();
    OwnDaemon(const OwnDaemon&) = delete;
    OwnDaemon& operator=(const OwnDaemon&) = delete;

    /// Starts it with these points armed ("": none) and the report of fired ones in `report`. False
    /// when there is no such program.
    bool start(const std::string& armed, const std::string& report);
    /// Waits until it takes connections; false when it ends or does not within 30 s, and at once
    /// when there is none.
    bool wait_until_ready();

    /// True once after it ended without having been asked to; never waits.
    bool died();
    void signal(int number) const;
    /// Damages the end of the journal. The daemon has to be dead.
    bool damage_journal(Damage damage) const;

    std::string socket() const { return folder_ + "/attach.sock"; }
    const std::string& folder() const noexcept { return folder_; }
    /// -1 when there is none: it died, or could not be started. Never to be handed to kill(), for
    /// which -1 means every process of this user.
    pid_t pid() const noexcept { return pid_; }
    /// That of the newest one, also after died() has reported its end: its last words may still be
    /// unread then. No more to be handed to kill().
    pid_t last_pid() const noexcept { return last_pid_; }
    /// The processes that a signal for the daemon goes to: none when there is no daemon.
    std::vector<pid_t> processes() const;

  private:
    bool is_running() const;

    std::string folder_;
    std::string program_;
    std::vector<std::string> arguments_;
    pid_t pid_ = -1;
    pid_t last_pid_ = -1;
};

}  // namespace emu
