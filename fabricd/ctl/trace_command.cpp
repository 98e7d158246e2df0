#include "fabricd/ctl/trace_command.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabricd/ctl/chrome_trace.hpp"
#include "fabricd/ctl/json.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Result;

namespace {

volatile std::sig_atomic_t trace_interrupted = 0;

void interrupt_trace(int) {
    trace_interrupted = 1;
}

/// While this lives Ctrl-C ends the trace, and what there is of it is kept. A file that may not
/// grow (ulimit -f) and a pipe that nothing reads are errors of the write, and no signals.
class InterruptCaught {
  public:
    InterruptCaught() {
        struct sigaction caught {};
        caught.sa_handler = interrupt_trace;
        for (const int number : kEnds) ::sigaction(number, &caught, &before_[number]);
        caught.sa_handler = SIG_IGN;
        for (const int number : kErrors) ::sigaction(number, &caught, &before_[number]);
    }
    ~InterruptCaught() {
        for (const int number : kEnds) ::sigaction(number, &before_[number], nullptr);
        for (const int number : kErrors) ::sigaction(number, &before_[number], nullptr);
    }
    InterruptCaught(const InterruptCaught&) = delete;
    InterruptCaught& operator=(const InterruptCaught&) = delete;

  private:
    static constexpr int kEnds[] = {SIGHUP, SIGINT, SIGTERM};
    static constexpr int kErrors[] = {SIGPIPE, SIGXFSZ};
    struct sigaction before_[NSIG] {};
};

/// The file, complete or not at all: it is written under another name until commit(). What is no
/// plain file (a pipe, a terminal) is written to as it is.
class TraceFile {
  public:
    static Result<TraceFile> open(const std::string& path) {
        if (path == "-") return standard_output();
        struct stat status {};
        const bool is_there = ::stat(path.c_str(), &status) == 0;
        TraceFile file;
        file.path_ = path;
        file.written_ = is_there && !S_ISREG(status.st_mode) ? path : path + ".part";
        int flags = O_WRONLY | O_CLOEXEC;
        if (file.written_ != path) {
            // What a killed one left, or another user laid there: a link is not followed.
            ::unlink(file.written_.c_str());
            flags |= O_CREAT | O_EXCL | O_NOFOLLOW;
        }
        fabricshm::Fd fd(::open(file.written_.c_str(), flags, 0666));
        if (!fd) return file.failure(errno);
        file.stream_.reset(::fdopen(fd.get(), "w"));
        if (file.stream_ == nullptr) return file.failure(errno);
        (void)fd.release();  // the stream's
        return file;
    }
    TraceFile(TraceFile&&) noexcept = default;
    TraceFile& operator=(TraceFile&&) = delete;
    ~TraceFile() {
        if (stream_ != nullptr && written_ != path_) ::unlink(written_.c_str());
    }

    void write(std::string_view text) {
        if (error_ != 0) return;
        if (std::fwrite(text.data(), 1, text.size(), stream_.get()) != text.size()) error_ = errno;
    }
    /// For those that watch the file grow.
    void flush() {
        if (error_ == 0 && std::fflush(stream_.get()) != 0) error_ = errno;
    }
    bool failed() const noexcept { return error_ != 0; }

    Result<void> commit() {
        flush();
        if (error_ != 0) return failure(error_);
        if (written_ != path_ && std::rename(written_.c_str(), path_.c_str()) != 0) {
            return failure(errno);
        }
        stream_.reset();
        return {};
    }

  private:
    struct Close {
        void operator()(std::FILE* stream) const { std::fclose(stream); }
    };

    TraceFile() = default;
    static Result<TraceFile> standard_output() {
        TraceFile file;
        file.path_ = file.written_ = "standard output";
        fabricshm::Fd fd(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0));
        if (!fd) return file.failure(errno);
        file.stream_.reset(::fdopen(fd.get(), "w"));
        if (file.stream_ == nullptr) return file.failure(errno);
        (void)fd.release();  // the stream's
        return file;
    }
    Error failure(int number) const {
        return fabricshm::explain(fabricshm::error_from_errno(number, "trace"),
                                  "can't write %s: %s", written_.c_str(), std::strerror(number));
    }

    std::string path_;
    std::string written_;
    std::unique_ptr<std::FILE, Close> stream_;
    int error_ = 0;
};

bool is_utf8(const std::string& text) {
    // What is none is replaced, and so is longer or other than it was.
    return Json::parse(one_line(text)).get<std::string>() == text;
}

/// The names of groups, asked for when the first operation of one is seen.
class GroupNames {
  public:
    explicit GroupNames(AdminClient& client) : client_(client) {}

    /// "" when it has none, or is gone again.
    std::string operator()(std::uint64_t group) {
        const auto known = names_.find(group);
        if (known != names_.end()) return known->second;
        // A session can claim as many groups as it likes.
        constexpr int kMaxFetches = 20;
        if (fetches_++ < kMaxFetches) {
            const auto picture = client_.fetch(View::kGroups, 0);
            for (const GroupView& one : picture.ok() ? picture->groups : std::vector<GroupView>()) {
                names_[one.id] = one.name;
            }
        }
        return names_[group];
    }

  private:
    AdminClient& client_;
    std::map<std::uint64_t, std::string> names_;
    int fetches_ = 0;
};

