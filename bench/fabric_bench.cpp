// fabric-bench: how fast are the collectives here? Ranks are processes of this program; the table
// is that of nccl-tests. Built on the library alone, so that it runs wherever that is installed.
//
// A row: buffers are made and, with --check, filled and compared once; then come a few operations
// to warm up, a barrier, the operations that are timed, and a barrier. The time of the slowest rank
// counts. Peers are not measured here (bench/compare.py does that, in turns, with statistics): this
// answers what a user asks of a machine, in the minute in which it is asked.

#include <fabricshm/fabricshm.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/fabric_bench_options.hpp"
#include "bench/fabric_bench_ranks.hpp"
#include "bench/fabric_bench_values.hpp"

namespace {

using bench::BenchOptions;
using bench::Measured;

constexpr int kUsage = 2;

void need(int code, const char* step) {
    if (code == FABRICSHM_OK) return;
    bench::fail_rank(std::string(step) + ": " + fabricshm_error_name(code) + ": " +
                     fabricshm_error_text());
}

/// One rank: its handles, its two buffers, and the measuring loop.
class Rank {
  public:
    Rank(const BenchOptions& options, const std::string& job, int rank) : options_(options) {
        fabricshm_session_options session{};
        session.struct_size = sizeof session;
        session.socket = options.socket.empty() ? nullptr : options.socket.c_str();
        session.label = "fabric-bench";
        need(fabricshm_session_open(&session, &session_), "open the session");
        const auto world = static_cast<std::uint64_t>(options.ranks);
        // Both buffers of all ranks may hold the whole vector; and room for staging.
        const std::uint64_t bytes = 2 * world * (options.to + (4u << 20)) + (64u << 20);
        need(fabricshm_arena_open(session_, job.c_str(), bytes, 0, &arena_), "open the arena");
        need(fabricshm_group_join(arena_, "bench", rank, options.ranks, 60'000, &group_),
             "join the group");
    }
    ~Rank() {
        fabricshm_group_leave(group_);
        fabricshm_session_close(session_);
    }
    Rank(const Rank&) = delete;
    Rank& operator=(const Rank&) = delete;

    Measured measure(const bench::BenchKind& kind, std::uint64_t bytes, bool in_place) {
        const std::uint64_t count = bench::part_of(kind, bytes, options_);
        const bench::Shape shape = bench::shape_of(kind, count, options_.ranks, rank());
        void* output = take(shape.whole(options_));
        void* input = in_place ? output : take(shape.whole(options_));
        fabricshm_call call =
            fabricshm_call_make(kind.value, options_.dtype, options_.op, input, output, count);
        call.algorithm = options_.algorithm;
        shape.place_in(call, in_place, options_);
        Measured measured;
        if (options_.check) measured.wrong = check(kind, call, shape);
        measured.iterations = options_.iterations_for(bytes);
        measured.microseconds = time(call, measured.iterations);
        need(fabricshm_barrier(group_), "barrier");
        if (!in_place) give_back(input);
        give_back(output);
        return measured;
    }

    int rank() const { return fabricshm_group_rank(group_); }

  private:
    // On the heap the library copies through staging: what a program pays that does not use the
    // arena.
    void* take(std::uint64_t bytes) {
        void* block = options_.heap
                          ? std::aligned_alloc(4096, (bytes + 4096) & ~std::uint64_t{4095})
                          : fabricshm_alloc(arena_, std::max<std::uint64_t>(bytes, 1));
        if (block == nullptr) {
            bench::fail_rank(std::string("memory for buffers: ") + fabricshm_error_text());
        }
        std::memset(block, 0, bytes);  // first touch by the rank that uses it
        return block;
    }
    void give_back(void* block) {
        options_.heap ? std::free(block) : fabricshm_free(arena_, block);
    }

    void run(fabricshm_call& call) {
        if (!bench::is_ping_pong(call.kind)) return need(fabricshm_run(group_, &call), "run");
        // A message there and back: a run of this kind is two.
        call.peer = rank() ^ 1;
        call.kind = rank() % 2 == 0 ? FABRICSHM_SEND : FABRICSHM_RECV;
        need(fabricshm_run(group_, &call), "first half of the ping-pong");
        call.kind = rank() % 2 == 0 ? FABRICSHM_RECV : FABRICSHM_SEND;
        need(fabricshm_run(group_, &call), "second half of the ping-pong");
    }

    /// Elements of all ranks that are not what they have to be.
    std::uint64_t check(const bench::BenchKind& kind, fabricshm_call call,
                        const bench::Shape& shape) {
        bench::fill(call, shape, options_, rank());
        need(fabricshm_barrier(group_), "barrier");
        run(call);
        std::uint64_t wrong = bench::count_wrong(kind, call, shape, options_, rank());
        need(fabricshm_allreduce(group_, &wrong, &wrong, 1, FABRICSHM_U64, FABRICSHM_SUM), "count");
        return wrong;
    }

    /// Of one operation, of the slowest rank.
    double time(fabricshm_call call, std::uint64_t iterations) {
        const std::uint64_t warmup = std::min<std::uint64_t>(options_.warmup, iterations);
        for (std::uint64_t i = 0; i < warmup; ++i) run(call);
        need(fabricshm_barrier(group_), "barrier");
        const auto start = std::chrono::steady_clock::now();
        for (std::uint64_t i = 0; i < iterations; ++i) run(call);
        // A root that runs ahead waits here for the ranks that have not received all of it.
        need(fabricshm_barrier(group_), "barrier");
        const std::chrono::duration<double, std::micro> spent =
            std::chrono::steady_clock::now() - start;
        double each = spent.count() / static_cast<double>(iterations);
        need(fabricshm_allreduce(group_, &each, &each, 1, FABRICSHM_F64, FABRICSHM_MAX), "compare");
        return bench::is_ping_pong(call.kind) ? each / 2 : each;
    }

    const BenchOptions& options_;
    fabricshm_session* session_ = nullptr;
    fabricshm_arena* arena_ = nullptr;
    fabricshm_group* group_ = nullptr;
};

int run_rank(const BenchOptions& options, const std::string& job, int number) {
    Rank rank(options, job, number);
    bench::Report report(options, number == 0);
    for (const bench::BenchKind* kind : options.kinds) {
        report.begin(*kind);
        for (std::uint64_t bytes = options.from; bytes <= options.to;) {
            const Measured out = rank.measure(*kind, bytes, false);
            Measured in;
            if (kind->in_place) in = rank.measure(*kind, bytes, true);
            report.row(*kind, bytes, out, in);
            // A barrier has no bytes: one row. And the next size would overflow.
            if (kind->value == FABRICSHM_BARRIER || bytes > options.to / options.factor) break;
            bytes *= options.factor;
        }
    }
    return report.end() ? 0 : bench::kRankFailed;
}

}  // namespace

int main(int argc, char** argv) {
    const bench::Parsed parsed = bench::parse(argc, argv);
    if (!parsed.error.empty()) {
        std::fprintf(stderr, "fabric-bench: %s\n", parsed.error.c_str());
        return kUsage;
    }
    if (!parsed.text.empty()) {
        std::fputs(parsed.text.c_str(), stdout);
        return 0;
    }
    for (const std::string& what : parsed.options.left_out) {
        std::fprintf(stderr, "fabric-bench: left out: %s\n", what.c_str());
    }
    const std::string job = "fabric-bench-" + std::to_string(::getpid());
    return bench::run_ranks(parsed.options.ranks,
                            [&](int rank) { return run_rank(parsed.options, job, rank); });
}
