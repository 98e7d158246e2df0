// What is kept of a job: a folder of its user's, with its file, its journal and its logs.
//
// The journal is text, one line for each edge: "UNIX_MS STATE REASON". One process at a time writes
// it, the one that holds the job's lock; any may read it. A line that was torn by a kill is
// ignored.

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

enum class JobPhase {
    kQueued,
    kAdmitted,  // what it waits for has ended well, and it is its turn
    kPlaced,    // each rank has its device
    kStarting,
    kRunning,
    kRepairing,  // ranks are started again
    kEnding,
    kEnded
};
enum class JobOutcome { kNone, kOk, kFailed, kCancelled };

const char* name_of(JobPhase state) noexcept;
const char* name_of(JobOutcome outcome) noexcept;

struct JobEdge {
    std::int64_t unix_ms = 0;
    JobPhase state = JobPhase::kQueued;
    JobOutcome outcome = JobOutcome::kNone;  // of kEnded
    int code = 0;                            // of kEnded
    std::string reason;
};

/// The edges of a journal's text. Never fails: what is no edge is left out.
std::vector<JobEdge> parse_journal(const std::string& text);
/// Its line, with control characters replaced.
std::string journal_line(const JobEdge& edge);

/// $FABRIC_JOBS_DIR, else fabricd/jobs in $XDG_STATE_HOME or ~/.local/state.
std::string jobs_dir();

/// Now, as journals have it.
std::int64_t unix_ms_now() noexcept;

class JobFolder {
  public:
    using Files = std::vector<std::pair<std::string, std::string>>;  // name and text

    /// A new one in `jobs` (made when it is missing) with the next number, and these files.
    /// Complete when it returns, or not there: a kill leaves a folder without a number.
    static fabricshm::Result<JobFolder> create(const std::string& jobs, const Files& files) {
        return make(jobs, files, false);
    }
    /// The same, with its lock: no other process has it before, not for a moment.
    static fabricshm::Result<JobFolder> create_locked(const std::string& jobs, const Files& files) {
        return make(jobs, files, true);
    }
    /// kNotFound when there is none of that number.
    static fabricshm::Result<JobFolder> open(const std::string& jobs, unsigned number);
    /// The numbers that there are, ascending.
    static std::vector<unsigned> list(const std::string& jobs);

    unsigned number() const noexcept { return number_; }
    const std::string& path() const noexcept { return path_; }
    std::string file_path() const { return path_ + "/job.toml"; }
    std::string state_path() const { return path_ + "/state"; }
    std::string door_path(std::size_t agent) const {
        return path_ + "/agent-" + std::to_string(agent) + ".sock";
    }
    std::string log_path(unsigned rank) const {
        return path_ + "/rank-" + std::to_string(rank) + ".log";
    }

    /// Appends to the journal.
    void note(JobEdge edge) const noexcept;
    std::vector<JobEdge> edges() const;

    /// Held until the process ends, however it ends. kBusy while another one has it.
    fabricshm::Result<void> lock();
    /// The process that holds the lock; nothing: none does. Not while another object of this
    /// process holds it, which the question would cost its lock.
    std::optional<pid_t> holder() const;

  private:
    static fabricshm::Result<JobFolder> make(const std::string& jobs, const Files& files,
                                             bool is_locked);
    fabricshm::Result<void> take_number(const std::string& jobs);
    JobFolder(std::string path, unsigned number) : path_(std::move(path)), number_(number) {}

    std::string path_;
    unsigned number_ = 0;
    fabricshm::Fd lock_;
};

}  // namespace fabricd
