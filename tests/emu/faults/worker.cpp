// A job for tests of fault plans: `worker N OPERATIONS` starts N ranks, each a process with RANK in
// its environment, which allreduce OPERATIONS times. Every rank prints one line on how it went.

#include <fabricshm/fabricshm.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr std::uint64_t kCount = 64 * 1024;
constexpr std::int64_t kTimeoutMs = 30'000;

int report(int rank, const char* step) {
    std::printf("rank %d: %s: %s\n", rank, step, fabricshm_error_text());
    return 1;
}

// The sum of what the first `world` ranks of the group put in.
bool allreduce(fabricshm_group* group, float* buffer, int& code) {
    const auto rank = static_cast<float>(fabricshm_group_rank(group));
    const auto world = static_cast<float>(fabricshm_group_world(group));
    for (std::uint64_t i = 0; i < kCount; ++i) buffer[i] = rank + 1;
    code = fabricshm_allreduce(group, buffer, buffer, kCount, FABRICSHM_F32, FABRICSHM_SUM);
    if (code != FABRICSHM_OK) return true;
    for (std::uint64_t i = 0; i < kCount; ++i) {
        if (buffer[i] != world * (world + 1) / 2) return false;
    }
    return true;
}

// Opens the arena of the job; in a full pool again and again, when WORKER_INSISTS.
int open_arena(fabricshm_session* session, fabricshm_arena** arena) {
    for (;;) {
        const int code = fabricshm_arena_open(session, "job", 32 << 20, 0, arena);
        if (code != FABRICSHM_ENOMEM || std::getenv("WORKER_INSISTS") == nullptr) return code;
        ::usleep(2000);
    }
}

// What is not repeated by the library may have been done before the daemon died; here once more
// does no harm.
int make_region(fabricshm_arena* arena, fabricshm_region* region) {
    int code = FABRICSHM_EDAEMON;
    while (code == FABRICSHM_EDAEMON) {
        code = fabricshm_region_create(arena, kCount * sizeof(float), region);
    }
    return code;
}

int make_go(fabricshm_arena* arena, fabricshm_tensor* go) {
    const std::int64_t shape[] = {1};
    int code = FABRICSHM_EDAEMON;
    while (code == FABRICSHM_EDAEMON) {
        code = fabricshm_tensor_create(arena, "go", FABRICSHM_U8, 1, shape, go);
    }
    return code;
}

// After a failure: a region of its own again, and the group of the ranks that are left.
bool recover(fabricshm_arena* arena, fabricshm_group*& group, fabricshm_region& region) {
    fabricshm_group* smaller = nullptr;
    if (fabricshm_group_shrink(group, kTimeoutMs, &smaller) != FABRICSHM_OK) return false;
    fabricshm_group_leave(group);
    group = smaller;
    (void)fabricshm_region_free(arena, region.id);
    return make_region(arena, &region) == FABRICSHM_OK;
}

int be_rank(int rank, int world, int operations) {
    fabricshm_session* session = nullptr;
    fabricshm_arena* arena = nullptr;
    fabricshm_region region{};
    fabricshm_tensor go{};
    fabricshm_group* group = nullptr;
    if (fabricshm_session_open(nullptr, &session) != 0) return report(rank, "session");
    if (open_arena(session, &arena) != 0) return report(rank, "arena");
    // Rank 0 comes first, so that its region is at the start of the arena.
    if (rank != 0 && fabricshm_tensor_open(arena, "go", kTimeoutMs, &go) != 0) {
        return report(rank, "go");
    }
    if (make_region(arena, &region) != 0) return report(rank, "region");
    if (rank == 0 && make_go(arena, &go) != 0) return report(rank, "go");
    if (fabricshm_group_join(arena, "world", rank, world, kTimeoutMs, &group) != 0) {
        return report(rank, "join");
    }
    std::string seen = "no failure";
    for (int done = 0; done < operations; ++done) {
        int code = 0;
        if (!allreduce(group, static_cast<float*>(region.base), code)) {
            return report(rank, "a wrong sum");
        }
        if (code == 0) continue;
        seen = std::string(fabricshm_error_name(code)) + " rank " +
               std::to_string(fabricshm_error_rank()) + " region " +
               std::to_string(fabricshm_error_region());
        if (!recover(arena, group, region)) return report(rank, seen.c_str());
        done = -1;  // the survivors start together again
    }
    std::printf("rank %d: %s, world %d\n", rank, seen.c_str(), fabricshm_group_world(group));
    fabricshm_session_close(session);
    return 0;
}

int launch(char** argv, int world) {
    std::vector<pid_t> ranks;
    std::fflush(nullptr);
    for (int rank = 0; rank < world; ++rank) {
        const pid_t child = ::fork();
        if (child == 0) {
            ::setenv("RANK", std::to_string(rank).c_str(), 1);
            ::execv("/proc/self/exe", argv);
            ::_exit(127);
        }
        ranks.push_back(child);
    }
    int failures = 0;
    for (const pid_t rank : ranks) {
        int status = 0;
        ::waitpid(rank, &status, 0);
        failures += WIFEXITED(status) && WEXITSTATUS(status) != 0 ? 1 : 0;
    }
    return failures;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    const char* rank = std::getenv("RANK");
    const int world = std::atoi(argv[1]);
    return rank == nullptr ? launch(argv, world)
                           : be_rank(std::atoi(rank), world, std::atoi(argv[2]));
}
