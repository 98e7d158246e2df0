// The command line of fabricctl.

#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fabricd/config/completion.hpp"
#include "fabricd/pool/snapshot.hpp"
#include "fabricd/vgpu/vgpu_view.hpp"

namespace fabricd {

/// Exit codes, as in the manual page.
enum class CtlExit : int { kOk = 0, kFailed = 1, kUsage = 2, kNoDaemon = 3 };

/// A job of Slurm, and what it wants of the pool.
struct SlurmOrder {
    static constexpr std::uint64_t kAnyUser = UINT64_MAX;

    std::uint64_t job = 0;
    std::uint64_t bytes = 0;
    std::uint64_t user = kAnyUser;  // uid; kAnyUser: not checked
};

/// What `jobs` is to do.
struct JobOrder {
    static constexpr std::uint64_t kAllRanks = UINT64_MAX;

    std::string action;  // "check"; "": list
    std::string what;    // of check, run and submit a job file, else a job's number or name
    std::vector<std::string> more;                       // of remove: further jobs
    std::optional<std::chrono::nanoseconds> older_than;  // of remove, instead of jobs
    std::vector<std::string> outcomes;                   // of remove with it: "ok"; empty: all
    std::string devices;                                 // a device file; "": what the daemon has
    std::uint64_t rank = kAllRanks;                      // of logs
    bool follow = false;                                 // of logs
    bool without_daemon = false;                         // of check, run and submit
    std::uint64_t at_once = 1;                           // of serve
    bool is_slurms = false;                              // of check and submit
    bool is_resumed = false;  // of run: what is given is a job whose manager was killed
    bool is_queued = false;   // of run: what is given is the number of a queued job
};

/// What the command line said, checked and with its units resolved. One struct for all commands: a
/// field that a command does not have keeps its default.
struct CtlOptions {
    std::string command;  // "arenas"
    bool json = false;
    std::optional<double> watch;  // seconds between pictures
    std::uint64_t count = 0;      // pictures until a watch ends; 0: no end
    std::string socket;           // "": the usual places
    double timeout = 5.0;         // seconds: until an answer of the daemon has to be there
    std::uint64_t arena_id = 0;   // of regions; 0: all
    bool drain_off = false;
    std::optional<double> wait;    // seconds: of drain and shutdown
    std::vector<int> ranks{2, 4};  // of tune: the world sizes to measure
    // Of tune and trace: the file to write; "": where the library searches, trace.json.
    std::string output;
    double trace_seconds = 5.0;  // of trace
    bool quick = false;          // of tune
    std::string emulate;         // of tune: the machine to emulate meanwhile; "": none
    int slow_motion = 1;         // of tune
    MoveOrder move;              // of migrate
    // Of quota a device or "user:NAME", of evict a session or "arena:NAME", of inspect an id or
    // name, of completion a shell, of trace a job.
    std::string subject;
    double grace = 10.0;            // of evict: seconds from SIGTERM to SIGKILL
    std::uint64_t quota_bytes = 0;  // of quota
    double quota_grace = 30.0;      // of quota: seconds
    VgpuOrder vgpu;                 // of vgpu-resize and vgpu-share
    SlurmOrder slurm;               // of slurm-admit and slurm-release
    JobOrder job;                   // of jobs
    // Of devices the device file to check ("": ask the daemon), of doctor the configuration, of
    // replay the journal, of dashboard the token.
    std::string file;
    std::size_t last = 20;          // of decisions; 0: all that the daemon remembers
    std::uint64_t decision_id = 0;  // of why
    // Of replay key=value, of dashboard the names of hosts.
    std::vector<std::string> settings;
    std::string listen = "127.0.0.1:8765";  // of dashboard
    std::string host_action;                // of hosts: "fence", or "" to show them
    bool confirmed = false;                 // of hosts fence
};

/// Times of options are seconds.
inline std::chrono::milliseconds milliseconds(double seconds) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000.0));
}

/// What main should do next: go on with the command, or end with this code after this text.
struct CtlParse {
    std::optional<CtlExit> exit;
    std::string text;  // to standard output for kOk, to standard error otherwise
};

/// Fills in `options`. Never ends the process, main does: so tests can check what was printed. With
/// an `exit` the options are half filled in and not to be used.
CtlParse parse_ctl_options(int argc, const char* const* argv, CtlOptions& options);

/// What a shell can complete, from the same rows.
CompletedProgram ctl_program();

}  // namespace fabricd
