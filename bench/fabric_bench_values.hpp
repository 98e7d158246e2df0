// What fabric-bench puts into its buffers, how it knows that a result is right, and its table.

#pragma once

#include <fabricshm/fabricshm.h>

#include <cstdint>
#include <string>

#include "bench/fabric_bench_options.hpp"

namespace bench {

/// Elements that a call of `count` takes and gives on one rank.
struct Shape {
    std::uint64_t input = 0;
    std::uint64_t output = 0;
    std::uint64_t own_input = 0;  // where, in place, the rank's part begins in the larger buffer
    std::uint64_t own_output = 0;

    /// Bytes of the larger one.
    std::uint64_t whole(const BenchOptions& options) const;
    /// In place: the smaller buffer is the rank's own part of the larger one.
    void place_in(fabricshm_call& call, bool in_place, const BenchOptions& options) const;
};
Shape shape_of(const BenchKind& kind, std::uint64_t count, int ranks, int rank);

/// `count` of a call whose larger buffer has about so many bytes; at least 1.
std::uint64_t part_of(const BenchKind& kind, std::uint64_t bytes, const BenchOptions& options);

/// Small whole numbers, which every type holds, and sums of many of them, too.
void fill(const fabricshm_call& call, const Shape& shape, const BenchOptions& options, int rank);
std::uint64_t count_wrong(const BenchKind& kind, const fabricshm_call& call, const Shape& shape,
                          const BenchOptions& options, int rank);

/// Of one row, out of place or in place.
struct Measured {
    double microseconds = 0;  // of one operation; of a ping-pong, of one of its messages
    std::uint64_t iterations = 0;
    std::uint64_t wrong = 0;  // elements, of all ranks together
};

/// The table, or JSON, on standard output; by rank 0 alone.
class Report {
  public:
    Report(const BenchOptions& options, bool prints) : options_(options), prints_(prints) {}

    void begin(const BenchKind& kind);
    void row(const BenchKind& kind, std::uint64_t bytes, const Measured& out, const Measured& in);
    /// False when some element was wrong.
    bool end();

  private:
    const BenchOptions& options_;
    bool prints_;
    bool first_ = true;
    std::uint64_t wrong_ = 0;
};

}  // namespace bench
