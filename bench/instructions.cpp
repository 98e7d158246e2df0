// How many instructions of its own does an operation cost a rank, waiting left out, by the number
// of ranks? The machine need not have as many cores: instructions are counted and not timed.
//
// bench/instructions.py starts this program twice: once for all ranks but one, which run as they
// are, and once, under callgrind, for the rank that is counted. Waiting is left out by order:
// before each operation that rank sleeps until all others have come and wait, so it finds their
// posts; and where it has to wait for them after all (the last barrier of an operation) the
// library's first yield sleeps as long, so that a wait is one failed poll and one that succeeds.
// The tuning given to all ranks lets them yield at once and, in time, never sleep on a futex.

#include <fabricshm/fabricshm.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "bench/driver.hpp"

namespace {

using bench::option;

// Long enough for 256 ranks on two cores to come to where they wait.
constexpr long kOthersComeNs = 40'000'000;
constexpr std::uint64_t kArenaBytes = std::uint64_t{512} << 20;
bool is_counted = false;

void sleep_ns(long nanoseconds) {
    const timespec length{0, nanoseconds};
    nanosleep(&length, nullptr);
}

void need(int result, const char* step) {
    if (result == FABRICSHM_OK) return;
    bench::die(std::string(step) + ": " + fabricshm_error_name(result) + ": " +
               fabricshm_error_text());
}

struct Job {
    std::string socket;
    std::string arena;
    int world = 0;
    fabricshm_kind kind = FABRICSHM_BARRIER;
    std::uint64_t bytes = 0;
    fabricshm_algorithm algorithm = FABRICSHM_AUTO;
    int rounds = 0;
};

Job job_of(int argc, char** argv) {
    Job job;
    job.socket = option(argc, argv, "--socket");
    job.arena = option(argc, argv, "--arena");
    job.world = std::stoi(option(argc, argv, "--world"));
    const std::string kind = option(argc, argv, "--kind");
    job.kind = kind == "allreduce"   ? FABRICSHM_ALLREDUCE
               : kind == "broadcast" ? FABRICSHM_BROADCAST
                                     : FABRICSHM_BARRIER;
    job.bytes = std::stoull(option(argc, argv, "--bytes", "0"));
    job.algorithm =
        option(argc, argv, "--direct", "no") == "yes" ? FABRICSHM_DIRECT : FABRICSHM_AUTO;
    job.rounds = std::stoi(option(argc, argv, "--rounds", "5"));
    return job;
}

}  // namespace

// What callgrind counts: everything between entering and leaving it. Its name is that.
extern "C" [[gnu::noinline]] int counted_operation(fabricshm_group* group,
                                                   const fabricshm_call* call) {
    const int result = fabricshm_run(group, call);
    // No tail call: the function must be left after the operation.
    asm volatile("" : : "r"(result) : "memory");
    return result;
}

// Found before the C library's by the library under test.
extern "C" int sched_yield() noexcept {
    if (!is_counted) return static_cast<int>(syscall(SYS_sched_yield));
    sleep_ns(kOthersComeNs);
    return 0;
}

namespace {

int run_rank(const Job& job, int rank) {
    fabricshm_session_options options{};
    options.struct_size = sizeof options;
    options.socket = job.socket.c_str();
    options.label = "bench";
    fabricshm_session* session = nullptr;
    fabricshm_arena* arena = nullptr;
    fabricshm_group* group = nullptr;
    need(fabricshm_session_open(&options, &session), "open the session");
    need(fabricshm_arena_open(session, job.arena.c_str(), kArenaBytes, 0, &arena),
         "open the arena");
    need(fabricshm_group_join(arena, "bench", rank, job.world, 120'000, &group), "join the group");
    const std::uint64_t bytes = job.bytes != 0 ? job.bytes : 64;
    // A region of its own: a heap takes its memory in pieces of a 64th of the arena.
    fabricshm_region buffers{};
    need(fabricshm_region_create(arena, 2 * bytes, &buffers), "make the buffers");
    void* input = buffers.base;
    void* output = static_cast<char*>(buffers.base) + bytes;
    std::memset(input, 0, 2 * bytes);
    fabricshm_call call = fabricshm_call_make(job.kind, FABRICSHM_F32, FABRICSHM_SUM, input, output,
                                              job.bytes / sizeof(float));
    if (job.kind == FABRICSHM_BARRIER) call.input = call.output = nullptr;
    if (job.kind == FABRICSHM_BROADCAST) call.input = output;
    call.algorithm = job.algorithm;
    // As many as a rank needs to have compared and tried all that it does not do every time.
    for (int round = 0; round < 3; ++round) need(fabricshm_run(group, &call), "warm up");
    for (int round = 0; round < job.rounds; ++round) {
        if (is_counted) sleep_ns(kOthersComeNs);
        need(counted_operation(group, &call), "run");
    }
    fabricshm_group_leave(group);
    fabricshm_session_close(session);
    return 0;
}

/// All ranks but one, each in a process of its own.
int run_others(const Job& job, int counted) {
    const pid_t parent = getpid();
    for (int rank = 0; rank < job.world; ++rank) {
        if (rank == counted) continue;
        const pid_t child = fork();
        if (child < 0) bench::die("cannot fork the ranks");
        if (child != 0) continue;
        // They wait for ranks that may be gone with the parent.
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        _exit(run_rank(job, rank));
    }
    int worst = 0;
    for (int status = 0; wait(&status) > 0;)
        if (status != 0) worst = 1;
    return worst;
}

}  // namespace

int main(int argc, char** argv) {
    const Job job = job_of(argc, argv);
    const int counted = std::stoi(option(argc, argv, "--counted"));
    is_counted = option(argc, argv, "--role") == "counted";
    return is_counted ? run_rank(job, counted) : run_others(job, counted);
}
