#include "fabricd/ctl/job_records.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "fabricd/config/job_file.hpp"
#include "fabricd/ctl/admin_client.hpp"
#include "fabricd/ctl/job_processes.hpp"
#include "fabricd/ctl/job_slurm.hpp"
#include "fabricd/ctl/json.hpp"
#include "fabricd/ctl/table.hpp"
#include "fabricd/jobs/rank_output.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/process.hpp"

namespace fabricd {

namespace {

constexpr auto kLogInterval = std::chrono::milliseconds(100);

CtlExit refuse(CtlExit code, const std::string& text) {
    std::fprintf(stderr, "fabricctl: %s\n", text.c_str());
    return code;
}

std::string edge_time(std::int64_t unix_ms) {
    const std::time_t seconds = unix_ms / 1000;
    std::tm local{};
    char text[64] = "";
    if (::localtime_r(&seconds, &local) != nullptr) {
        std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
    }
    return text;
}

std::string state_text(const JobEdge& edge) {
    if (edge.state != JobPhase::kEnded) return name_of(edge.state);
    return std::string("ended ") + name_of(edge.outcome);
}

/// What is shown of a job.
struct ShownState {
    std::string state;
    std::string reason;
};

/// `processes`: of all jobs, to say of a lost one what there is to do.
ShownState shown_state(const JobRecord& record, const std::vector<JobProcess>& processes) {
    const JobEdge& last = record.edges.back();
    if (!record.is_lost()) return {state_text(last), last.reason};
    const bool has_ranks = std::any_of(processes.begin(), processes.end(), [&](const auto& one) {
        return one.job == record.job.number;
    });
    const std::string number = std::to_string(record.job.number);
    return {"lost", has_ranks
                        ? "its task manager was killed; ranks wait for another one (fabricctl "
                          "jobs run --resume " +
                              number + ")"
                        : "its task manager was killed, and its ranks have ended (fabricctl "
                          "jobs cancel " +
                              number + ")"};
}

/// Those of the jobs, where one is lost: they are all of this user's that are looked through.
std::vector<JobProcess> processes_of_lost(const std::vector<JobRecord>& records) {
    const bool any = std::any_of(records.begin(), records.end(),
                                 [](const JobRecord& record) { return record.is_lost(); });
    return any ? job_processes() : std::vector<JobProcess>{};
}

std::optional<JobRecord> read_record(const JobFolder& folder) {
    JobRecord record;
    record.edges = folder.edges();
    if (record.edges.empty()) return {};  // being made
    record.job.number = folder.number();
    record.job.state = record.edges.back().state;
    record.job.outcome = record.edges.back().outcome;
    record.job.is_managed = record.job.state != JobPhase::kEnded && folder.holder().has_value();
    if (const auto number = slurm_number(folder)) {
        record.slurm = *number;
        record.job.is_slurms = true;
    }
    JobSpec spec;
    if (read_job_file(folder.file_path(), spec)) return record;
    record.job.name = spec.name;
    record.job.priority = spec.priority;
    record.job.after = spec.after;
    return record;
}

/// The job that the command line names; nullptr after one line that says why not.
const JobRecord* named_job(const CtlOptions& options, const std::vector<JobRecord>& records) {
    if (options.job.what.empty()) {
        refuse(CtlExit::kUsage, "jobs " + options.job.action + " takes a job's number or name");
        return nullptr;
    }
    const JobRecord* found = find_record(records, options.job.what);
    if (found == nullptr) {
        refuse(CtlExit::kFailed, "there is no job " + options.job.what + " (fabricctl jobs)");
    }
    return found;
}

Json json_of(const JobRecord& record) {
    Json edges = Json::array();
    for (const JobEdge& edge : record.edges) {
        edges.push_back(
            {{"unix_ms", edge.unix_ms}, {"state", name_of(edge.state)}, {"reason", edge.reason}});
    }
    const JobEdge& last = record.edges.back();
    return {{"job", record.job.number},
            {"name", record.job.name},
            {"priority", record.job.priority},
            {"state", name_of(last.state)},
            {"outcome", name_of(last.outcome)},
            {"code", last.code},
            {"reason", last.reason},
            {"lost", record.is_lost()},
            {"slurm", record.slurm.empty() ? Json() : Json(record.slurm)},
            {"edges", edges}};
}

/// The logs of a job by rank, and how far each was shown.
class LogReader {
  public:
    LogReader(std::string folder, std::uint64_t rank) : folder_(std::move(folder)), rank_(rank) {}

