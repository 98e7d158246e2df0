#include "fabricd/ctl/job_service.hpp"

#include <poll.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "fabricd/ctl/job_processes.hpp"
#include "fabricd/ctl/job_records.hpp"
#include "fabricd/jobs/child.hpp"
#include "fabricd/jobs/job_folder.hpp"
#include "fabricd/jobs/job_queue.hpp"
#include "fabricd/jobs/task_manager.hpp"
#include "fabricd/server/lock_file.hpp"
#include "fabricd/service/notify.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/process.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Fd;
using fabricshm::TimePoint;

namespace {

// A job that did not fit is tried again: what other programs give back is not announced.
constexpr auto kTryAgain = std::chrono::seconds(5);
// The locks of managers that this process did not start are not announced either.
constexpr int kPollMs = 1000;
// Of one job: a manager that is killed again and again has a reason.
constexpr unsigned kMaxResumes = 5;

CtlExit refuse(const std::string& text) {
    std::fprintf(stderr, "fabricctl: %s\n", text.c_str());
    return CtlExit::kFailed;
}

std::string serve_lock(const std::string& jobs) {
    return jobs + "/serve.lock";
}

std::string file_text(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

/// What a shell had when it submitted: NAME=VALUE, each with a zero behind it.
std::vector<std::string> split_environment(const std::string& text) {
    std::vector<std::string> all;
    for (std::size_t from = 0; from < text.size();) {
        const std::size_t end = std::min(text.find('\0', from), text.size());
        all.push_back(text.substr(from, end - from));
        from = end + 1;
    }
    return all;
}

class JobService {
  public:
    JobService(std::string jobs, unsigned at_once, Fd signals, Fd changes)
        : jobs_(std::move(jobs)),
          at_once_(at_once),
          signals_(std::move(signals)),
          changes_(std::move(changes)) {}

    CtlExit run();

  private:
    void reap_managers();
    void step();
    /// `resume`: its manager was killed, and its agents wait for another one.
    void start(unsigned number, bool resume);
    /// Its folder, locked, when the lock can be had and the job is still in that state.
    std::optional<JobFolder> lock(unsigned number, JobPhase before) const;
    void note(unsigned number, JobPhase before, JobEdge edge);

    const std::string jobs_;
    const unsigned at_once_;
    Fd signals_;
    Fd changes_;
    std::map<unsigned, Child> managers_;
    std::map<unsigned, TimePoint> deferred_;
    std::map<unsigned, unsigned> resumed_;  // how often
};

void JobService::reap_managers() {
    for (auto at = managers_.begin(); at != managers_.end();) {
        if (pidfd_alive(at->second.pidfd)) {
            ++at;
            continue;
        }
        reap(at->second);
        // One that ended well frees what another one waits for.
        deferred_.clear();
        const auto folder = JobFolder::open(jobs_, at->first);
        const auto edges = folder.ok() ? folder->edges() : std::vector<JobEdge>{};
        if (!edges.empty() && edges.back().state == JobPhase::kQueued) {
            deferred_[at->first] = Clock::now() + kTryAgain;
        }
        at = managers_.erase(at);
    }
}

std::optional<JobFolder> JobService::lock(unsigned number, JobPhase before) const {
    auto folder = JobFolder::open(jobs_, number);
    if (!folder.ok() || !folder->lock().ok()) return {};
    const auto edges = folder->edges();
    if (edges.empty() || edges.back().state != before) return {};
    return std::move(folder).value();
}

void JobService::note(unsigned number, JobPhase before, JobEdge edge) {
    const auto folder = lock(number, before);
    if (!folder) return;
    const JobEdge last = folder->edges().back();
    const bool is_known = last.state == edge.state && last.reason == edge.reason;
    if (!is_known) folder->note(std::move(edge));
}

void JobService::start(unsigned number, bool resume) {
    const std::string folder = jobs_ + "/" + std::to_string(number);
    std::error_code error;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
    ChildSpec spec;
    spec.arguments = {error ? "/usr/bin/fabricctl" : self.string(), "jobs", "run",
                      std::to_string(number), "--queued"};
    if (resume) spec.arguments.emplace_back("--resume");
    const auto options = split_environment(file_text(folder + "/options"));
    spec.arguments.insert(spec.arguments.end(), options.begin(), options.end());
    spec.environment = split_environment(file_text(folder + "/environment"));
    std::erase_if(spec.environment,
                  [](const auto& one) { return one.starts_with("FABRIC_JOBS_DIR="); });
    spec.environment.push_back("FABRIC_JOBS_DIR=" + jobs_);
    spec.directory = file_text(folder + "/directory");
    auto child = start_child(spec);
    if (child.ok()) {
        managers_[number] = std::move(child).value();
        return;
    }
    note(number, JobPhase::kQueued,
         {0, JobPhase::kEnded, JobOutcome::kFailed, 125,
          "its task manager can't be started: " + fabricshm::explanation_of(child.error())});
}

void JobService::step() {
    std::vector<QueuedJob> jobs;
    std::map<unsigned, JobPhase> states;
    const TimePoint now = Clock::now();
    std::erase_if(deferred_, [&](const auto& one) { return one.second <= now; });
    for (const JobRecord& record : read_job_records(jobs_)) {
        jobs.push_back(record.job);
        // A manager that was started has its lock a moment later.
        jobs.back().is_managed = record.job.is_managed || managers_.count(record.job.number) != 0;
        jobs.back().is_deferred = deferred_.count(record.job.number) != 0;
        states[record.job.number] = record.job.state;
    }
    for (const QueueStep& one : next_steps(jobs, at_once_)) {
        const JobPhase before = states[one.number];
        using Kind = QueueStep::Kind;
        if (one.kind == Kind::kStart) start(one.number, false);
        if (one.kind == Kind::kWait) {
            note(one.number, before, {0, JobPhase::kQueued, JobOutcome::kNone, 0, one.reason});
        }
        if (one.kind == Kind::kFail) {
            note(one.number, before,
                 {0, JobPhase::kEnded, JobOutcome::kCancelled, 125, one.reason});
        }
        if (one.kind == Kind::kOrphan && ++resumed_[one.number] <= kMaxResumes) {
            start(one.number, true);
        } else if (one.kind == Kind::kOrphan) {
            const JobEdge end{0, JobPhase::kEnded, JobOutcome::kFailed, 128 + SIGKILL, one.reason};
            if (const auto folder = lock(one.number, before)) end_lost_job(*folder, end);
        }
    }
}

CtlExit JobService::run() {
    notify_systemd("READY=1", std::chrono::seconds(1));
    for (;;) {
        reap_managers();
        step();
        std::vector<pollfd> waits = {{signals_.get(), POLLIN, 0}, {changes_.get(), POLLIN, 0}};
        for (const auto& [number, child] : managers_) {
            waits.push_back({child.pidfd.get(), POLLIN, 0});
        }
        if (::poll(waits.data(), waits.size(), kPollMs) < 0 && errno != EINTR) {
            return refuse("can't wait for jobs");
        }
        if (waits[0].revents != 0) return CtlExit::kOk;
        char ignored[4096];
        while (::read(changes_.get(), ignored, sizeof ignored) > 0) {
        }
    }
}

}  // namespace

bool is_queue_served(const std::string& jobs) {
    return !LockFile::take(serve_lock(jobs)).ok();
}

CtlExit serve_job_queue(const CtlOptions& options) {
    auto signals = block_job_signals();
    const std::string jobs = jobs_dir();
    std::error_code error;
    std::filesystem::create_directories(jobs, error);
    const auto lock = LockFile::take(serve_lock(jobs));
    if (!lock.ok()) {
        return refuse(lock.error().code == fabricshm::Errc::kBusy
                          ? "another fabricctl jobs serve works through " + jobs
                          : jobs + ": " + fabricshm::explanation_of(lock.error()));
    }
    Fd changes(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    const bool is_watched =
        changes && ::inotify_add_watch(changes.get(), jobs.c_str(), IN_MOVED_TO) >= 0;
    if (!signals.ok() || !is_watched) return refuse("can't watch " + jobs);
    JobService service(jobs,
                       static_cast<unsigned>(std::min<std::uint64_t>(options.job.at_once, 1024)),
                       std::move(signals).value(), std::move(changes));
    return service.run();
}

}  // namespace fabricd
