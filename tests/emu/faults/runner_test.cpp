// fabric-faults over a small job: each kind of fault happens where and when its plan says, and the
// job sees what docs/failure_model.md says it sees.

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "emu/faults/own_daemon.hpp"
#include "libfabricshm/base/version.hpp"
#include "tests/support/program.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace test_support;

namespace {

constexpr const char* kDaemon =
    "[daemon]\nprogram = \"" FABRICD_PATH
    "\"\narguments = [\"--pool-capacity=96MiB\", \"--pool-huge-pages=off\"]\n";

Output run(const std::string& plan, const char* operations = "20", bool insists = false) {
    const TemporaryDirectory folder;
    std::ofstream(folder.file("plan.toml")) << kDaemon << plan;
    return run_program(
        {FABRIC_FAULTS_PATH, folder.file("plan.toml"), "--", WORKER_PATH, "3", operations},
        {{"WORKER_INSISTS", insists ? "1" : ""}, {"RANK", ""}});
}

int count(const std::string& text, const std::string& part) {
    int found = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
}

}  // namespace

TEST_SUITE("faults.runner") {
    TEST_CASE("a rank is killed at the passage of a point that the plan names") {
        const Output done =
            run("[[fault]]\naction = \"kill\"\ntarget = \"rank 1\"\npoint = \"arrive.met\"\n"
                "passage = 4\n");
        INFO(done.out, done.error);
        CHECK(done.code == 0);
        CHECK(count(done.out, "FABRICSHM_EPEER rank 1 region 0, world 2") == 2);
        CHECK(count(done.error, "kill rank 1: process") == 1);
    }

    TEST_CASE("a host loses all of its ranks after some operations") {
        const Output done =
            run("[hosts]\nleft = [0]\nright = [1, 2]\n"
                "[[fault]]\naction = \"kill\"\ntarget = \"host right\"\noperations = 5\n");
        INFO(done.out, done.error);
        CHECK(done.code == 0);
        CHECK(count(done.out, "rank 0: FABRICSHM_EPEER") == 1);
        CHECK(count(done.out, "world 1") == 1);
        CHECK(count(done.error, "kill host right: process") == 2);
    }

    TEST_CASE("a stopped rank is waited for, and a slow device is only slow") {
        const Output done = run(
            "[devices]\ngpu0 = [2]\n"
            "[[fault]]\naction = \"stop\"\ntarget = \"rank 1\"\npoint = \"arrive.before\"\n"
            "passage = 3\nfor = \"100ms\"\n"
            "[[fault]]\naction = \"slow\"\ntarget = \"device gpu0\"\npoint = \"operation.begin\"\n"
            "delay = \"2ms\"\n");
        INFO(done.out, done.error);
        CHECK(done.code == 0);
        CHECK(count(done.out, "no failure, world 3") == 3);
        CHECK(count(done.error, "stop rank 1: over") == 1);
        CHECK(count(done.error, "slow device gpu0: process") == 1);
    }

    TEST_CASE("a lost page is named to every rank, and they go on without it") {
        const Output done =
            run("[[fault]]\naction = \"poison\"\ntarget = \"rank 0\"\noperations = 5\n"
                "offset = \"64KiB\"\n");
        INFO(done.out, done.error);
        CHECK(done.code == 0);
        CHECK(count(done.out, "FABRICSHM_EPOISONED rank -1 region 1, world 3") == 3);
    }

    TEST_CASE("the daemon is killed and started again under a running job") {
        const Output done = run(
            "[[fault]]\naction = \"kill\"\ntarget = \"daemon\"\npoint = \"journal.append.after\"\n"
            "passage = 9\n");
        INFO(done.out, done.error);
        CHECK(done.code == 0);
        CHECK(count(done.out, "no failure, world 3") == 3);
        CHECK(count(done.error, "the daemon is dead; it is started again") == 1);
    }

    TEST_CASE("a torn journal costs the record that was being written and no more") {
        for (const char* damage : {"cut", "flip", "garbage"}) {
            const Output done =
                run("[[fault]]\naction = \"tear\"\ntarget = \"daemon\"\n"
                    "point = \"journal.append.after\"\npassage = 12\ndamage = \"" +
                    std::string(damage) + "\"\n");
            INFO(damage, done.out, done.error);
            CHECK(done.code == 0);
            CHECK(count(done.out, "no failure, world 3") == 3);
        }
    }

    TEST_CASE("a full pool refuses a job, and no longer when there is room again") {
        const std::string fill = "[[fault]]\naction = \"fill\"\nafter = \"0ms\"\n";
        const Output refused = run(fill);
        INFO(refused.out, refused.error);
        CHECK(refused.code != 0);
        CHECK(count(refused.out, "arena: ") >= 1);
        CHECK(count(refused.out, "wanted ") >= 1);
        const Output waited = run(fill + "for = \"100ms\"\n", "20", true);
        INFO(waited.out, waited.error);
        CHECK(waited.code == 0);
        CHECK(count(waited.out, "no failure, world 3") == 3);
        CHECK(count(waited.error, "fill pool: 96 MiB taken") == 1);
    }

    TEST_CASE("a fault that never happened is reported, and is a failure") {
        const Output done =
            run("[[fault]]\naction = \"kill\"\ntarget = \"rank 7\"\npoint = \"arrive.met\"\n");
        INFO(done.out, done.error);
        CHECK(done.code == 3);
        CHECK(count(done.error, "kill never happened") == 1);
    }

    // Checked without a signal: were it wrong, the signal would go to every process of this user.
    TEST_CASE("a daemon that is not there has no process to strike, and is not waited for") {
        emu::OwnDaemon daemon("/nonexistent", {});
        CHECK(daemon.processes().empty());
        CHECK_FALSE(daemon.start("", ""));
        CHECK(daemon.processes().empty());
        CHECK_FALSE(daemon.wait_until_ready());
        emu::OwnDaemon ends("/bin/true", {});
        REQUIRE(ends.start("", ""));
        CHECK(ends.processes().size() == 1);
        CHECK_FALSE(ends.wait_until_ready());
        CHECK(ends.died());
        CHECK(ends.processes().empty());
    }

    TEST_CASE("wrong usage is one line and exit code 2") {
        CHECK(run_program({FABRIC_FAULTS_PATH}).code == 2);
        const Output missing = run_program({FABRIC_FAULTS_PATH, "/nonexistent.toml", "--", "true"});
        CHECK(missing.code == 2);
        CHECK(count(missing.error, "\n") == 1);
        const Output none =
            run("[[fault]]\naction = \"melt\"\ntarget = \"rank 1\"\nafter = \"1s\"\n");
        CHECK(none.code == 2);
        CHECK(count(none.error, "action is one of kill, stop") == 1);
        CHECK(run_program({FABRIC_FAULTS_PATH, "--help"}).code == 0);
        CHECK(run_program({FABRIC_FAULTS_PATH, "--version"}).out == "fabric-faults " FABRIC_VERSION
                                                                    "\n");
    }
}
