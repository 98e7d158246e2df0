// A scan is made of reductions over blocks so small that a running result stays in the first-level
// cache: the result of a block up to rank r, reduced with the block of rank r + 1, and so on. Each
// step stores what it has, as the destination wants it, too: the same bits as reducing all sources
// at once, but for floats of 8 and 16 bits, which reduce() adds up in f32 and rounds once. Of those
// every destination is reduced from all of its sources, while their blocks are in the cache.

#include "kernels/scan.hpp"

#include <algorithm>
#include <cstdlib>

#include "kernels/copy.hpp"
#include "kernels/reduce.hpp"

namespace kernels {

namespace {

// Whole lines and whole elements of every type. Two running results, a source and a destination fit
// into 32 KiB.
constexpr std::size_t kRunningBytes = 4096;

class Block {
  public:
    Block(const ScanJob& job, std::size_t from, std::size_t count) noexcept
        : job_(job), from_(from * size_of(job.type)), count_(count) {}

    void run_stepwise() const noexcept {
        alignas(64) char running[2][kRunningBytes];
        const void* sum = source(0);
        if (!job_.exclusive) copy_to(destination(0), sum);
        for (int rank = 1; rank < job_.source_count; ++rank) {
            const bool last = rank + 1 == job_.source_count;
            char* next = running[rank % 2];
            const void* sources[] = {sum, source(rank)};
            if (job_.exclusive) {
                // In place its destination is its source: read first.
                void* destinations[] = {next};
                if (!last) reduce_block(sources, 2, destinations, 1, false);
                copy_to(destination(rank), sum);
            } else {
                void* destinations[] = {destination(rank), next};
                reduce_block(sources, 2, destinations, last ? 1 : 2, job_.streaming);
            }
            sum = next;
        }
    }

    // From the last destination to the first: in place, those before need the sources before only.
    void run_from_sources() const noexcept {
        const void* sources[kMaxSources];
        const int count = job_.source_count;
        for (int rank = 0; rank < count; ++rank) sources[rank] = source(rank);
        for (int rank = count - 1; rank >= (job_.exclusive ? 1 : 0); --rank) {
            const int own = job_.exclusive ? rank : rank + 1;
            void* destinations[] = {destination(rank)};
            if (own == 1) {
                copy_to(destinations[0], sources[0]);
            } else {
                reduce_block(sources, own, destinations, 1, job_.streaming);
            }
        }
    }

    static constexpr int kMaxSources = 1024;

  private:
    const void* source(int rank) const noexcept {
        return static_cast<const char*>(job_.sources[rank]) + from_;
    }
    void* destination(int rank) const noexcept {
        return static_cast<char*>(job_.destinations[rank]) + from_;
    }
    void copy_to(void* to, const void* from) const noexcept {
        if (to != from) copy(to, from, count_ * size_of(job_.type), job_.streaming);
    }
    // Of two destinations the second is a running result, which is read again at once.
    void reduce_block(const void* const* sources, int source_count, void* const* destinations,
                      int destination_count, bool streaming) const noexcept {
        ReduceJob job;
        job.type = job_.type;
        job.op = job_.op;
        job.sources = sources;
        job.source_count = source_count;
        job.destinations = destinations;
        job.destination_count = destination_count;
        job.count = count_;
        job.streaming = streaming;
        job.cached_destinations = destination_count - 1;
        reduce(job);
    }

    const ScanJob& job_;
    std::size_t from_;  // bytes
    std::size_t count_;
};

}  // namespace

void scan(const ScanJob& job) noexcept {
    if (job.op == ReduceOp::kAvg || !is_supported(job.type, job.op)) std::abort();
    if (job.source_count < 1 || job.source_count > Block::kMaxSources) std::abort();
    const std::size_t block = kRunningBytes / size_of(job.type);
    for (std::size_t from = 0; from < job.count; from += block) {
        const Block piece(job, from, std::min(block, job.count - from));
        rounds_once(job.type) ? piece.run_from_sources() : piece.run_stepwise();
    }
}

}  // namespace kernels
