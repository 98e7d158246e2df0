#include "fabricd/config/job_file.hpp"

#include <doctest/doctest.h>

using namespace fabricd;
using namespace std::chrono_literals;

namespace {

// Two lines and three: mistakes behind them are in line 6 and on.
constexpr const char* kJob = "[job]\nname = \"rn50\"\nscript = \"train.py\"\n";
constexpr const char* kGroup = "[[group]]\nkind = \"cpu\"\nranks = 2\n";

std::string error_message(const std::string& text) {
    JobSpec spec;
    const auto bad = parse_job_file(text, "j.toml", spec);
    CHECK(spec.name.empty() == bad.has_value());
    return bad.value_or("");
}

std::string with_key(const std::string& line) {
    return error_message(std::string(kJob) + line + "\n" + kGroup);
}

std::string with_group_key(const std::string& line) {
    return error_message(std::string(kGroup) + line + "\n" + kJob);
}

}  // namespace

TEST_SUITE("fabricd.job_file") {
    TEST_CASE("a job needs a name, a script and a group; the rest has defaults") {
        JobSpec spec;
        REQUIRE_FALSE(parse_job_file(std::string(kJob) + kGroup, "j.toml", spec));
        CHECK(spec.name == "rn50");
        CHECK(spec.script == "train.py");
        CHECK(spec.script_line == 3);
        CHECK(spec.interpreter == "python3");
        CHECK(spec.strategy == JobStrategy::kAllreduce);
        CHECK(spec.schedule == JobSchedule::kEven);
        CHECK(spec.restart == JobRestart::kJob);
        CHECK(spec.max_restarts == 0);
        CHECK(spec.time_limit == 0s);
        CHECK(spec.grace == 10s);
        REQUIRE(spec.groups.size() == 1);
        CHECK(spec.groups[0].kind == "cpu");
        CHECK(spec.groups[0].ranks == 2);
        CHECK(spec.groups[0].pool == 0);
        CHECK(spec.groups[0].line == 4);
        CHECK(error_message(kGroup) == "j.toml: has no [job]");
        CHECK(error_message(kJob) == "j.toml:1: the job has no [[group]]");
        CHECK(error_message("[job]\nname = \"a\"\n") == "j.toml:1: the job has no script");
        CHECK(error_message("[job]\nscript = \"a\"\n") == "j.toml:1: the job has no name");
    }

    TEST_CASE("every key arrives in its field") {
        const char* text =
            "[job]\nname = \"rn50\"\nscript = \"train.py\"\narguments = [\"--epochs\", \"3\"]\n"
            "interpreter = \"python3.11\"\noverride_backend = true\npriority = 10\n"
            "wrap = true\n"
            "after = [\"etl\", \"17\"]\nstrategy = \"parameter-server\"\nservers = 2\n"
            "staleness = 3\nschedule = \"by-resource\"\nrestart = \"rank\"\nmax_restarts = 2\n"
            "time_limit = \"8h\"\ngrace = \"500ms\"\nmin_ranks = 3\ndevice_fault = \"move\"\n"
            "[[group]]\nkind = \"gpu\"\nranks = 4\npool = \"48G\"\nconstraint = \"a100*\"\n"
            "[[group]]\nkind = \"cpu\"\nranks = 2\npool = \"8GiB\"\n"
            "nodes = 2\nslurm = [\"--gpus-per-task=1\"]\n"
            "[data]\npath = \"/data\"\ncache = \"/images\"\nsplit = \"weighted\"\n"
            "pass_on = 0.05\n"
            "[slurm]\noptions = [\"--partition=long\"]\n"
            "[alarm]\ncommand = \"logger\"\n";
        JobSpec spec;
        REQUIRE_FALSE(parse_job_file(text, "j.toml", spec));
        CHECK(spec.arguments == std::vector<std::string>{"--epochs", "3"});
        CHECK(spec.interpreter == "python3.11");
        CHECK(spec.override_backend);
        CHECK(spec.priority == 10);
        CHECK(spec.after == std::vector<std::string>{"etl", "17"});
        CHECK(spec.strategy == JobStrategy::kParameterServer);
        CHECK(spec.servers == 2);
        CHECK(spec.staleness == 3);
        CHECK(spec.schedule == JobSchedule::kByResource);
        CHECK(spec.restart == JobRestart::kRank);
        CHECK(spec.max_restarts == 2);
        CHECK(spec.time_limit == 8h);
        CHECK(spec.grace == 500ms);
        CHECK(spec.min_ranks == 3);
        CHECK(spec.device_fault == JobDeviceFault::kMove);
        REQUIRE(spec.groups.size() == 2);
        CHECK(spec.groups[0].pool == 48 * fabricshm::kGiB);
        CHECK(spec.groups[0].constraint == "a100*");
        CHECK(spec.ranks() == 6);
        CHECK(spec.pool() == 56 * fabricshm::kGiB);
        CHECK(spec.data.path == "/data");
        CHECK(spec.data.cache == "/images");
        CHECK(spec.data.split == JobSplit::kWeighted);
        CHECK(spec.data.pass_on == 0.05);
        CHECK(spec.alarm_command == "logger");
        CHECK(spec.slurm_options == std::vector<std::string>{"--partition=long"});
        CHECK(spec.groups[1].slurm_options == std::vector<std::string>{"--gpus-per-task=1"});
        CHECK((spec.groups[0].nodes == 1 && spec.groups[1].nodes == 2));
    }

    TEST_CASE("an unknown key or section is named with the nearest known one") {
        CHECK(with_key("priorty = 1") ==
              "j.toml:4: unknown key \"priorty\" (did you mean priority?)");
        CHECK(with_group_key("rank = 1") == "j.toml:4: unknown key \"rank\" (did you mean ranks?)");
        CHECK(with_key("[alarms]") == "j.toml:4: unknown section \"alarms\" (did you mean alarm?)");
        CHECK(with_key("[data]\npth = \"/\"") ==
              "j.toml:5: unknown key \"pth\" (did you mean path?)");
    }

    TEST_CASE("a wrong value is refused with its line and with what is allowed") {
        CHECK(with_key("priority = 1001") ==
              "j.toml:4: priority takes a whole number from -1000 to 1000, the larger one goes "
              "first");
        CHECK(with_key("time_limit = 8") ==
              "j.toml:4: time_limit takes a time as \"90s\", \"30min\" or \"8h\", 1ms to 365d");
        CHECK(with_key("max_restarts = -1") ==
              "j.toml:4: max_restarts takes a whole number from 0 to 1000000");
        CHECK(with_key("schedule = \"evn\"") ==
              "j.toml:4: schedule takes \"even\" or \"by-resource\" (did you mean even?)");
        CHECK(with_key("arguments = [1]") ==
              "j.toml:4: arguments takes a list of at most 1024 texts, as [\"--epochs\", \"3\"]");
        CHECK(with_group_key("pool = \"4096\"") ==
              "j.toml:4: pool takes a size as \"512MiB\" or \"48G\", 1 MiB to 128 TiB");
        CHECK(with_group_key("constraint = \"\"") ==
              "j.toml:4: constraint takes a pattern for names of devices, as \"a100*\"");
        CHECK(error_message("[[group]]\nkind = \"gpus\"\nranks = 1\n") ==
              "j.toml:2: kind takes one of cpu, gpu, npu, tpu, bpu, fpga, asic, dpu (did you mean "
              "gpu?)");
        for (const char* option : {"-p", ":", "--", "long", "--a\\nb"}) {
            CHECK(with_group_key(std::string("slurm = [\"") + option + "\"]") ==
                  "j.toml:4: slurm takes a list of at most 32 long options of sbatch, as "
                  "[\"--partition=long\"]");
        }
        CHECK(with_group_key("nodes = 3") ==
              "j.toml:1: 2 ranks can't be spread evenly over 3 nodes");
        CHECK(error_message("[job]\nname = \"17\"\n") ==
              "j.toml:2: name takes 1 to 48 letters, digits and \"-_.\", not of digits alone");
        CHECK(error_message("[job]\nname = \"../x\"\n").starts_with("j.toml:2: name takes"));
        CHECK(with_key("[data]\npass_on = nan") == "j.toml:5: pass_on takes a share from 0 to 1");
        CHECK(with_key("[data]\ncache = \"images\"") ==
              "j.toml:5: cache takes a path in the namespace, as \"/images\"");
        CHECK(with_key("[data]\nsplit = \"odd\"").starts_with("j.toml:5: split takes \"even\""));
        CHECK(with_key("[data]\npreprocess = []") == "j.toml:5: unknown key \"preprocess\"");
        CHECK(with_key("job = 1").starts_with("j.toml:4: unknown key \"job\""));
        CHECK(error_message("job = 1\n") == "j.toml:1: job is a section: [job]");
        CHECK(error_message("group = 1\n") == "j.toml:1: a group is a section: [[group]]");
        CHECK(error_message("[job\n").starts_with("j.toml:1: "));
    }

    TEST_CASE("comments are in any language, texts in ASCII") {
        const std::string kOther = "\xc3\xa4";
        CHECK(error_message("[job]\nname = \"" + kOther + "\"\n").starts_with("j.toml:2: a char"));
        CHECK(with_key("# " + kOther) == "");
        CHECK(with_key("priority = 1 # it's " + kOther) == "");
        CHECK(with_key("arguments = ['#\\', \"\\\"#\"] # " + kOther) == "");
        CHECK(with_key("arguments = ['#" + kOther + "']").starts_with("j.toml:4: a character"));
        CHECK(with_key("arguments = [\"\\\"#" + kOther + "\"]").starts_with("j.toml:4: a char"));
        CHECK(with_key(kOther + " = 1 # a").starts_with("j.toml:4: a character"));
        // Whether it is a comment takes a whole parser to say.
        CHECK(with_key("arguments = ['''\n# " + kOther + "''']").starts_with("j.toml:5: a char"));
    }

    TEST_CASE("keys that need each other say so") {
        CHECK(with_key("servers = 1") == "j.toml:4: servers is of strategy = \"parameter-server\"");
        CHECK(with_key("staleness = 0") ==
              "j.toml:4: staleness is of strategy = \"parameter-server\"");
        CHECK(with_key("strategy = \"parameter-server\"\nservers = 3") ==
              "j.toml:5: 3 servers need as many ranks; the groups have 2");
        CHECK(with_key("interpreter = \"\"\noverride_backend = true") ==
              "j.toml:5: override_backend needs an interpreter");
        CHECK(with_key("interpreter = \"\"\nwrap = true") == "j.toml:5: wrap needs an interpreter");
        CHECK(with_key("min_ranks = 3") == "j.toml:4: min_ranks is 3, and the groups have 2 ranks");
        CHECK(with_key("device_fault = \"move\"") ==
              "j.toml:4: device_fault = \"move\" starts ranks again: it needs max_restarts");
        CHECK(with_key("device_fault = \"moves\"") ==
              "j.toml:4: device_fault takes \"alarm\" or \"move\" (did you mean move?)");
        CHECK(with_key("wrap_reduction = \"sum\"") == "j.toml:4: wrap_reduction needs wrap = true");
        CHECK(error_message(std::string(kJob) + "[[group]]\nkind = \"cpu\"\nranks = 1000\n" +
                            kGroup + "[[group]]\nkind = \"cpu\"\nranks = 23\n") ==
              "j.toml:1: the groups have 1025 ranks, more than 1024");
        JobSpec spec;
        REQUIRE_FALSE(parse_job_file(
            std::string(kJob) + "strategy = \"parameter-server\"\n" + kGroup, "j.toml", spec));
        CHECK(spec.servers == 1);
    }

    TEST_CASE("what is no file is one line") {
        JobSpec spec;
        CHECK(*read_job_file("/nonexistent", spec) == "/nonexistent: is not there");
        CHECK(*read_job_file("/dev/zero", spec) == "/dev/zero: is no file");
    }
}
