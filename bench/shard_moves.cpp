// How fast does a shard move, against a copy of the same bytes, and how long does a reader pause?
//
//   bench_shard_moves SOCKET [MIB] [ROUNDS]      with a fabricd at SOCKET; prints one line of JSON
//
// Each round has three phases, in turn: memcpy of as many bytes in the same arena, a move, and
// nothing. A reader in a process of its own begins and ends reads all the time. Its longest pause
// in each phase is kept, because a machine that is doing something else pauses it as well; and the
// most processor time that one read took, which is what it waits inside the library.

#include <fabricshm/shard.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// A move that takes longer has failed: the shard stays where it is, and no reader would see it
// moved.
constexpr auto kMaxMove = std::chrono::seconds(120);

enum Phase : int { kCopy, kMove, kNothing, kPhases };

/// Between the reader and the rest.
struct Board {
    std::atomic<int> phase{kNothing};
    std::atomic<bool> over{false};
    std::atomic<bool> ready{false};
    std::atomic<std::int64_t> longest_ns{0};  // both since they were last set to 0
    std::atomic<std::int64_t> busiest_ns{0};
    std::atomic<std::uint64_t> reads{0};
};

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::int64_t processor_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

// Without a compare-and-swap: at the border of two phases one read may count for either.
void raise(std::atomic<std::int64_t>& longest, std::int64_t value) {
    if (value > longest.load(std::memory_order_relaxed)) {
        longest.store(value, std::memory_order_relaxed);
    }
}

// In the reader, too: its exit code is not 0 then, and the parent's result is an error.
[[noreturn]] void fail(const char* step) {
    std::fprintf(stderr, "bench_shard_moves: %s: %s\n", step, fabricshm_error_text());
    std::exit(1);
}

struct Job {
    Job(const char* socket, std::uint64_t bytes) {
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = socket;
        if (fabricshm_session_open(&options, &session) != 0) fail("open session");
        if (fabricshm_arena_open(session, "bench", bytes, 0, &arena) != 0) fail("open arena");
    }
    fabricshm_session* session = nullptr;
    fabricshm_arena* arena = nullptr;
};

