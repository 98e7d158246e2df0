#include "fabricd/ctl/slurm_commands.hpp"

#include <doctest/doctest.h>

#include "libfabricshm/base/reason.hpp"

using namespace fabricd;
using fabricshm::Errc;
using fabricshm::kGiB;

namespace {

StatusView status_of(std::uint64_t capacity, std::uint64_t used) {
    StatusView status;
    status.pool.capacity_bytes = capacity;
    status.pool.used_bytes = used;
    return status;
}

ArenaView arena_of(const char* name, std::uint64_t bytes, std::uint64_t committed) {
    ArenaView arena;
    arena.name = name;
    arena.bytes = bytes;
    arena.bytes_committed = committed;
    return arena;
}

// "" when the job gets them.
std::string refusal_of(const SlurmOrder& order, const StatusView& status,
                       const std::vector<ArenaView>& arenas = {}) {
    const auto done = admit(order, status, arenas);
    return done.ok() ? "" : fabricshm::explanation_of(done.error());
}

std::string text_of(const std::vector<SlurmFile>& files, const std::string& name) {
    for (const SlurmFile& file : files) {
        if (file.name == name) return file.text;
    }
    return "none";
}

}  // namespace

TEST_SUITE("ctl.slurm_commands") {
    TEST_CASE("a job gets what is free, to the byte") {
        CHECK(refusal_of({7, 64 * kGiB}, status_of(64 * kGiB, 0)) == "");
        CHECK(refusal_of({7, 40 * kGiB}, status_of(64 * kGiB, 24 * kGiB)) == "");
        CHECK(refusal_of({7, 40 * kGiB + 1}, status_of(64 * kGiB, 24 * kGiB)) ==
              "40 GiB wanted for job 7, 40 GiB of the pool's 64 GiB are free");
        CHECK(refusal_of({7, 65 * kGiB}, status_of(64 * kGiB, 0)) ==
              "65 GiB wanted for job 7, 64 GiB of the pool's 64 GiB are free");
    }

    TEST_CASE(
        "jobs of Slurm count with all that they were admitted with, others with what they took") {
        // Each has taken 1 GiB of its 40.
        const auto status = status_of(64 * kGiB, 2 * kGiB);
        const std::vector<ArenaView> arenas{arena_of("slurm-6", 40 * kGiB, kGiB),
                                            arena_of("torch-1", 40 * kGiB, kGiB)};
        CHECK(refusal_of({7, 23 * kGiB}, status, arenas) == "");
        CHECK(refusal_of({7, 24 * kGiB}, status, arenas) ==
              "24 GiB wanted for job 7, 23 GiB of the pool's 64 GiB are free");
    }

    TEST_CASE("a later step of a job finds what its first one has, and no more") {
        const auto status = status_of(64 * kGiB, 64 * kGiB);
        const std::vector<ArenaView> arenas{arena_of("slurm-7", 64 * kGiB, 64 * kGiB)};
        CHECK(refusal_of({7, 64 * kGiB}, status, arenas) == "");
        CHECK(refusal_of({7, 65 * kGiB}, status, arenas) ==
              "65 GiB wanted for job 7, whose arena was made with 64 GiB");
        CHECK(refusal_of({70, kGiB}, status, arenas) != "");
    }

    TEST_CASE(
        "an arena of the job's name that another user made is named, and not taken for the job's") {
        auto arena = arena_of("slurm-7", 64 * kGiB, kGiB);
        arena.uid = 4242;
        CHECK(refusal_of({7, kGiB, 4242}, status_of(64 * kGiB, kGiB), {arena}) == "");
        CHECK(refusal_of({7, kGiB}, status_of(64 * kGiB, kGiB), {arena}) == "");
        const std::string refusal =
            refusal_of({7, kGiB, 4243}, status_of(64 * kGiB, kGiB), {arena});
        CHECK(refusal.starts_with("the arena slurm-7 belongs to user 4242, not to the job's"));
        CHECK(refusal_of({8, kGiB, 4243}, status_of(128 * kGiB, kGiB), {arena}) == "");
    }

    TEST_CASE("a pool that is over its capacity has nothing free") {
        CHECK(refusal_of({7, 1}, status_of(kGiB, 2 * kGiB)) ==
              "1 B wanted for job 7, 0 B of the pool's 1 GiB are free");
    }

    TEST_CASE("a daemon that drains takes no job") {
        auto status = status_of(64 * kGiB, 0);
        status.draining = true;
        CHECK(refusal_of({7, kGiB}, status).starts_with("fabricd is draining"));
        CHECK(admit({7, kGiB}, status, {}).error().code == Errc::kBusy);
    }

    TEST_CASE("the configuration has the whole units of the pool, in all three files") {
        const auto files = slurm_files({"n1", 48 * kGiB + 5, "/run/f/attach.sock",
                                        "/usr/bin/fabricctl", "/usr/lib/slurm/fabric.so"});
        REQUIRE(files.ok());
        CHECK(text_of(*files, "gres.conf") == "NodeName=n1 Name=fabric Count=48 Flags=CountOnly\n");
        const std::string slurm = text_of(*files, "slurm.conf");
        CHECK(slurm.find("GresTypes=fabric\n") != std::string::npos);
        CHECK(slurm.find("NodeName=n1 ... Gres=fabric:48\n") != std::string::npos);
        CHECK(slurm.find("Licenses=fabricpool:48\n") != std::string::npos);
        CHECK(text_of(*files, "plugstack.conf") ==
              "optional /usr/lib/slurm/fabric.so socket=/run/f/attach.sock "
              "fabricctl=/usr/bin/fabricctl\n");
    }

    TEST_CASE("a pool of less than a unit is refused, with the key that changes it") {
        const auto files = slurm_files({"n1", kGiB - 1, "/a", "/b", "/c"});
        REQUIRE_FALSE(files.ok());
        CHECK(files.error().code == Errc::kInvalid);
        CHECK(fabricshm::explanation_of(files.error()).find("pool.capacity") != std::string::npos);
    }
}
