#include "libfabricshm/base/launcher.hpp"

#include <doctest/doctest.h>

#include <map>
#include <set>
#include <string>

#include "libfabricshm/base/reason.hpp"

using namespace fabricshm;

namespace {

using Environment = std::map<std::string, std::string>;

Result<Launch> launch_in(const Environment& environment) {
    return read_launch([&](const char* name) -> const char* {
        const auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
    });
}

// "kInvalid: ..." of what cannot be read.
std::string refusal_of(const Environment& environment) {
    const auto launch = launch_in(environment);
    if (launch.ok()) return "read";
    return std::string(name_of(launch.error().code)) + ": " + reason_of(launch.error());
}

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

Environment with(Environment environment, const Environment& more) {
    for (const auto& [name, value] : more) environment[name] = value;
    return environment;
}

// Rank 5 of 7 on the second of two hosts, as each launcher writes it.
const Environment kTorchrun{{"RANK", "5"},
                            {"WORLD_SIZE", "7"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "3"},
                            {"GROUP_RANK", "1"},
                            {"GROUP_WORLD_SIZE", "2"},
                            {"TORCHELASTIC_RUN_ID", "none"}};
const Environment kOpenMpi{{"OMPI_COMM_WORLD_RANK", "5"},       {"OMPI_COMM_WORLD_SIZE", "7"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                           {"OMPI_COMM_WORLD_NODE_RANK", "1"},  {"PMIX_RANK", "5"}};
const Environment kMpich{
    {"PMI_RANK", "5"}, {"PMI_SIZE", "7"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "3"}};
const Environment kSlurm{{"SLURM_PROCID", "5"},  {"SLURM_STEP_ID", "0"},
                         {"SLURM_NTASKS", "7"},  {"SLURM_STEP_NUM_TASKS", "7"},
                         {"SLURM_LOCALID", "1"}, {"SLURM_NODEID", "1"},
                         {"SLURM_NNODES", "2"},  {"SLURM_STEP_TASKS_PER_NODE", "4,3"}};

}  // namespace

TEST_SUITE("base.launcher") {
    TEST_CASE("torchrun says rank, world and both places") {
        CHECK(launch_in(kTorchrun).value() == Launch{5, 7, 1, 3, 1, 2, "torchrun"});
    }

    TEST_CASE("rank and world that were set by hand are taken as torchrun's") {
        CHECK(launch_in({{"RANK", "0"}, {"WORLD_SIZE", "2"}}).value() ==
              Launch{0, 2, -1, -1, -1, -1, "torchrun"});
    }

    TEST_CASE("OpenMPI says rank, world and place on the host, and not which host") {
        CHECK(launch_in(kOpenMpi).value() == Launch{5, 7, 1, 3, -1, -1, "openmpi"});
    }

    TEST_CASE("MPICH says rank, world and place on the host") {
        CHECK(launch_in(kMpich).value() == Launch{5, 7, 1, 3, -1, -1, "mpich"});
    }

    TEST_CASE("Slurm says rank, world and places, and how many ranks each host has") {
        CHECK(launch_in(kSlurm).value() == Launch{5, 7, 1, 3, 1, 2, "slurm"});
        const auto last = [&](const char* node, const char* counts) {
            return launch_in(with(kSlurm, {{"SLURM_NODEID", node},
                                           {"SLURM_NNODES", "4"},
                                           {"SLURM_LOCALID", "0"},
                                           {"SLURM_STEP_TASKS_PER_NODE", counts}}));
        };
        CHECK(last("2", "2(x3),1").value().local_world == 2);
        CHECK(last("3", "2(x3),1").value().local_world == 1);
        CHECK(last("0", "1,2(x3)").value().local_world == 1);
        CHECK(last("1", "1,2(x3)").value().local_world == 2);
    }

    TEST_CASE(
        "a list of Slurm's that does not add up is an error of the step, and none of the job") {
        for (const char* text : {"4,4", "4", "4,3,", "4,x", "(x2)", "4(x", "4(x0),3", "4(x1,3",
                                 "4(x2000000000)", "4(x1)3,3", "-4,11", "4 ,3"}) {
            CAPTURE(text);
            const Environment step = with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", text}});
            CHECK(has(refusal_of(step), "kInvalid: SLURM_STEP_TASKS_PER_NODE is"));
            Environment job = with(kSlurm, {{"SLURM_TASKS_PER_NODE", text}});
            job.erase("SLURM_STEP_TASKS_PER_NODE");
            CHECK(launch_in(job).value() == Launch{5, 7, 1, -1, 1, 2, "slurm"});
        }
    }

    TEST_CASE("a batch script of Slurm's is not a rank") {
        Environment script = kSlurm;
        script.erase("SLURM_STEP_ID");
        CHECK(has(refusal_of(script), "kNotFound: a script of Slurm's is not a rank"));
        // mpirun started by it: the script's numbers, which its ranks inherit, do not count.
        CHECK(launch_in(with(kMpich, with(script, {{"SLURM_PROCID", "0"}}))).value() ==
              launch_in(kMpich).value());
    }

    TEST_CASE("PMIx says the rank alone: that is too little, and next to another launcher enough") {
        CHECK(has(refusal_of({{"PMIX_RANK", "1"}}), "kInvalid: PMIX_RANK is set, but no variable"));
        CHECK(launch_in(with(kSlurm, {{"PMIX_RANK", "5"}})).value().rank == 5);
    }

    TEST_CASE("without any launcher that is said, and what to do") {
        const std::string text = refusal_of({{"HOME", "/root"}, {"RANK", ""}});
        CHECK(has(text, "kNotFound: no launcher"));
        CHECK(has(text, "RANK and WORLD_SIZE"));
    }

    TEST_CASE("half a set is an error that names both variables, unless another set is whole") {
        CHECK(refusal_of({{"RANK", "1"}}) == "kInvalid: RANK is set, but WORLD_SIZE is not");
        CHECK(refusal_of({{"WORLD_SIZE", "2"}}) == "kInvalid: WORLD_SIZE is set, but RANK is not");
        CHECK(launch_in(with(kOpenMpi, {{"RANK", "gold"}})).value().rank == 5);
    }

    TEST_CASE("what is no number is an error that names the variable and its value") {
        for (const auto* set : {&kTorchrun, &kOpenMpi, &kMpich, &kSlurm}) {
            for (const auto& [name, value] : *set) {
                if (name == "TORCHELASTIC_RUN_ID" || name == "SLURM_STEP_ID") continue;
                // Not read: no number of a host; no number that the others lack; the other's.
                if (name == "OMPI_COMM_WORLD_NODE_RANK" || name == "SLURM_NTASKS") continue;
                if (name == "PMIX_RANK") continue;
                for (const char* text : {"x", "-1", "1x", " 1", "1 ", "0x1", "99999999999"}) {
                    CAPTURE(name);
                    CAPTURE(text);
                    const std::string refusal = refusal_of(with(*set, {{name, text}}));
                    CHECK(has(refusal, "kInvalid: " + name + " is \"" + text + "\""));
                }
            }
        }
    }

    TEST_CASE("a rank has to be below the world, and a place below what it counts among") {
        CHECK(has(refusal_of(with(kTorchrun, {{"RANK", "7"}})),
                  "RANK is 7, and has to be below WORLD_SIZE, which is 7"));
        CHECK(has(refusal_of(with(kMpich, {{"MPI_LOCALRANKID", "3"}})),
                  "MPI_LOCALRANKID is 3, and has to be below MPI_LOCALNRANKS, which is 3"));
        CHECK(has(refusal_of(with(kSlurm, {{"SLURM_NODEID", "2"}})),
                  "SLURM_NODEID is 2, and has to be below SLURM_NNODES, which is 2"));
        CHECK(has(refusal_of(with(kSlurm, {{"SLURM_LOCALID", "3"}})), "SLURM_LOCALID is 3"));
        CHECK(has(refusal_of(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "8"}})),
                  "OMPI_COMM_WORLD_LOCAL_SIZE is 8, more than OMPI_COMM_WORLD_SIZE, which is 7"));
        CHECK(has(refusal_of({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), "RANK is 0"));
    }

    TEST_CASE(
        "a rank and a world left over by a shell contradict the launcher, and both are named") {
        for (const auto* set : {&kOpenMpi, &kMpich, &kSlurm}) {
            for (const Environment& stale : {Environment{{"RANK", "0"}, {"WORLD_SIZE", "1"}},
                                             Environment{{"RANK", "0"}, {"WORLD_SIZE", "7"}}}) {
                const std::string text = refusal_of(with(*set, stale));
                CAPTURE(text);
                CHECK(has(text, "kInvalid: RANK and WORLD_SIZE are 0 of "));
                CHECK(has(text, set == &kOpenMpi ? "OMPI_COMM_WORLD_RANK"
                                : set == &kMpich ? "PMI_RANK and PMI_SIZE"
                                                 : "SLURM_PROCID and SLURM_STEP_NUM_TASKS"));
            }
        }
        CHECK(has(refusal_of(with(kMpich, with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "4"}}))),
                  "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE are 4 of 7"));
    }

    TEST_CASE("ranks that a launcher starts inside a task of another are the launcher's") {
        const Environment task{
            {"SLURM_PROCID", "1"}, {"SLURM_STEP_ID", "3"}, {"SLURM_NTASKS", "2"}};
        for (const auto* inner : {&kTorchrun, &kOpenMpi, &kMpich}) {
            CHECK(launch_in(with(*inner, task)).value() == launch_in(*inner).value());
        }
        // Numbered by a script, one script for each task: more ranks than tasks.
        CHECK(launch_in(with({{"RANK", "3"}, {"WORLD_SIZE", "4"}}, task)).value().rank == 3);
        // Each task trains on its own.
        const Environment alone{
            {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"TORCHELASTIC_RUN_ID", "of its own"}};
        CHECK(launch_in(with(alone, task)).value().world == 1);
    }

    TEST_CASE("what the first set does not say comes from another one that agrees with it") {
        CHECK(launch_in(with(kMpich, kSlurm)).value() == Launch{5, 7, 1, 3, 1, 2, "mpich"});
        const Environment bare{{"RANK", "5"}, {"WORLD_SIZE", "7"}};
        CHECK(launch_in(with(bare, kSlurm)).value() == Launch{5, 7, 1, 3, 1, 2, "torchrun"});
        // Half of a pair is no place: the two may count differently.
        CHECK(launch_in(with(with(bare, {{"LOCAL_RANK", "0"}}), kSlurm)).value() ==
              Launch{5, 7, 0, -1, 1, 2, "torchrun"});
    }

    TEST_CASE("on one host the places follow from rank and world") {
        const Environment one_host{{"OMPI_COMM_WORLD_RANK", "1"},
                                   {"OMPI_COMM_WORLD_SIZE", "2"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
        CHECK(launch_in(one_host).value() == Launch{1, 2, 1, 2, 0, 1, "openmpi"});
        CHECK(launch_in({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).value() ==
              Launch{0, 1, 0, 1, 0, 1, "torchrun"});
    }

    TEST_CASE("no variable is in two rows of the table") {
        std::set<std::string> seen;
        for (const LauncherRow& row : launcher_table()) {
            for (const auto* names : {&row.rank, &row.world, &row.local_rank, &row.local_world,
                                      &row.node, &row.nodes}) {
                for (const char* name : *names) {
                    if (name == nullptr) continue;
                    CAPTURE(name);
                    CHECK(seen.insert(name).second);
                }
            }
        }
    }
}
