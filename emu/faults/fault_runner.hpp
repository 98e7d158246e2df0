// Runs a command and lets happen to it what a fault plan says.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "emu/faults/fault_plan.hpp"
#include "emu/faults/own_daemon.hpp"
#include "emu/faults/pool_filler.hpp"

namespace emu {

/// How it went. `status` is as waitpid() says it; -1 when nothing could be started.
struct RunOutcome {
    int status = -1;
    std::vector<std::string> missed;  // faults that never happened
    std::string error_message;        // why nothing could be started
};

/// One command, one plan. Makes this process the one that inherits orphans of the command, so that
/// it finds the ranks wherever a launcher put them. SIGINT, SIGTERM and SIGHUP are passed on.
class FaultRunner {
  public:
    FaultRunner(FaultPlan plan, std::vector<std::string> command);
    ~FaultRunner();
    FaultRunner(const FaultRunner&) = delete;
    FaultRunner& operator=(const FaultRunner&) = delete;

    /// Once. Returns when the command has ended and the daemon, if it is the plan's own, is
    /// stopped.
    RunOutcome run();

  private:
    struct Pending {
        Fault fault;
        bool happened = false;
        fabricshm::TimePoint until = fabricshm::TimePoint::max();  // its end, once it happened
        std::vector<pid_t> stopped;
    };

    // In the order in which a run goes through them.
    bool start(RunOutcome& outcome);
    bool start_command();
    void strike(Pending& pending);
    void strike_processes(Pending& pending);
    void finish(Pending& pending);
    void look_after_daemon();
    void look_for_stops();
    void read_reports();
    bool reap(RunOutcome& outcome);
    std::vector<pid_t> processes_of(const Target& target) const;
    void say(const Fault& fault, const std::string& what) const;

    FaultPlan plan_;
    std::vector<std::string> command_;
    std::vector<Pending> pending_;
    // Its own, below $TMPDIR: the report that processes append to before a fault strikes them.
    std::string folder_;
    std::unique_ptr<OwnDaemon> daemon_;
    std::unique_ptr<PoolFiller> filler_;
    fabricshm::TimePoint begin_;
    pid_t child_ = -1;
    std::size_t reported_ = 0;  // bytes of the report that were read
};

}  // namespace emu