// Reads one word of each read's place: the pause is in the calls, not in the bytes.
// In a process of its own, with a session of its own, as a reader of a job is.
void read_all_the_time(const char* socket, std::uint64_t bytes, Board& board) {
    const Job job(socket, bytes);
    fabricshm_shard* shard = nullptr;
    if (fabricshm_shard_open(job.arena, "s", 60'000, &shard) != 0) fail("open shard");
    board.ready.store(true);
    std::uint64_t sum = 0;
    while (!board.over.load(std::memory_order_relaxed)) {
        const auto begin = Clock::now();
        const std::int64_t busy = processor_ns();
        fabricshm_shard_view view{};
        if (fabricshm_shard_read(shard, 1, 60'000, &view) != 0) fail("read");
        sum += *static_cast<const volatile std::uint64_t*>(view.data);
        if (fabricshm_shard_release(shard, &view) != 0) fail("release");
        raise(board.busiest_ns, processor_ns() - busy);
        raise(board.longest_ns,
              std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
        board.reads.fetch_add(1, std::memory_order_relaxed);
    }
    if (sum == 0) std::fprintf(stderr, "bench_shard_moves: nothing was read\n");
    fabricshm_shard_close(shard);
    fabricshm_session_close(job.session);
}

// From the order to the first read that begins at the new place. It takes `least` seconds, and
// no reader polls before: on two processors polling takes the mover's, and a memcpy has no poll
// next to it.
double move_once(fabricshm_shard* shard, double least) {
    fabricshm_shard_view view{};
    if (fabricshm_shard_read(shard, 1, 60'000, &view) != 0) fail("read");
    const void* before = view.data;
    fabricshm_shard_release(shard, &view);
    int code = FABRICSHM_EBUSY;
    // The old copy of the last move may still be counted as read.
    // Begins again with each attempt: the time that is wanted is that of the move which was taken.
    auto begin = Clock::now();
    const auto deadline = begin + kMaxMove;
    while (code == FABRICSHM_EBUSY && Clock::now() < deadline) {
        begin = Clock::now();
        code = fabricshm_shard_move(shard, "here", 0);
    }
    if (code != 0) fail("move");
    ::usleep(static_cast<unsigned>(least * 1e6));
    for (;;) {
        if (fabricshm_shard_read(shard, 1, 60'000, &view) != 0) fail("read");
        const bool moved = view.data != before;
        fabricshm_shard_release(shard, &view);
        if (moved) return seconds_since(begin);
        if (Clock::now() > begin + kMaxMove) {
            std::fprintf(stderr, "bench_shard_moves: a move does not end\n");
            std::exit(1);
        }
        // Looking costs a read each time; the time is accurate to a fifth of a millisecond.
        ::usleep(200);
    }
}

double copy_once(void* to, const void* from, std::uint64_t bytes) {
    const auto begin = Clock::now();
    std::memcpy(to, from, bytes);
    return seconds_since(begin);
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

struct Figures {
    std::vector<double> copy, move, ratio;
    std::array<std::vector<double>, kPhases> pause_us, busy_us;
};

// Also what pauses there were in a stretch of nothing that is as long as the move was.
void measure_round(fabricshm_shard* shard, Board& board, const fabricshm_region& from,
                   const fabricshm_region& to, std::uint64_t bytes, Figures& figures) {
    const auto end_phase = [&](Phase phase) {
        const auto taken = [](std::atomic<std::int64_t>& longest) {
            return static_cast<double>(longest.exchange(0)) / 1000.0;
        };
        figures.pause_us[phase].push_back(taken(board.longest_ns));
        figures.busy_us[phase].push_back(taken(board.busiest_ns));
    };
    board.longest_ns.store(0);
    board.busiest_ns.store(0);
    const double copied = copy_once(to.base, from.base, bytes);
    // What the reader met while memory was busy anyway, to compare the move's pauses with.
    end_phase(kCopy);
    const double moved = move_once(shard, copied * 0.9);
    end_phase(kMove);
    ::usleep(static_cast<unsigned>(moved * 1e6));
    end_phase(kNothing);
    figures.copy.push_back(static_cast<double>(bytes) / copied / 1e9);
    figures.move.push_back(static_cast<double>(bytes) / moved / 1e9);
    // By round: both of a round met the same machine.
    figures.ratio.push_back(copied / moved);
}

void print_pauses(const char* name, const Figures& figures, Phase phase) {
    const auto worst = [](const std::vector<double>& all) {
        return *std::max_element(all.begin(), all.end());
    };
    std::printf("%s\"%s\": {\"median\": %.1f, \"worst\": %.1f, \"processor_worst\": %.1f}",
                phase == kCopy ? "" : ", ", name, median(figures.pause_us[phase]),
                worst(figures.pause_us[phase]), worst(figures.busy_us[phase]));
}

void print(const Figures& figures, std::uint64_t bytes, const Board& board) {
    std::printf(
        "{\"bytes\": %llu, \"rounds\": %zu, \"memcpy_gb_s\": %.2f, \"move_gb_s\": %.2f, "
        "\"share_of_memcpy\": %.3f, \"reads\": %llu, \"pause_us\": {",
        static_cast<unsigned long long>(bytes), figures.copy.size(), median(figures.copy),
        median(figures.move), median(figures.ratio),
        static_cast<unsigned long long>(board.reads.load()));
    print_pauses("copying", figures, kCopy);
    print_pauses("moving", figures, kMove);
    print_pauses("idle", figures, kNothing);
    std::printf("}}\n");
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: bench_shard_moves SOCKET [MIB] [ROUNDS]\n");
        return 2;
    }
    const std::uint64_t bytes = std::strtoull(argc > 2 ? argv[2] : "256", nullptr, 10) << 20;
    const int rounds = std::atoi(argc > 3 ? argv[3] : "15");
    // The shard in two places at a time, two regions to copy between, and room for headers.
    const std::uint64_t arena_bytes = 4 * bytes + (std::uint64_t{16} << 20);
    void* memory =
        ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (bytes == 0 || rounds < 1 || memory == MAP_FAILED) return 2;
    Board& board = *new (memory) Board;

    // Before the parent's session: a session does not survive a fork.
    const pid_t reader = ::fork();
    if (reader == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        read_all_the_time(argv[1], arena_bytes, board);
        return 0;
    }
    const Job job(argv[1], arena_bytes);
    fabricshm_shard* shard = nullptr;
    const auto count = static_cast<std::int64_t>(bytes);
    if (fabricshm_shard_create(job.arena, "s", FABRICSHM_U8, 1, &count, &shard) != 0) fail("shard");
    fabricshm_shard_view view{};
    if (fabricshm_shard_write(shard, &view) != 0) fail("write");
    std::memset(view.data, 1, bytes);
    if (fabricshm_shard_publish(shard, nullptr) != 0) fail("publish");
    fabricshm_region from{}, to{};
    if (fabricshm_region_create(job.arena, bytes, &from) != 0) fail("region");
    if (fabricshm_region_create(job.arena, bytes, &to) != 0) fail("region");
    std::memset(from.base, 2, bytes);
    std::memset(to.base, 3, bytes);
    while (!board.ready.load()) ::usleep(1000);
    Figures warm;
    measure_round(shard, board, from, to, bytes, warm);  // pages that were never touched
    Figures figures;
    for (int i = 0; i < rounds; ++i) measure_round(shard, board, from, to, bytes, figures);
    board.over.store(true);
    int status = 0;
    ::waitpid(reader, &status, 0);
    print(figures, bytes, board);
    fabricshm_shard_close(shard);
    fabricshm_session_close(job.session);
    return status == 0 ? 0 : 1;
}
