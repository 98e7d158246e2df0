#include "fabricd/jobs/rank_start.hpp"

#include <doctest/doctest.h>

#include <map>

using namespace fabricd;

namespace {

struct Bench {
    Bench() {
        spec.name = "a";
        spec.script = "a.py";
        spec.arguments = {"-x", "y z"};
        spec.groups = {{"cpu", 2, 8 * fabricshm::kMiB, "", 1}, {"gpu", 1, 0, "", 2}};
        nodes = {{"n1", 1024 * fabricshm::kMiB, {{"", "cpu", 1, 1 << 30}, {"gpu0", "gpu", 2, 0}}}};
        REQUIRE_FALSE(plan_job(spec, nodes, plan));
        context.job = 7;
        context.run = "fabric-job-7";
        context.master_port = 4321;
        context.attach_socket = "/run/a.sock";
        context.arena = "job-0-7";
        context.interpreter = "/usr/bin/python3";
        context.cores = 8;
    }

    std::map<std::string, std::string> variables(unsigned rank,
                                                 const std::vector<std::string>& base = {}) const {
        std::map<std::string, std::string> all;
        for (const auto& one : rank_environment(spec, nodes, plan, rank, context, base)) {
            CHECK(all.emplace(one.substr(0, one.find('=')), one.substr(one.find('=') + 1)).second);
        }
        return all;
    }

    JobSpec spec;
    std::vector<JobNode> nodes;
    JobPlan plan;
    RankContext context;
};

}  // namespace

TEST_SUITE("jobs.rank_start") {
    TEST_CASE("a script is started through the package's bootstrap, a program as it is") {
        Bench bench;
        CHECK(rank_arguments(bench.spec, bench.context) ==
              std::vector<std::string>{"/usr/bin/python3", "-m", "fabricshm._run_script", "a.py",
                                       "-x", "y z"});
        bench.spec.override_backend = true;
        CHECK(rank_arguments(bench.spec, bench.context)[3] == "--override-backend");
        bench.spec.interpreter = "";
        bench.context.interpreter = "/opt/a";
        CHECK(rank_arguments(bench.spec, bench.context) ==
              std::vector<std::string>{"/opt/a", "-x", "y z"});
    }

    TEST_CASE(
        "a script for one process is wrapped, with a parameter server where one is asked for") {
        Bench bench;
        bench.spec.wrap = true;
        bench.spec.arguments.clear();
        const std::vector<std::string> start = {"/usr/bin/python3", "-m", "fabricshm._run_script",
                                                "--wrap", "--wrap-reduction"};
        auto wanted = start;
        wanted.insert(wanted.end(), {"mean", "a.py"});
        CHECK(rank_arguments(bench.spec, bench.context) == wanted);
        bench.spec.wrap_sums = true;
        bench.spec.strategy = JobStrategy::kParameterServer;
        bench.spec.staleness = 2;
        wanted = start;
        wanted.insert(wanted.end(), {"sum", "--staleness", "2", "a.py"});
        CHECK(rank_arguments(bench.spec, bench.context) == wanted);
    }

    TEST_CASE("the launcher's variables are those of torchrun") {
        const Bench bench;
        const auto last = bench.variables(2);
        CHECK(last.at("RANK") == "2");
        CHECK(last.at("WORLD_SIZE") == "3");
        CHECK(last.at("LOCAL_RANK") == "2");
        CHECK(last.at("LOCAL_WORLD_SIZE") == "3");
        CHECK(last.at("GROUP_RANK") == "0");
        CHECK(last.at("MASTER_ADDR") == "127.0.0.1");
        CHECK(last.at("MASTER_PORT") == "4321");
        CHECK(last.at("TORCHELASTIC_RUN_ID") == "fabric-job-7");
        CHECK(last.at("OMP_NUM_THREADS") == "2");
        CHECK(bench.variables(0, {"OMP_NUM_THREADS=5"}).at("OMP_NUM_THREADS") == "5");
    }

    TEST_CASE("ranks find the fabric and their device, or neither") {
        Bench bench;
        CHECK(bench.variables(0).at("FABRIC_SOCKET") == "/run/a.sock");
        CHECK(bench.variables(0).at("FABRIC_ARENA_BYTES") == std::to_string(8 << 20));
        CHECK(bench.variables(0).count("FABRIC_DEVICE") == 0);
        CHECK(bench.variables(2).at("FABRIC_DEVICE") == "gpu0");
        bench.context.attach_socket = "";
        CHECK(bench.variables(2).count("FABRIC_SOCKET") == 0);
        CHECK(bench.variables(2).count("FABRIC_DEVICE") == 0);
    }

    TEST_CASE("what the shell had goes along, but for what another job left") {
        Bench bench;
        bench.context.python_packages = "/p";
        const auto all =
            bench.variables(0, {"HOME=/h", "RANK=9", "FABRIC_JOB_DATA=/old", "FABRIC_DEVICE=old",
                                "FABRIC_JOBS_DIR=/j", "PYTHONPATH=/q"});
        CHECK(all.at("HOME") == "/h");
        CHECK(all.at("RANK") == "0");
        CHECK(all.count("FABRIC_JOB_DATA") == 0);
        CHECK(all.at("FABRIC_JOBS_DIR") == "/j");  // by which a process is known as of that folder
        CHECK(all.count("FABRIC_DEVICE") == 0);
        CHECK(all.at("PYTHONPATH") == "/p:/q");
    }

    TEST_CASE("strategy, shares and data are handed on") {
        Bench bench;
        CHECK(bench.variables(1).at("FABRIC_JOB_STRATEGY") == "allreduce");
        CHECK(bench.variables(1).count("FABRIC_JOB_SERVERS") == 0);
        for (const char* name : {"FABRIC_JOB_DATA", "FABRIC_JOB_CACHE", "FABRIC_JOB_PASS_ON"}) {
            CHECK(bench.variables(1).count(name) == 0);
        }
        bench.spec.strategy = JobStrategy::kParameterServer;
        bench.spec.servers = 2;
        bench.spec.staleness = 3;
        bench.spec.schedule = JobSchedule::kByResource;
        bench.spec.data = {"/d", 1, "/images", JobSplit::kWeighted, 0.05};
        REQUIRE_FALSE(plan_job(bench.spec, bench.nodes, bench.plan));
        const auto all = bench.variables(2);
        CHECK(all.at("FABRIC_JOB_STRATEGY") == "parameter-server");
        CHECK(all.at("FABRIC_JOB_SERVERS") == "0,2");
        CHECK(all.at("FABRIC_JOB_STALENESS") == "3");
        CHECK(all.at("FABRIC_JOB_SHARES") == "0.166667,0.166667,0.666667");
        CHECK(all.at("FABRIC_JOB_DATA") == "/d");
        CHECK(all.at("FABRIC_JOB_CACHE") == "/images");
        CHECK(all.at("FABRIC_JOB_PASS_ON") == "0.05");
        CHECK(all.at("FABRIC_JOB_GROUP") == "1");
        CHECK(all.at("FABRIC_JOB_KIND") == "gpu");
    }
}
