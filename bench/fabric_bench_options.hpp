// The command line of fabric-bench: one table of options for parsing, help and completions.

#pragma once

#include <fabricshm/fabricshm.h>

#include <cstdint>
#include <string>
#include <vector>

namespace bench {

/// What a row of the table is about. `bytes` is the larger of a rank's two buffers, as in
/// nccl-tests.
struct BenchKind {
    const char* name;
    fabricshm_kind value;
    bool in_place;   // has an in-place form that differs from the other
    int parts;       // 1: one rank's buffer is world parts of `count`, 0: it has `count`
    double traffic;  // busbw = algbw * (traffic + traffic_of_rest * (n - 1) / n)
    double traffic_of_rest;
};
extern const std::vector<BenchKind> kBenchKinds;
const BenchKind* find_kind(const std::string& name);
bool reduces(const BenchKind& kind);

/// Messages between each even rank and the odd one behind it.
inline bool is_ping_pong(fabricshm_kind kind) {
    return kind == FABRICSHM_SEND || kind == FABRICSHM_RECV;
}

/// As --help explains them.
struct BenchOptions {
    std::vector<const BenchKind*> kinds;
    bool all = false;                   // asked for as such: those that can be measured
    std::vector<std::string> left_out;  // of them, each with the reason
    std::uint64_t from = 8;
    std::uint64_t to = 128u << 20;
    std::uint64_t factor = 2;
    int ranks = 2;
    fabricshm_dtype dtype = FABRICSHM_F32;
    fabricshm_op op = FABRICSHM_SUM;
    fabricshm_algorithm algorithm = FABRICSHM_AUTO;
    std::string dtype_name = "f32";
    std::string op_name = "sum";
    std::uint64_t iterations = 0;  // 0: by size
    std::uint64_t warmup = 5;
    bool heap = false;  // buffers outside the arena
    bool check = false;
    bool json = false;
    std::string socket;

    std::uint64_t iterations_for(std::uint64_t bytes) const;
};

/// Either options, or a text to print (help, version, a completion), or an error.
struct Parsed {
    BenchOptions options;
    std::string text;
    std::string error;
};
Parsed parse(int argc, const char* const* argv);

/// "8", "64K", "128M", "2GiB" in bytes; 0 when it is no size.
std::uint64_t parse_size(const std::string& text);

}  // namespace bench