    void show_new() {
        for (const unsigned rank : ranks()) {
            if (rank_ != JobOrder::kAllRanks && rank_ != rank) continue;
            auto [at, is_new] = shown_.try_emplace(rank);
            if (is_new) at->second.lines = LinePrefixer("[" + std::to_string(rank) + "] ");
            show(folder_ + "/rank-" + std::to_string(rank) + ".log", at->second);
        }
        std::fflush(stdout);
    }
    bool is_empty() const { return shown_.empty(); }
    void finish() {
        for (auto& [rank, one] : shown_) std::fputs(one.lines.finish().c_str(), stdout);
    }

  private:
    struct Shown {
        std::streamoff bytes = 0;
        LinePrefixer lines;
    };

    std::set<unsigned> ranks() const {
        std::set<unsigned> found;
        std::error_code error;
        std::filesystem::directory_iterator at(folder_, error), end;
        for (; !error && at != end; at.increment(error)) {
            unsigned rank = 0;
            int used = 0;
            const std::string name = at->path().filename();
            const bool is_log = std::sscanf(name.c_str(), "rank-%u.log%n", &rank, &used) == 1;
            if (is_log && used == static_cast<int>(name.size())) found.insert(rank);
        }
        return found;
    }
    static void show(const std::string& path, Shown& one) {
        std::ifstream file(path);
        file.seekg(one.bytes);
        char bytes[16384];
        while (file.read(bytes, sizeof bytes) || file.gcount() > 0) {
            one.bytes += file.gcount();
            const std::string_view text(bytes, static_cast<std::size_t>(file.gcount()));
            std::fputs(one.lines.add(text).c_str(), stdout);
        }
    }

