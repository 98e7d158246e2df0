// What a job file asks for, as plain data. fabricd/config/job_file.hpp reads it. docs/jobs.md.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Bytes;
using fabricshm::Duration;

inline constexpr unsigned kMaxJobRanks = 1024;

enum class JobStrategy { kAllreduce, kParameterServer };
enum class JobSchedule { kEven, kByResource };
/// What is started again when a rank fails: all ranks, which meet again, or that rank alone.
enum class JobRestart { kJob, kRank };
/// What a fault of a device leads to while its ranks run: an alarm, or also a move to others.
enum class JobDeviceFault { kAlarm, kMove };

/// Ranks on devices of one kind.
struct JobGroup {
    std::string kind;        // "gpu", ...
    unsigned ranks = 0;      // 1 to 1024; 0: the job lost all of them and goes on
    Bytes pool = 0;          // of all its ranks together; 0: nothing said
    std::string constraint;  // a shell pattern for names of devices; "": any
    int line = 0;
    unsigned nodes = 1;  // of Slurm: over how many the ranks are spread, as many on each
    std::vector<std::string> slurm_options{};  // of sbatch for its nodes, as "--constraint=a100"
};

/// How batches are split between ranks, where not as the schedule has it.
enum class JobSplit { kBySchedule, kEven, kWeighted };

/// The samples that the job trains on.
struct JobData {
    std::string path;  // as the script reads it; "": nothing said
    int path_line = 0;
    std::string cache;  // the same files in the data cache, which `path` is a mount of; "": in none
    JobSplit split = JobSplit::kBySchedule;
    double pass_on = 0.0;  // share of a rank's samples that it swaps after each step, 0 to 1
};

struct JobSpec {
    std::string name;
    std::string script;
    int script_line = 0;
    std::vector<std::string> arguments;
    std::string interpreter = "python3";  // "": the script is a program
    bool override_backend = false;
    bool wrap = false;               // the script is one for a single process
    bool wrap_sums = false;          // its loss sums over its batch; else it takes the mean
    int priority = 0;                // the larger one goes first
    std::vector<std::string> after;  // names or numbers of jobs that have to end well before
    JobStrategy strategy = JobStrategy::kAllreduce;
    unsigned servers = 0;    // of a parameter server; as many ranks own a part of the parameters
    unsigned staleness = 0;  // of a parameter server: steps that a rank may be ahead
    JobSchedule schedule = JobSchedule::kEven;
    JobRestart restart = JobRestart::kJob;
    unsigned max_restarts = 0;
    unsigned min_ranks = 0;  // with fewer it fails; 0: it needs all
    JobDeviceFault device_fault = JobDeviceFault::kAlarm;
    Duration time_limit{};                             // zero: none
    Duration grace = std::chrono::seconds(10);         // from SIGTERM to SIGKILL
    Duration adopt_within = std::chrono::seconds(10);  // by another manager, after a kill
    std::vector<JobGroup> groups;                      // at least one
    JobData data;
    std::string alarm_command;               // "": none
    std::vector<std::string> slurm_options;  // of sbatch for all groups, as "--partition=long"

    unsigned ranks() const {
        unsigned all = 0;
        for (const JobGroup& group : groups) all += group.ranks;
        return all;
    }
    /// Whether a rank's share of a batch is by what its device computes.
    bool splits_by_speed() const {
        if (data.split != JobSplit::kBySchedule) return data.split == JobSplit::kWeighted;
        return schedule == JobSchedule::kByResource;
    }
    Bytes pool() const {
        Bytes all = 0;
        for (const JobGroup& group : groups) all += group.pool;
        return all;
    }
};

}  // namespace fabricd
