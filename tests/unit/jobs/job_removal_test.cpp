#include "fabricd/jobs/job_removal.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "fabricd/jobs/job_numbers.hpp"
#include "libfabricshm/base/reason.hpp"

using namespace fabricd;
namespace fs = std::filesystem;

namespace {

struct JobsScratch {
    JobsScratch() {
        char name[] = "/tmp/job-removal-XXXXXX";
        path = ::mkdtemp(name);
    }
    ~JobsScratch() {
        std::error_code ignored;
        fs::remove_all(path, ignored);
    }
    JobFolder make() const { return JobFolder::create(path, {{"job.toml", "x"}}).value(); }
    std::string path;
};

}  // namespace

TEST_SUITE("jobs.job_removal") {
    TEST_CASE(
        "a removed job's number is not given again, also when it was the last or the only one") {
        const JobsScratch jobs;
        REQUIRE(retire_folder(jobs.path, jobs.make()).ok());
        CHECK(jobs.make().number() == 2);
        const auto third = jobs.make();
        sweep_jobs(jobs.path);
        CHECK(JobFolder::list(jobs.path) == std::vector<unsigned>{2, 3});
        CHECK(gone_numbers(jobs.path).empty());  // the next one comes after 3
        REQUIRE(retire_folder(jobs.path, third).ok());
        REQUIRE(retire_folder(jobs.path, JobFolder::open(jobs.path, 2).value()).ok());
        CHECK(sweep_jobs(jobs.path).problem.empty());
        CHECK(JobFolder::list(jobs.path).empty());
        CHECK(gone_numbers(jobs.path) == std::vector<unsigned>{3});
        CHECK(jobs.make().number() == 4);
    }

    TEST_CASE("until it is swept a retired folder has all its files, and is no job") {
        const JobsScratch jobs;
        const auto folder = jobs.make();
        std::ofstream(folder.log_path(0)) << std::string(100000, 'x');
        REQUIRE(retire_folder(jobs.path, folder).ok());
        CHECK_FALSE(JobFolder::open(jobs.path, 1).ok());
        CHECK(fs::file_size(jobs.path + "/gone-1/rank-0.log") == 100000);
        CHECK_FALSE(retire_folder(jobs.path, folder).ok());  // once
        CHECK(sweep_jobs(jobs.path).bytes >= 100000);
        CHECK(fs::is_empty(jobs.path + "/gone-1"));
        CHECK(sweep_jobs(jobs.path).bytes == 0);
    }

    TEST_CASE("what a job's folder has links to stays") {
        const JobsScratch jobs, other;
        std::ofstream(other.path + "/precious") << "x";
        const auto folder = jobs.make();
        fs::create_directory_symlink(other.path, folder.path() + "/link");
        fs::create_hard_link(other.path + "/precious", folder.path() + "/name");
        fs::create_directories(folder.path() + "/a/b/c");
        REQUIRE(retire_folder(jobs.path, folder).ok());
        CHECK(sweep_jobs(jobs.path).problem.empty());
        CHECK(fs::is_regular_file(other.path + "/precious"));
        CHECK(fs::is_empty(jobs.path + "/gone-1"));
    }

    TEST_CASE("folders that never got a number go after an hour") {
        const JobsScratch jobs;
        fs::create_directories(jobs.path + "/new-old/x");
        fs::create_directory(jobs.path + "/new-young");
        fs::create_directory(jobs.path + "/other");
        for (const char* name : {"/new-old", "/other"}) {
            fs::last_write_time(jobs.path + name,
                                fs::file_time_type::clock::now() - std::chrono::hours(2));
        }
        sweep_jobs(jobs.path);
        CHECK_FALSE(fs::exists(jobs.path + "/new-old"));
        CHECK(fs::exists(jobs.path + "/new-young"));
        CHECK(fs::exists(jobs.path + "/other"));
    }

    TEST_CASE("numbers end before they are an overflow, with one line") {
        const JobsScratch jobs;
        fs::create_directory(jobs.path + "/4294967295");  // no job's
        CHECK(jobs.make().number() == 1);
        fs::create_directory(jobs.path + "/99999999");
        const auto made = JobFolder::create(jobs.path, {});
        REQUIRE_FALSE(made.ok());
        CHECK(fabricshm::explanation_of(made.error()).find("no number left") != std::string::npos);
        for (const auto& one : fs::directory_iterator(jobs.path)) {
            CHECK_FALSE(one.path().filename().string().starts_with("new-"));
        }
    }

    TEST_CASE("numbers are given by one process at a time, and no process waits for ever") {
        const JobsScratch jobs;
        const fabricshm::Fd held(::open(jobs.path.c_str(), O_RDONLY | O_DIRECTORY));
        REQUIRE(::flock(held.get(), LOCK_EX) == 0);
        const auto made = JobFolder::create(jobs.path, {});
        REQUIRE_FALSE(made.ok());
        CHECK(made.error().code == fabricshm::Errc::kBusy);
        CHECK(fs::is_empty(jobs.path));
        REQUIRE(::flock(held.get(), LOCK_UN) == 0);
        CHECK(jobs.make().number() == 1);
    }

    TEST_CASE("a folder that is made locked has its holder at once") {
        const JobsScratch jobs;
        const auto made = JobFolder::create_locked(jobs.path, {{"journal", "1 admitted a\n"}});
        REQUIRE(made.ok());
        CHECK(made->holder() == ::getpid());
        CHECK(made->edges().size() == 1);
    }
}
