#include "fabricd/jobs/job_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "fabricd/jobs/job_numbers.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::error_of_disk;
using fabricshm::explain;
using fabricshm::Fd;
using fabricshm::Result;

namespace {

constexpr const char* kStates[] = {"queued",  "admitted",  "placed", "starting",
                                   "running", "repairing", "ending", "ended"};
constexpr const char* kOutcomes[] = {"none", "ok", "failed", "cancelled"};
constexpr std::size_t kMaxReason = 1024;
constexpr std::uintmax_t kMaxJournal = 16 << 20;

template <typename T, std::size_t count>
bool find_word(const std::string& word, const char* const (&words)[count], T& found) {
    const auto* at = std::find(std::begin(words), std::end(words), word);
    if (at == std::end(words)) return false;
    found = static_cast<T>(at - words);
    return true;
}

bool parse_edge(const std::string& line, JobEdge& edge) {
    std::istringstream words(line);
    std::string state, outcome;
    if (!(words >> edge.unix_ms >> state) || !find_word(state, kStates, edge.state)) return false;
    if (edge.state == JobPhase::kEnded) {
        if (!(words >> outcome >> edge.code) || !find_word(outcome, kOutcomes, edge.outcome)) {
            return false;
        }
    }
    words.get();
    std::getline(words, edge.reason);
    return true;
}

Result<void> write_file(const std::string& path, const std::string& text) {
    const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file) return error_of_disk(errno, "write the job's file");
    const ssize_t count = ::write(file.get(), text.data(), text.size());
    if (count != static_cast<ssize_t>(text.size())) {
        return error_of_disk(count < 0 ? errno : ENOSPC, "write the job's file");
    }
    return {};
}

Result<void> write_files(const std::string& folder, const JobFolder::Files& files) {
    for (const auto& [name, text] : files) FABRIC_TRY_VOID(write_file(folder + "/" + name, text));
    return write_file(folder + "/lock", "");
}

}  // namespace

const char* name_of(JobPhase state) noexcept {
    return kStates[static_cast<int>(state)];
}

const char* name_of(JobOutcome outcome) noexcept {
    return kOutcomes[static_cast<int>(outcome)];
}

std::vector<JobEdge> parse_journal(const std::string& text) {
    std::vector<JobEdge> edges;
    for (std::size_t from = 0;;) {
        const std::size_t end = text.find('\n', from);
        if (end == std::string::npos) return edges;  // torn, or nothing
        JobEdge edge;
        if (parse_edge(text.substr(from, end - from), edge)) edges.push_back(std::move(edge));
        from = end + 1;
    }
}

