#include "fabricd/jobs/job_removal.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <vector>

#include "fabricd/jobs/job_numbers.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Bytes;
using fabricshm::Errc;
using fabricshm::Result;

namespace {

// A folder gets its number some milliseconds after it is made.
constexpr std::time_t kUnnumberedFor = 3600;

/// Deletes what `path` is, or has if it is a folder that stays. No link is followed.
class Deletion {
  public:
    explicit Deletion(SweptJobs& swept) : swept_(swept) {}

    void all_of(const std::string& path) {
        struct stat what = {};
        if (::lstat(path.c_str(), &what) != 0) return;  // another process was first
        const bool is_folder = S_ISDIR(what.st_mode);
        if (is_folder) content_of(path);
        const int failed = is_folder ? ::rmdir(path.c_str()) : ::unlink(path.c_str());
        if (failed != 0) return failure(path, errno);
        // Of a file with other names nothing is free.
        if (is_folder || what.st_nlink == 1) swept_.bytes += Bytes(what.st_blocks) * 512;
    }
    void content_of(const std::string& folder) {
        std::error_code error;
        std::filesystem::directory_iterator at(folder, error), end;
        if (error) return failure(folder, error.value());
        std::vector<std::string> paths;
        for (; !error && at != end; at.increment(error)) paths.push_back(at->path());
        for (const std::string& path : paths) all_of(path);
    }

  private:
    void failure(const std::string& path, int why) {
        // A folder that is not empty has failed for what is in it.
        if (why == ENOENT || !swept_.problem.empty()) return;
        swept_.problem = path + ": " + std::strerror(why);
    }

    SweptJobs& swept_;
};

bool is_unnumbered(const std::filesystem::path& path) {
    struct stat what = {};
    return path.filename().string().starts_with("new-") && ::lstat(path.c_str(), &what) == 0 &&
           S_ISDIR(what.st_mode) && what.st_mtime + kUnnumberedFor < std::time(nullptr);
}

}  // namespace

Result<void> retire_folder(const std::string& jobs, const JobFolder& folder) {
    FABRIC_TRY(const auto numbers, lock_job_numbers(jobs));
    const std::string gone = jobs + "/" + gone_name(folder.number());
    if (::rename(folder.path().c_str(), gone.c_str()) == 0) return {};
    if (errno == ENOENT) return fabricshm::Error{Errc::kNotFound, errno, "remove a job"};
    return fabricshm::error_of_disk(errno, "remove a job");
}

SweptJobs sweep_jobs(const std::string& jobs) {
    SweptJobs swept;
    Deletion deletion(swept);
    std::error_code error;
    std::filesystem::directory_iterator at(jobs, error), end;
    for (; !error && at != end; at.increment(error)) {
        if (is_unnumbered(at->path())) deletion.all_of(at->path());
    }
    for (const unsigned number : gone_numbers(jobs)) {
        deletion.content_of(jobs + "/" + gone_name(number));
    }
    // The next job has the number after the last one.
    const auto numbers = lock_job_numbers(jobs);
    if (!numbers.ok()) return swept;
    const unsigned last = last_job_number(jobs);
    for (const unsigned number : gone_numbers(jobs)) {
        if (number != last) ::rmdir((jobs + "/" + gone_name(number)).c_str());
    }
    return swept;
}

}  // namespace fabricd
