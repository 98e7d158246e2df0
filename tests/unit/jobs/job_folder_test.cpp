#include "fabricd/jobs/job_folder.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "libfabricshm/base/reason.hpp"
#include "tests/support/small_disk.hpp"

using namespace fabricd;

namespace {

struct Scratch {
    Scratch() {
        char name[] = "/tmp/job-folder-XXXXXX";
        path = ::mkdtemp(name);
    }
    ~Scratch() {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    }
    std::string path;
};

JobEdge edge_of(JobPhase state, const std::string& reason) {
    return {0, state, JobOutcome::kNone, 0, reason};
}

}  // namespace

TEST_SUITE("jobs.job_folder") {
    TEST_CASE("a journal's line comes back as the edge that it was") {
        const JobEdge end{1234, JobPhase::kEnded, JobOutcome::kFailed, 139, "rank 1 was killed"};
        const JobEdge wait{77, JobPhase::kQueued, JobOutcome::kNone, 0, ""};
        const auto edges = parse_journal(journal_line(end) + journal_line(wait));
        REQUIRE(edges.size() == 2);
        CHECK(edges[0].unix_ms == 1234);
        CHECK(edges[0].state == JobPhase::kEnded);
        CHECK(edges[0].outcome == JobOutcome::kFailed);
        CHECK(edges[0].code == 139);
        CHECK(edges[0].reason == "rank 1 was killed");
        CHECK(edges[1].state == JobPhase::kQueued);
        CHECK(edges[1].reason.empty());
    }

    TEST_CASE("torn lines and lines that are none are left out") {
        CHECK(parse_journal("").empty());
        CHECK(parse_journal("12 running").empty());
        CHECK(parse_journal("x running a\n12 walking a\n12\n\n12 ended good 0 a\n").empty());
        const auto edges = parse_journal("1 running a\n2 ended ok 0 b");
        REQUIRE(edges.size() == 1);
        CHECK(edges[0].reason == "a");
    }

    TEST_CASE("a reason stays on its line") {
        const auto line = journal_line(edge_of(JobPhase::kRunning, "a\nb\x1b[2Jc"));
        CHECK(line == "0 running a?b?[2Jc\n");
    }

    TEST_CASE("folders are numbered from 1, with their files and for their user alone") {
        const Scratch scratch;
        const std::string jobs = scratch.path + "/a/b";
        auto first = JobFolder::create(jobs, {{"job.toml", "x"}}).value();
        auto second = JobFolder::create(jobs, {{"job.toml", "y"}}).value();
        CHECK(first.number() == 1);
        CHECK(second.number() == 2);
        CHECK(JobFolder::list(jobs) == std::vector<unsigned>{1, 2});
        CHECK(std::filesystem::status(first.path()).permissions() ==
              std::filesystem::perms::owner_all);
        CHECK(first.edges().empty());
        second.note(edge_of(JobPhase::kRunning, "2 ranks"));
        REQUIRE(JobFolder::open(jobs, 2).value().edges().size() == 1);
        CHECK(JobFolder::open(jobs, 2).value().edges()[0].unix_ms > 0);
        CHECK_FALSE(JobFolder::open(jobs, 3).ok());
        // What is no number is no job.
        std::filesystem::create_directory(jobs + "/012");
        std::filesystem::create_directory(jobs + "/new-abc");
        CHECK(JobFolder::list(jobs).size() == 2);
    }

    TEST_CASE("an edge that comes behind a torn line has a line of its own") {
        const Scratch scratch;
        const auto folder = JobFolder::create(scratch.path, {{"journal", "1 queued \n2 runn"}});
        REQUIRE(folder.ok());
        folder->note(edge_of(JobPhase::kEnding, "all ranks ended well"));
        folder->note(edge_of(JobPhase::kEnded, ""));
        const auto edges = folder->edges();
        REQUIRE(edges.size() == 3);
        CHECK(edges[1].reason == "all ranks ended well");
        CHECK(edges[2].state == JobPhase::kEnded);
    }

    TEST_CASE("a full disk makes no job, is named, and keeps nothing of it") {
        const Scratch scratch;
        const test_support::SmallDisk disk(scratch.path + "/jobs", 1);
        if (!disk.is_there) return;
        const std::string large(2 << 20, 'x');
        const auto made = JobFolder::create(scratch.path + "/jobs", {{"job.toml", large}});
        REQUIRE_FALSE(made.ok());
        CHECK(made.error().detail == ENOSPC);
        const std::string text = fabricshm::explanation_of(made.error());
        CHECK(text.find(scratch.path + "/jobs (FABRIC_JOBS_DIR)") != text.npos);
        CHECK(std::filesystem::is_empty(scratch.path + "/jobs"));
        CHECK(JobFolder::list(scratch.path + "/jobs").empty());
    }

    TEST_CASE("a job's lock has one holder, and ends with its process") {
        const Scratch scratch;
        const auto folder = JobFolder::create(scratch.path, {}).value();
        CHECK_FALSE(folder.holder());
        int ready[2], go[2];
        REQUIRE(::pipe(ready) == 0);
        REQUIRE(::pipe(go) == 0);
        const pid_t child = ::fork();
        if (child == 0) {
            auto own = JobFolder::open(scratch.path, 1);
            const bool is_locked = own.ok() && own->lock().ok();
            (void)!::write(ready[1], "!", 1);
            char byte = 0;
            (void)!::read(go[0], &byte, 1);
            ::_exit(is_locked ? 0 : 1);
        }
        char byte = 0;
        REQUIRE(::read(ready[0], &byte, 1) == 1);
        CHECK(folder.holder() == child);
        auto other = JobFolder::open(scratch.path, 1).value();
        CHECK(other.lock().error().code == fabricshm::Errc::kBusy);
        REQUIRE(::write(go[1], "!", 1) == 1);
        int status = -1;
        REQUIRE(::waitpid(child, &status, 0) == child);
        CHECK(status == 0);
        CHECK_FALSE(folder.holder());
        CHECK(other.lock().ok());
        for (const int fd : {ready[0], ready[1], go[0], go[1]}) ::close(fd);
    }
}