std::string journal_line(const JobEdge& edge) {
    std::string line = std::to_string(edge.unix_ms) + " " + name_of(edge.state);
    if (edge.state == JobPhase::kEnded) {
        line += std::string(" ") + name_of(edge.outcome) + " " + std::to_string(edge.code);
    }
    std::string reason = edge.reason.substr(0, kMaxReason);
    std::replace_if(
        reason.begin(), reason.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
    return line + " " + reason + "\n";
}

std::string jobs_dir() {
    const auto value = [](const char* name) {
        const char* text = std::getenv(name);
        return std::string(text != nullptr ? text : "");
    };
    if (!value("FABRIC_JOBS_DIR").empty()) return value("FABRIC_JOBS_DIR");
    if (!value("XDG_STATE_HOME").empty()) return value("XDG_STATE_HOME") + "/fabricd/jobs";
    return value("HOME") + "/.local/state/fabricd/jobs";
}

std::int64_t unix_ms_now() noexcept {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
}

Result<JobFolder> JobFolder::make(const std::string& jobs, const Files& files, bool is_locked) {
    std::error_code error;
    std::filesystem::create_directories(jobs, error);
    std::string made = jobs + "/new-XXXXXX";
    // 0700: the logs are the user's own.
    if (::mkdtemp(made.data()) == nullptr) {
        const auto failure = error_of_disk(errno, "make a job's folder");
        return explain(failure, "can't make a folder in %s (FABRIC_JOBS_DIR): %s", jobs.c_str(),
                       describe(failure).c_str());
    }
    if (const auto written = write_files(made, files); !written.ok()) {
        std::filesystem::remove_all(made, error);
        return explain(written.error(), "can't write a job's files in %s (FABRIC_JOBS_DIR): %s",
                       jobs.c_str(), describe(written.error()).c_str());
    }
    JobFolder folder(made, 0);
    auto numbered = is_locked ? folder.lock() : Result<void>{};
    if (numbered.ok()) numbered = folder.take_number(jobs);
    if (numbered.ok()) return folder;
    std::filesystem::remove_all(made, error);
    return numbered.error();
}

Result<void> JobFolder::take_number(const std::string& jobs) {
    FABRIC_TRY(const Fd numbers, lock_job_numbers(jobs));
    const std::string made = path_;
    unsigned number = last_job_number(jobs) + 1;
    // Where there are no locks another process may take the number in between: a folder with files
    // is never replaced.
    for (int tries = 0; tries < 1000 && number <= kMaxJobNumber; ++tries, ++number) {
        path_ = jobs + "/" + std::to_string(number);
        number_ = number;
        if (::rename(made.c_str(), path_.c_str()) == 0) return {};
        if (errno != ENOTEMPTY && errno != EEXIST) {
            return error_of_disk(errno, "number a job's folder");
        }
    }
    return explain({Errc::kExists, 0, "number a job's folder"},
                   "there is no number left for a job in %s (FABRIC_JOBS_DIR)", jobs.c_str());
}

Result<JobFolder> JobFolder::open(const std::string& jobs, unsigned number) {
    std::error_code error;
    const std::string path = jobs + "/" + std::to_string(number);
    if (std::filesystem::is_directory(path, error)) return JobFolder(path, number);
    return explain({Errc::kNotFound, 0, "find a job"}, "there is no job %u (fabricctl jobs)",
                   number);
}

std::vector<unsigned> JobFolder::list(const std::string& jobs) {
    std::vector<unsigned> numbers;
    std::error_code error;
    std::filesystem::directory_iterator at(jobs, error), end;
    for (; !error && at != end; at.increment(error)) {
        if (const auto number = job_number_of(at->path().filename())) numbers.push_back(*number);
    }
    std::sort(numbers.begin(), numbers.end());
    return numbers;
}

void JobFolder::note(JobEdge edge) const noexcept {
    edge.unix_ms = unix_ms_now();
    std::string line = journal_line(edge);
    const Fd file(
        ::open((path_ + "/journal").c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (!file) return;
    // What a full disk or a kill cut off costs its own line, and not this one, too.
    char last = '\n';
    const off_t size = ::lseek(file.get(), 0, SEEK_END);
    if (size > 0 && ::pread(file.get(), &last, 1, size - 1) == 1 && last != '\n')
        line = "\n" + line;
    // One write: a reader sees all of the line or, after a kill, a beginning without an end. A full
    // disk costs the history, not the job.
    (void)!::write(file.get(), line.data(), line.size());
}

std::vector<JobEdge> JobFolder::edges() const {
    std::error_code error;
    const std::string path = path_ + "/journal";
    if (std::filesystem::file_size(path, error) > kMaxJournal || error) return {};
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return parse_journal(text.str());
}

Result<void> JobFolder::lock() {
    Fd file(::open((path_ + "/lock").c_str(), O_RDWR | O_CLOEXEC));
    if (!file) return error_of_disk(errno, "open the job's lock");
    struct flock whole = {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    if (::fcntl(file.get(), F_SETLK, &whole) != 0) {
        return fabricshm::Error{Errc::kBusy, errno, "lock the job"};
    }
    lock_ = std::move(file);
    return {};
}

std::optional<pid_t> JobFolder::holder() const {
    // Not while this process holds it itself: closing any descriptor of the file would let go of
    // it.
    if (lock_) return ::getpid();
    const Fd file(::open((path_ + "/lock").c_str(), O_RDWR | O_CLOEXEC));
    struct flock whole = {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    if (!file || ::fcntl(file.get(), F_GETLK, &whole) != 0) return {};
    if (whole.l_type == F_UNLCK) return {};
    return whole.l_pid;
}

}  // namespace fabricd
