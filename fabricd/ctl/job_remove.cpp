#include "fabricd/ctl/job_remove.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "fabricd/ctl/job_check.hpp"
#include "fabricd/ctl/job_records.hpp"
#include "fabricd/ctl/job_slurm.hpp"
#include "fabricd/ctl/json.hpp"
#include "fabricd/jobs/job_removal.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

namespace {

using Records = std::vector<JobRecord>;

/// A job in the queue that begins when this one has ended well; nullptr: there is none.
const JobRecord* waiting_for(const Records& records, unsigned number) {
    for (auto one = records.begin(); one != records.end(); ++one) {
        if (one->job.state != JobPhase::kQueued || one->job.is_slurms) continue;
        const Records earlier(records.begin(), one);
        for (const std::string& word : one->job.after) {
            const JobRecord* other = find_record(earlier, word);
            if (other != nullptr && other->job.number == number) return &*one;
        }
    }
    return nullptr;
}

/// Why it stays: "" when it may go.
std::string reason_to_stay(const Records& records, const JobRecord& record) {
    const JobEdge& last = record.edges.back();
    if (last.state != JobPhase::kEnded) {
        return std::string("is ") + name_of(last.state) + " (fabricctl jobs cancel " +
               std::to_string(record.job.number) + ")";
    }
    const JobRecord* waiting = waiting_for(records, record.job.number);
    return waiting == nullptr ? "" : "is one that " + label_of(*waiting) + " waits for";
}

/// Takes it away, or says why not.
bool remove_one(const std::string& jobs, const Records& records, const JobRecord& record) {
    const auto refuse_it = [&](const std::string& why) {
        fail_job(CtlExit::kFailed, label_of(record) + " " + why);
        return false;
    };
    const std::string stays = reason_to_stay(records, record);
    if (!stays.empty()) return refuse_it(stays);
    auto folder = JobFolder::open(jobs, record.job.number);
    if (!folder.ok()) return refuse_it("was removed by another process");
    if (const auto locked = folder->lock(); !locked.ok()) {
        const bool is_busy = locked.error().code == fabricshm::Errc::kBusy;
        return refuse_it(is_busy ? "is being looked after by a process, try again"
                                 : "stays: " + fabricshm::explanation_of(locked.error()));
    }
    const auto retired = retire_folder(jobs, *folder);
    return retired.ok() || refuse_it("stays: " + fabricshm::explanation_of(retired.error()));
}

/// The jobs that the command line names. `all_found`: false after a line for each that is none.
std::vector<const JobRecord*> named_jobs(const CtlOptions& options, const Records& records,
                                         bool& all_found) {
    std::vector<std::string> words = {options.job.what};
    words.insert(words.end(), options.job.more.begin(), options.job.more.end());
    std::vector<const JobRecord*> found;
    for (const std::string& word : words) {
        std::string problem;
        const JobRecord* one = find_only_record(records, word, problem);
        if (one == nullptr) fail_job(CtlExit::kFailed, problem);
        all_found = all_found && one != nullptr;
        const bool is_new = std::find(found.begin(), found.end(), one) == found.end();
        if (one != nullptr && is_new) found.push_back(one);
    }
    return found;
}

/// Those that ended so long ago, and may go.
std::vector<const JobRecord*> old_jobs(const CtlOptions& options, const Records& records) {
    const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(*options.job.older_than);
    const std::int64_t until = unix_ms_now() - age.count();
    const auto& outcomes = options.job.outcomes;
    std::vector<const JobRecord*> found;
    for (const JobRecord& record : records) {
        const JobEdge& last = record.edges.back();
        const bool is_wanted =
            outcomes.empty() ||
            std::find(outcomes.begin(), outcomes.end(), name_of(last.outcome)) != outcomes.end();
        const bool is_old = last.state == JobPhase::kEnded && last.unix_ms <= until;
        if (is_old && is_wanted && waiting_for(records, record.job.number) == nullptr) {
            found.push_back(&record);
        }
    }
    return found;
}

}  // namespace

CtlExit remove_jobs(const CtlOptions& options) {
    const std::string jobs = jobs_dir();
    refresh_slurm_jobs(jobs);
    const Records records = read_job_records(jobs);
    bool is_all = true;
    const auto chosen =
        options.job.older_than ? old_jobs(options, records) : named_jobs(options, records, is_all);
    std::vector<unsigned> removed;
    for (const JobRecord* record : chosen) {
        const bool is_removed = remove_one(jobs, records, *record);
        if (is_removed) removed.push_back(record->job.number);
        is_all = is_all && is_removed;
    }
    const SweptJobs swept = sweep_jobs(jobs);
    if (!swept.problem.empty()) {
        fail_job(CtlExit::kFailed, "files of removed jobs are left: " + swept.problem);
    }
    if (options.json) {
        std::printf("%s\n",
                    one_line(Json({{"removed", removed}, {"bytes_freed", swept.bytes}})).c_str());
    } else {
        std::printf("%zu %s removed, %s freed\n", removed.size(),
                    removed.size() == 1 ? "job" : "jobs",
                    fabricshm::format_bytes(swept.bytes).c_str());
    }
    return is_all && swept.problem.empty() ? CtlExit::kOk : CtlExit::kFailed;
}

}  // namespace fabricd
