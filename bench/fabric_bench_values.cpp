// Every value follows from the rank and the place alone, so that each rank knows what it has to get
// without asking another one. Sums of 1 to 3 over 80 ranks are exact in 16 bits, and of 256 ranks
// in all wider types; where they are not, a sum is rounded once, at its end, but for the ring,
// which rounds at every rank: in 8 bits its sums can be checked for 2 ranks alone.

#include "bench/fabric_bench_values.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "bench/element.hpp"
#include "libfabricshm/collective/kinds.hpp"

namespace bench {

using fabricshm::At;
using fabricshm::Extent;
using fabricshm::Flow;
using fabricshm::Kind;

namespace {

/// Element `index` of rank `rank`: 1 to 3, and not the same in parts that could change places.
int value(int rank, std::uint64_t index) {
    return 1 +
           static_cast<int>((static_cast<std::uint64_t>(rank) * 7 + index * 5 + index / 64) % 3);
}

/// Of ranks 0 to `ranks` - 1. Integers of 8 bits wrap, as the library's do: store() cuts the sum.
int reduced(fabricshm_op op, int ranks, std::uint64_t index) {
    int result = value(0, index);
    for (int rank = 1; rank < ranks; ++rank) {
        const int next = value(rank, index);
        result = op == FABRICSHM_MIN   ? std::min(result, next)
                 : op == FABRICSHM_MAX ? std::max(result, next)
                                       : result + next;
    }
    return result;
}

void store(void* to, fabricshm_dtype dtype, int number) {
    store_element(to, static_cast<kernels::DType>(dtype), number);
}

/// Element `index` of this rank's output.
int expected(const BenchKind& kind, std::uint64_t count, const BenchOptions& options, int rank,
             std::uint64_t index) {
    const auto& row = row_of(static_cast<Kind>(kind.value));
    // Where in the inputs this rank's part begins.
    const bool of_part = row.input == Extent::kAllParts;
    const auto own = of_part ? count * static_cast<std::uint64_t>(rank) : 0;
    if (row.flow == Flow::kPeer) return value(rank ^ 1, index);
    if (row.reduces) {
        const int below = row.output_at == At::kAboveFirst ? rank : rank + 1;
        return reduced(options.op, row.flow == Flow::kUp ? below : options.ranks, own + index);
    }
    if (row.flow == Flow::kFromRoot) return value(0, own + index);
    return value(static_cast<int>(index / count), own + index % count);
}

}  // namespace

std::uint64_t part_of(const BenchKind& kind, std::uint64_t bytes, const BenchOptions& options) {
    const std::uint64_t parts = kind.parts != 0 ? static_cast<std::uint64_t>(options.ranks) : 1;
    return std::max<std::uint64_t>(bytes / fabricshm_dtype_size(options.dtype) / parts, 1);
}

Shape shape_of(const BenchKind& kind, std::uint64_t count, int ranks, int rank) {
    const auto& row = row_of(static_cast<Kind>(kind.value));
    if (row.flow == Flow::kPeer) return {count, count, 0, 0};  // there and back
    const auto elements = [&](Extent extent, At at) -> std::uint64_t {
        const bool has = at == At::kEach || (rank == 0) == (at == At::kRoot);
        if (!has || extent == Extent::kNone) return 0;
        return extent == Extent::kAllParts ? count * static_cast<std::uint64_t>(ranks) : count;
    };
    const std::uint64_t own = count * static_cast<std::uint64_t>(rank);
    Shape shape{elements(row.input, row.input_at), elements(row.output, row.output_at), 0, 0};
    if (shape.output > shape.input && shape.input != 0) shape.own_input = own;
    if (shape.input > shape.output && shape.output != 0) shape.own_output = own;
    return shape;
}

std::uint64_t Shape::whole(const BenchOptions& options) const {
    return std::max(input, output) * fabricshm_dtype_size(options.dtype);
}

void Shape::place_in(fabricshm_call& call, bool in_place, const BenchOptions& options) const {
    if (!in_place) return;
    const std::uint64_t size = fabricshm_dtype_size(options.dtype);
    auto* block = static_cast<char*>(call.output);
    call.input = block + own_input * size;
    call.output = block + own_output * size;
}

void fill(const fabricshm_call& call, const Shape& shape, const BenchOptions& options, int rank) {
    const std::uint64_t size = fabricshm_dtype_size(options.dtype);
    auto* output = static_cast<char*>(call.output);
    // What an earlier run left there could be right by chance.
    if (call.output != call.input) std::memset(output, 0, shape.output * size);
    auto* input = static_cast<char*>(const_cast<void*>(call.input));
    for (std::uint64_t i = 0; i < shape.input; ++i) {
        store(input + i * size, options.dtype, value(rank, i));
    }
}

std::uint64_t count_wrong(const BenchKind& kind, const fabricshm_call& call, const Shape& shape,
                          const BenchOptions& options, int rank) {
    const std::uint64_t size = fabricshm_dtype_size(options.dtype);
    const auto* output = static_cast<const char*>(call.output);
    std::uint64_t wrong = 0;
    for (std::uint64_t i = 0; i < shape.output; ++i) {
        char right[16];
        store(right, options.dtype, expected(kind, call.count, options, rank, i));
        wrong += std::memcmp(output + i * size, right, size) != 0;
    }
    return wrong;
}

// ---- The table ----------------------------------------------------------------------------------

namespace {

/// In GB/s, 10^9 bytes, as nccl-tests has it.
struct Speed {
    double alg;
    double bus;
};

Speed speed_of(const BenchKind& kind, std::uint64_t bytes, int ranks, const Measured& measured) {
    if (measured.microseconds <= 0) return {0, 0};
    const double alg = static_cast<double>(bytes) / measured.microseconds / 1e3;  // GB/s
    const double rest = static_cast<double>(ranks - 1) / ranks;
    return {alg, alg * (kind.traffic + kind.traffic_of_rest * rest)};
}

void print_cells(const BenchKind& kind, std::uint64_t bytes, const BenchOptions& options,
                 const Measured& measured) {
    const Speed speed = speed_of(kind, bytes, options.ranks, measured);
    std::printf("  %10.2f %8.2f %8.2f ", measured.microseconds, speed.alg, speed.bus);
    if (options.check) {
        std::printf("%7llu", static_cast<unsigned long long>(measured.wrong));
    } else {
        std::printf("%7s", "n/a");
    }
}

void print_json(const char* name, const BenchKind& kind, std::uint64_t bytes,
                const BenchOptions& options, const Measured& measured) {
    const Speed speed = speed_of(kind, bytes, options.ranks, measured);
    std::printf(
        ",\"%s\":{\"microseconds\":%.3f,\"algbw_gb_s\":%.3f,\"busbw_gb_s\":%.3f,"
        "\"iterations\":%llu,\"wrong\":",
        name, measured.microseconds, speed.alg, speed.bus,
        static_cast<unsigned long long>(measured.iterations));
    if (options.check) {
        std::printf("%llu}", static_cast<unsigned long long>(measured.wrong));
    } else {
        std::printf("null}");
    }
}

}  // namespace

void Report::begin(const BenchKind& kind) {
    if (!prints_) return;
    if (options_.json) {
        if (first_) {
            std::printf(
                "{\"program\":\"fabric-bench\",\"version\":\"%s\",\"ranks\":%d,"
                "\"memory\":\"%s\",\"rows\":[",
                fabricshm_version(), options_.ranks, options_.heap ? "heap" : "arena");
        }
        return;
    }
    if (!first_) std::printf("\n");
    std::printf("# %s, %d ranks, buffers %s, fabricshm %s\n", kind.name, options_.ranks,
                options_.heap ? "outside the arena" : "in the arena", fabricshm_version());
    std::printf("# %10s %12s %8s %6s   %-36s%s\n", "", "", "", "", "out of place",
                kind.in_place ? "in place" : "");
    std::printf("# %10s %12s %8s %6s", "size", "count", "type", "redop");
    for (int i = 0; i < (kind.in_place ? 2 : 1); ++i) {
        std::printf("  %10s %8s %8s %7s", "time", "algbw", "busbw", "#wrong");
    }
    std::printf("\n# %10s %12s %8s %6s", "(B)", "(elements)", "", "");
    for (int i = 0; i < (kind.in_place ? 2 : 1); ++i) {
        std::printf("  %10s %8s %8s %7s", "(us)", "(GB/s)", "(GB/s)", "");
    }
    std::printf("\n");
    first_ = false;
}

void Report::row(const BenchKind& kind, std::uint64_t bytes, const Measured& out,
                 const Measured& in) {
    wrong_ += out.wrong + in.wrong;
    const std::uint64_t count = part_of(kind, bytes, options_);
    const std::uint64_t parts = kind.parts != 0 ? static_cast<std::uint64_t>(options_.ranks) : 1;
    const bool barrier = kind.value == FABRICSHM_BARRIER;
    // What was measured, where the size asked for is no whole number of elements.
    const std::uint64_t real = barrier ? 0 : count * parts * fabricshm_dtype_size(options_.dtype);
    if (!prints_) return;
    const bool reduces = bench::reduces(kind);
    const char* op = reduces ? options_.op_name.c_str() : "none";
    if (options_.json) {
        std::printf(
            "%s\n{\"collective\":\"%s\",\"bytes\":%llu,\"count\":%llu,\"dtype\":\"%s\","
            "\"op\":\"%s\"",
            first_ ? "" : ",", kind.name, static_cast<unsigned long long>(real),
            static_cast<unsigned long long>(barrier ? 0 : count), options_.dtype_name.c_str(), op);
        print_json("out_of_place", kind, real, options_, out);
        if (kind.in_place) print_json("in_place", kind, real, options_, in);
        std::printf("}");
        first_ = false;
        return;
    }
    std::printf("  %10llu %12llu %8s %6s", static_cast<unsigned long long>(real),
                static_cast<unsigned long long>(barrier ? 0 : count), options_.dtype_name.c_str(),
                op);
    print_cells(kind, real, options_, out);
    if (kind.in_place) print_cells(kind, real, options_, in);
    std::printf("\n");
    std::fflush(stdout);
}

bool Report::end() {
    if (prints_ && options_.json) {
        std::printf("],\"wrong\":");
        options_.check ? std::printf("%llu}\n", static_cast<unsigned long long>(wrong_))
                       : std::printf("null}\n");
    }
    if (prints_ && !options_.json && options_.check) {
        std::printf("# wrong elements: %llu\n", static_cast<unsigned long long>(wrong_));
    }
    return wrong_ == 0;
}

}  // namespace bench
