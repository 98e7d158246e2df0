#include "fabricd/jobs/slurm_job.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdio>

using namespace fabricd;

namespace {

JobSpec two_groups() {
    JobSpec spec;
    spec.name = "rn50";
    spec.script = "train.py";
    spec.groups = {{"npu", 4, 48 * fabricshm::kMiB, "", 7},
                   {"cpu", 2, 40 * fabricshm::kMiB, "", 11}};
    spec.groups[0].nodes = 2;
    return spec;
}

SlurmContext somewhere() {
    return {"/srv/u/jobs/42", "/srv/u/work", "/usr/bin/fabricctl", {}};
}

/// The words of each component, the last without the script.
std::vector<std::vector<std::string>> components(const std::vector<std::string>& words) {
    std::vector<std::vector<std::string>> all(1);
    for (const std::string& word : words) {
        if (word == ":") {
            all.emplace_back();
        } else {
            all.back().push_back(word);
        }
    }
    all.back().pop_back();
    return all;
}

bool has(const std::vector<std::string>& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

std::string output_of(const std::string& command) {
    std::FILE* pipe = ::popen(command.c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::string text;
    std::array<char, 4096> bytes{};
    for (std::size_t count = 0; (count = std::fread(bytes.data(), 1, bytes.size(), pipe)) > 0;) {
        text.append(bytes.data(), count);
    }
    ::pclose(pipe);
    return text;
}

const std::string kHostile = "it's $(echo no) `echo no` \"\\ \n; : * ~";

}  // namespace

TEST_SUITE("jobs.slurm_job") {
    TEST_CASE("a quoted word comes out of a shell as it went in, whatever is in it") {
        std::string all;
        for (int byte = 1; byte < 256; ++byte) all += static_cast<char>(byte);
        for (const std::string& word :
             {kHostile, all, std::string(), std::string("'"), std::string("-n")}) {
            CHECK(output_of("printf '<%s>' " + shell_line({word, "next"})) ==
                  "<" + word + "><next>");
        }
        CHECK(shell_quoted("--gres=npu:2") == "--gres=npu:2");
    }

    TEST_CASE(
        "each group is a component with its nodes, ranks, kind and the size of the largest node") {
        const auto all = components(sbatch_words(two_groups(), somewhere()));
        REQUIRE(all.size() == 2);
        for (const char* word :
             {"sbatch", "--parsable", "--job-name=rn50", "--nodes=2", "--ntasks=4",
              "--ntasks-per-node=2", "--gres=npu:2", "--no-requeue",
              "--output=/srv/u/jobs/42/slurm.log", "--chdir=/srv/u/work"}) {
            CHECK_MESSAGE(has(all[0], word), word);
        }
        for (const char* word : {"--nodes=1", "--ntasks=2", "--ntasks-per-node=2"}) {
            CHECK_MESSAGE(has(all[1], word), word);
        }
        const std::string size = "--fabric=" + std::to_string(40 * fabricshm::kMiB);
        CHECK((has(all[0], size) && has(all[1], size)));
        CHECK(all[1].size() == 4);  // no GRES for processors
    }

    TEST_CASE("priority, time limit, restarts, dependencies and options become those of sbatch") {
        JobSpec spec = two_groups();
        spec.priority = -5;
        spec.time_limit = std::chrono::seconds(61);
        spec.max_restarts = 2;
        spec.slurm_options = {"--partition=long"};
        spec.groups[0].slurm_options = {"--gpus-per-task=1", "--constraint=a100|h100"};
        spec.groups[0].constraint = "a100*";
        spec.groups[1].constraint = "bigmem";
        SlurmContext context = somewhere();
        context.behind = {"12", "13"};
        const auto all = components(sbatch_words(spec, context));
        CHECK(has(all[0], "--dependency=afterok:12:13"));
        CHECK(has(all[0], "--requeue"));
        CHECK(has(all[0], "--constraint=a100|h100"));
        CHECK_FALSE(has(all[0], "--gres=npu:2"));
        CHECK(has(all[1], "--constraint=bigmem"));
        for (const auto& one : all) {
            for (const char* word : {"--nice=5", "--time=2", "--partition=long"})
                CHECK(has(one, word));
        }
        spec.priority = 5;
        const auto words = sbatch_words(spec, context);
        CHECK(std::none_of(words.begin(), words.end(),
                           [](const auto& w) { return w.starts_with("--nice"); }));
    }

    TEST_CASE(
        "ranks of a group follow each other over its nodes, and shares are by what they compute") {
        JobSpec spec = two_groups();
        spec.schedule = JobSchedule::kByResource;
        spec.strategy = JobStrategy::kParameterServer;
        spec.servers = 2;
        std::vector<JobNode> nodes;
        JobPlan plan;
        CHECK(plan_slurm_job(spec, {}, nodes, plan).value().find("--devices FILE") !=
              std::string::npos);
        const std::vector<JobDevice> devices = {{"cpu0", "cpu", 10, fabricshm::kGiB},
                                                {"npu0", "npu", 30, fabricshm::kGiB},
                                                {"npu1", "npu", 20, fabricshm::kGiB}};
        REQUIRE_FALSE(plan_slurm_job(spec, devices, nodes, plan));
        REQUIRE(nodes.size() == 3);
        REQUIRE(plan.ranks.size() == 6);
        std::vector<std::size_t> places;
        std::vector<unsigned> locals;
        std::vector<double> shares;
        for (const PlacedRank& one : plan.ranks) {
            places.push_back(one.node);
            locals.push_back(one.local_rank);
            shares.push_back(one.share * 110);
        }
        CHECK(places == std::vector<std::size_t>{0, 0, 1, 1, 2, 2});
        CHECK(locals == std::vector<unsigned>{0, 1, 0, 1, 0, 1});
        const double expected[] = {30, 20, 30, 20, 5, 5};
        for (int rank = 0; rank < 6; ++rank) CHECK(shares[rank] == doctest::Approx(expected[rank]));
        CHECK(plan.servers == std::vector<unsigned>{0, 2});
    }

    TEST_CASE("what Slurm can't do is one line") {
        std::vector<JobNode> nodes;
        JobPlan plan;
        JobSpec spec = two_groups();
        spec.groups[1].constraint = "a100*";
        CHECK(plan_slurm_job(spec, {}, nodes, plan).value().find("line 11: constraint \"a100*\"") ==
              0);
        spec.groups[1].slurm_options = {"--constraint=a100"};
        CHECK_FALSE(plan_slurm_job(spec, {}, nodes, plan));
        spec.restart = JobRestart::kRank;
        CHECK(plan_slurm_job(spec, {}, nodes, plan).value().find("restart = \"rank\"") == 0);
    }

    TEST_CASE("the script is one that a shell reads, with hostile texts as they are") {
        JobSpec spec = two_groups();
        spec.alarm_command = kHostile;
        spec.max_restarts = 3;
        SlurmContext context = somewhere();
        context.folder = "/tmp/no such $(folder)'s/42";
        const std::string script = slurm_script(spec, context);
        CHECK(output_of("printf %s " + shell_quoted(script) + " | sh -n 2>&1") == "");
        CHECK(script.find("--het-group=0-1 /usr/bin/fabricctl jobs rank \"$folder\"") !=
              std::string::npos);
        // What the script makes of its folder's name, without Slurm.
        const auto first = script.find("folder="), last = script.find("note()");
        CHECK(output_of(script.substr(first, last - first) +
                        "printf '%s|%s' \"$folder\" \"$job\"") == context.folder + "|42 (rn50)");
        spec.groups.pop_back();
        CHECK(slurm_script(spec, context).find("--het-group") == std::string::npos);
    }
}