/// The one that was named, else the only one there is.
Result<std::string> job_of(const CtlOptions& options, AdminClient& client) {
    if (!options.subject.empty()) {
        // The daemon's API carries no other text.
        if (is_utf8(options.subject)) return options.subject;
        return fabricshm::explain({Errc::kInvalid, 0, "trace"}, "--job is no UTF-8: %s",
                                  one_line(options.subject).c_str());
    }
    FABRIC_TRY(const Picture picture, client.fetch(View::kArenas, 0));
    if (picture.arenas.size() == 1) return picture.arenas.front().name;
    return fabricshm::explain({Errc::kNotFound, 0, "trace"},
                              picture.arenas.empty()
                                  ? "there is no job now"
                                  : "there are several jobs: --job NAME (fabricctl arenas)");
}

/// What a terminal shows meanwhile; nothing in a file.
class TraceProgress {
  public:
    void show(const ChromeTrace& trace, double seconds) {
        const auto now = Clock::now();
        if (!is_shown_ || now < due_) return;
        due_ = now + std::chrono::milliseconds(200);
        std::fprintf(stderr, "\r%.1f s, %llu operations, %.1f MB ", seconds,
                     static_cast<unsigned long long>(trace.operations()),
                     static_cast<double>(trace.bytes()) * 1e-6);
        is_used_ = true;
    }
    ~TraceProgress() {
        if (is_used_) std::fputc('\n', stderr);
    }

  private:
    bool is_shown_ = ::isatty(STDERR_FILENO) == 1;
    bool is_used_ = false;
    fabricshm::TimePoint due_{};
};

void report(const CtlOptions& options, const std::string& path, const ChromeTrace& trace,
            double seconds, const std::string& ended_early) {
    // Standard output may have the trace itself.
    std::FILE* out = path == "-" ? stderr : stdout;
    if (options.json) {
        std::fprintf(out, "%s\n",
                     one_line({{"file", path},
                               {"seconds", seconds},
                               {"operations", trace.operations()},
                               {"ranks", trace.ranks()},
                               {"bytes", trace.bytes()},
                               {"lost", trace.lost()},
                               {"senseless", trace.senseless()},
                               {"without_track", trace.without_track()},
                               {"ended_early", ended_early}})
                         .c_str());
        return;
    }
    std::fprintf(out,
                 "%s: %llu operations of %zu ranks in %.1f s, %.1f MB (open it in ui.perfetto.dev "
                 "or chrome://tracing)\n",
                 path.c_str(), static_cast<unsigned long long>(trace.operations()), trace.ranks(),
                 seconds, static_cast<double>(trace.bytes()) * 1e-6);
}

void warn(const ChromeTrace& trace, bool was_cut, double seconds, const std::string& ended_early) {
    if (!ended_early.empty()) {
        std::fprintf(stderr, "fabricctl: the trace ends after %.1f s: %s\n", seconds,
                     ended_early.c_str());
    }
    if (was_cut) {
        std::fprintf(stderr,
                     "fabricctl: the file has its full size, 100 MB: it ends after %.1f s\n",
                     seconds);
    }
    if (trace.lost() != 0) {
        std::fprintf(stderr,
                     "fabricctl: %llu operations came faster than they could be read, and are not "
                     "in it\n",
                     static_cast<unsigned long long>(trace.lost()));
    }
    if (trace.senseless() != 0) {
        std::fprintf(stderr, "fabricctl: %llu records can't be, and were left out\n",
                     static_cast<unsigned long long>(trace.senseless()));
    }
    if (trace.without_track() != 0) {
        std::fprintf(stderr,
                     "fabricctl: %llu operations are of groups beyond the first %zu of their rank, "
                     "and were left out\n",
                     static_cast<unsigned long long>(trace.without_track()),
                     TraceTracks::kMaxTracks);
    }
    if (trace.operations() == 0) {
        std::fprintf(stderr, "fabricctl: no rank began and ended a collective in this time\n");
    }
}

}  // namespace

Result<void> trace_job(const CtlOptions& options, AdminClient& client) {
    FABRIC_TRY(const std::string job, job_of(options, client));
    const std::string path = options.output.empty() ? "trace.json" : options.output;
    FABRIC_TRY(TraceFile file, TraceFile::open(path));
    const InterruptCaught caught;
    std::optional<ChromeTrace> trace;
    TraceProgress progress;
    GroupNames names(client);
    const auto began = Clock::now();
    const auto so_far = [&] { return std::chrono::duration<double>(Clock::now() - began).count(); };
    auto ended = client.trace(
        job, milliseconds(options.trace_seconds),
        [&](const TraceSpan& span, const std::vector<TraceBatch>& batches) {
            if (!trace) {
                trace.emplace(job, span, [&](std::string_view text) { file.write(text); });
                trace->name_groups([&](std::uint64_t group) { return names(group); });
            }
            for (const TraceBatch& batch : batches) trace->add(batch);
            file.flush();
            progress.show(*trace, so_far());
            return trace_interrupted == 0 && !trace->is_full() && !file.failed();
        });
    if (!ended.ok()) return ended.error();
    if (!trace) return Error{Errc::kDaemon, 0, "trace"};
    const double seconds = so_far();
    // Of a daemon without a control loop: none.
    const auto decisions = client.decisions(0, 0);
    if (decisions.ok()) {
        for (const Decision& decision : *decisions) trace->add(decision);
    }
    const bool was_cut = trace->is_full();
    trace->finish(*ended);
    FABRIC_TRY_VOID(file.commit());
    report(options, path, *trace, seconds, *ended);
    warn(*trace, was_cut, seconds, *ended);
    return {};
}

}  // namespace fabricd