    std::string folder_;
    std::uint64_t rank_;
    std::map<unsigned, Shown> shown_;
};

/// "job-UID-NUMBER" of this user's.
std::optional<unsigned> job_of_arena(const std::string& arena) {
    const std::string prefix = "job-" + std::to_string(::getuid()) + "-";
    if (!arena.starts_with(prefix)) return {};
    return static_cast<unsigned>(std::atoi(arena.c_str() + prefix.size()));
}

}  // namespace

const JobRecord* find_record(const std::vector<JobRecord>& records, const std::string& what) {
    const JobRecord* found = nullptr;
    for (const JobRecord& record : records) {
        if (std::to_string(record.job.number) == what || record.job.name == what) found = &record;
    }
    return found;
}

const JobRecord* find_only_record(const std::vector<JobRecord>& records, const std::string& what,
                                  std::string& problem) {
    const JobRecord* found = nullptr;
    std::string numbers;
    for (const JobRecord& record : records) {
        const std::string number = std::to_string(record.job.number);
        if (number == what) return &record;
        if (record.job.name != what) continue;
        numbers += (numbers.empty() ? "" : ", ") + number;
        problem = found == nullptr ? "" : "several jobs are called " + what + ": " + numbers;
        found = &record;
    }
    if (found == nullptr) problem = "there is no job " + what + " (fabricctl jobs)";
    return problem.empty() ? found : nullptr;
}

std::string label_of(const JobRecord& record) {
    const std::string number = "job " + std::to_string(record.job.number);
    return record.job.name.empty() ? number : number + " (" + record.job.name + ")";
}

std::vector<JobRecord> read_job_records(const std::string& jobs) {
    std::vector<JobRecord> records;
    for (const unsigned number : JobFolder::list(jobs)) {
        const auto folder = JobFolder::open(jobs, number);
        if (!folder.ok()) continue;
        if (auto record = read_record(*folder)) records.push_back(std::move(*record));
    }
    return records;
}

CtlExit list_jobs(const CtlOptions& options) {
    refresh_slurm_jobs(jobs_dir());
    const auto records = read_job_records(jobs_dir());
    const auto processes = processes_of_lost(records);
    Json all = Json::array();
    Table table(
        {{"JOB", kRight}, {"NAME"}, {"PRIORITY", kRight}, {"STATE"}, {"SINCE"}, {"REASON"}});
    for (const JobRecord& record : records) {
        const JobEdge& last = record.edges.back();
        all.push_back(json_of(record));
        const ShownState shown = shown_state(record, processes);
        table.add({std::to_string(record.job.number), record.job.name,
                   std::to_string(record.job.priority), shown.state, edge_time(last.unix_ms),
                   shown.reason});
    }
    std::fputs(options.json ? (one_line(all) + "\n").c_str() : table.text().c_str(), stdout);
    return CtlExit::kOk;
}

CtlExit show_job(const CtlOptions& options) {
    refresh_slurm_jobs(jobs_dir());
    const auto records = read_job_records(jobs_dir());
    const JobRecord* record = named_job(options, records);
    if (record == nullptr) return CtlExit::kFailed;
    if (options.json) {
        std::printf("%s\n", one_line(json_of(*record)).c_str());
        return CtlExit::kOk;
    }
    const std::string slurm = record->slurm.empty() ? "" : ", job " + record->slurm + " of Slurm";
    std::printf("job %u (%s), %s/%u%s\n", record->job.number, record->job.name.c_str(),
                jobs_dir().c_str(), record->job.number, slurm.c_str());
    Table table({{"TIME"}, {"STATE"}, {"REASON"}});
    for (const JobEdge& edge : record->edges) {
        table.add({edge_time(edge.unix_ms), state_text(edge), edge.reason});
    }
    if (record->is_lost()) {
        const ShownState shown = shown_state(*record, processes_of_lost({*record}));
        table.add({"", shown.state, shown.reason});
    }
    std::fputs(table.text().c_str(), stdout);
    return CtlExit::kOk;
}

CtlExit explain_job(const CtlOptions& options) {
    refresh_slurm_jobs(jobs_dir());
    const auto records = read_job_records(jobs_dir());
    const JobRecord* record = named_job(options, records);
    if (record == nullptr) return CtlExit::kFailed;
    const ShownState shown = shown_state(*record, processes_of_lost({*record}));
    std::printf("job %u (%s) is %s: %s\n", record->job.number, record->job.name.c_str(),
                shown.state.c_str(), shown.reason.c_str());
    return CtlExit::kOk;
}

CtlExit show_job_logs(const CtlOptions& options) {
    refresh_slurm_jobs(jobs_dir());
    const auto records = read_job_records(jobs_dir());
    const JobRecord* record = named_job(options, records);
    if (record == nullptr) return CtlExit::kFailed;
    const auto folder = JobFolder::open(jobs_dir(), record->job.number);
    if (!folder.ok()) return refuse(CtlExit::kFailed, fabricshm::explanation_of(folder.error()));
    LogReader logs(folder->path(), options.job.rank);
    for (int round = 1;; ++round) {
        // Slurm is asked once in 3 s; the batch script writes most edges by itself.
        if (round % 30 == 0) refresh_slurm_jobs(jobs_dir());
        // Looked at before the logs: what was written before the end is shown.
        const auto now = read_record(*folder);
        const bool is_waiting =
            now && now->job.state != JobPhase::kEnded &&
            (now->job.state == JobPhase::kQueued || now->job.is_managed || now->job.is_slurms);
        logs.show_new();
        if (!options.job.follow || !is_waiting || std::ferror(stdout) != 0) break;
        std::this_thread::sleep_for(kLogInterval);
    }
    logs.finish();
    if (!logs.is_empty() || options.job.rank == JobOrder::kAllRanks) return CtlExit::kOk;
    return refuse(CtlExit::kFailed, "there is no log of rank " + std::to_string(options.job.rank));
}

CtlExit cancel_job(const CtlOptions& options) {
    refresh_slurm_jobs(jobs_dir());
    const auto records = read_job_records(jobs_dir());
    const JobRecord* record = named_job(options, records);
    if (record == nullptr) return CtlExit::kFailed;
    auto folder = JobFolder::open(jobs_dir(), record->job.number);
    if (!folder.ok()) return refuse(CtlExit::kFailed, fabricshm::explanation_of(folder.error()));
    if (record->job.is_slurms) return cancel_slurm_job(*folder);
    if (folder->lock().ok()) {
        // Under the lock, which a manager that comes now does not get.
        const auto edges = folder->edges();
        if (edges.empty() || edges.back().state == JobPhase::kEnded) {
            return refuse(CtlExit::kFailed, "job " + options.job.what + " has ended: " +
                                                (edges.empty() ? "" : edges.back().reason));
        }
        end_lost_job(*folder,
                     {0, JobPhase::kEnded, JobOutcome::kCancelled, 128 + SIGTERM, "cancelled"});
        return CtlExit::kOk;
    }
    const auto holder = folder->holder();
    if (!holder) return CtlExit::kOk;  // it ended just now
    const auto process = fabricshm::open_pidfd(*holder);
    // Asked again: the number may be another process's by now, the descriptor's is not.
    if (!process.ok() || folder->holder() != holder) return CtlExit::kOk;
    if (::syscall(SYS_pidfd_send_signal, process->get(), SIGTERM, nullptr, 0) != 0) {
        return refuse(CtlExit::kFailed, "its task manager can't be signalled");
    }
    return CtlExit::kOk;
}

CtlExit show_job_leaks(const CtlOptions& options) {
    refresh_slurm_jobs(jobs_dir());
    std::set<unsigned> live;
    std::map<std::string, unsigned> of_arenas;  // those of Slurm's jobs
    std::vector<std::string> leaks;
    for (const JobRecord& record : read_job_records(jobs_dir())) {
        const std::string name = "job " + std::to_string(record.job.number);
        if (!record.slurm.empty()) of_arenas["slurm-" + record.slurm] = record.job.number;
        if (record.job.state == JobPhase::kEnded) continue;
        const bool is_slurms = record.job.is_slurms;
        if (record.job.is_managed || is_slurms) live.insert(record.job.number);
        if (!record.job.is_managed && !is_slurms && record.job.state != JobPhase::kQueued) {
            leaks.push_back(name + ": its task manager was killed (fabricctl jobs cancel " +
                            std::to_string(record.job.number) + ")");
        }
    }
    for (const JobProcess& one : job_processes()) {
        if (live.count(one.job) != 0 || one.pid == ::getpid()) continue;
        leaks.push_back("job " + std::to_string(one.job) + ": process " + std::to_string(one.pid));
    }
    auto client =
        AdminClient::connect(find_admin_socket(options.socket), milliseconds(options.timeout));
    if (client.ok()) {
        const auto picture = client->fetch(View::kArenas, 0);
        for (const ArenaView& arena : picture.ok() ? picture->arenas : std::vector<ArenaView>{}) {
            const auto slurms = of_arenas.find(arena.name);
            const auto job = slurms != of_arenas.end() ? std::optional(slurms->second)
                                                       : job_of_arena(arena.name);
            if (job && live.count(*job) == 0) {
                leaks.push_back("job " + std::to_string(*job) + ": arena " + arena.name);
            }
        }
    }
    if (options.json) std::printf("%s\n", one_line(Json(leaks)).c_str());
    for (const std::string& leak : options.json ? std::vector<std::string>{} : leaks) {
        std::printf("%s\n", leak.c_str());
    }
    return leaks.empty() ? CtlExit::kOk : CtlExit::kFailed;
}

}  // namespace fabricd
