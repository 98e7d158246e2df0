// The job file. What is accepted has only ranks, names and texts that can be placed and started.

#include "fabricd/config/job_file.hpp"

#include "tests/fuzz/fuzz.hpp"

using namespace fabricd;

namespace {

void require_sound(const JobSpec& spec) {
    FUZZ_REQUIRE(!spec.name.empty() && spec.name.size() <= 48);
    FUZZ_REQUIRE(spec.name.find('/') == std::string::npos && spec.name.front() != '.');
    FUZZ_REQUIRE(!spec.script.empty() && spec.script.find('\0') == std::string::npos);
    for (const auto& text : spec.arguments) {
        FUZZ_REQUIRE(text.find('\0') == std::string::npos);
    }
    FUZZ_REQUIRE(!spec.groups.empty() && spec.ranks() >= 1 && spec.ranks() <= kMaxJobRanks);
    for (const JobGroup& group : spec.groups) {
        FUZZ_REQUIRE(!group.kind.empty() && group.ranks >= 1);
        FUZZ_REQUIRE(group.pool == 0 || group.pool >= fabricshm::kMiB);
    }
    FUZZ_REQUIRE(spec.servers <= spec.ranks());
    FUZZ_REQUIRE((spec.servers > 0) == (spec.strategy == JobStrategy::kParameterServer));
    FUZZ_REQUIRE(spec.time_limit >= Duration::zero() && spec.grace > Duration::zero());
    FUZZ_REQUIRE(spec.data.pass_on >= 0.0 && spec.data.pass_on <= 1.0);
    FUZZ_REQUIRE(spec.wrap || (spec.data.cache.empty() && spec.data.pass_on == 0.0));
    FUZZ_REQUIRE(spec.data.cache.empty() || !spec.data.path.empty());
}

void run(fuzz::Data input) {
    JobSpec spec;
    const auto bad = parse_job_file(fuzz::Input::text_of(input), "j.toml", spec);
    FUZZ_REQUIRE(spec.groups.empty() == bad.has_value());
    if (bad) FUZZ_REQUIRE(bad->starts_with("j.toml"));
    if (!bad) require_sound(spec);
}

std::vector<fuzz::Buffer> seeds() {
    const std::string job =
        "[job]\nname = \"a\"\nscript = \"t.py\"\n[[group]]\nkind = \"cpu\"\nranks = 2\n";
    return {fuzz::buffer_of(job),
            fuzz::buffer_of("[job]\nname = \"a\"\nscript = \"t.py\"\narguments = [\"-x\"]\n"
                            "wrap = true\npriority = -3\nafter = [\"b\", \"7\"]\n"
                            "strategy = \"parameter-server\"\nservers = 1\nstaleness = 2\n"
                            "schedule = \"by-resource\"\nrestart = \"rank\"\nmax_restarts = 2\n"
                            "time_limit = \"8h\"\ngrace = \"1s\"\n[[group]]\nkind = \"gpu\"\n"
                            "ranks = 4\npool = \"48G\"\nconstraint = \"a*\"\n[data]\n"
                            "path = \"/d\"\nsplit = \"weighted\"\ncache = \"/d\"\n"
                            "pass_on = 0.5\n[alarm]\ncommand = \"true\"\n")};
}

const fuzz::Registered kTarget({"job_file", run, seeds});

}  // namespace
