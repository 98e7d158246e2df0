// The kinds of operations, one row each: what the checks, the plan, the engines, the meter, Python
// and the benchmarks ask about a kind. What a rank computes from the posts of the others stands in
// combine.cpp. docs/contributing.md has the steps for a new one.

#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace fabricshm {

/// Which ranks need the bytes of which others.
enum class Flow : std::uint8_t {
    kAll,       // each of every other
    kFromRoot,  // each of the root
    kToRoot,    // the root of every other
    kUp,        // each of the ranks below it
    kPeer,      // one rank of another: messages
};

/// Elements of a buffer.
enum class Extent : std::uint8_t { kNone, kCount, kPart, kAllParts };

/// Which ranks have the buffer.
enum class At : std::uint8_t { kEach, kRoot, kAboveFirst };

// The values are those of the C ABI (fabricshm.h); c_collective.cpp holds them against it.
// clang-format off
#define FABRIC_KINDS(ROW)                                                                                                                                                \
    /*  enumerator            in fabricshm.h              name               flow        reduces counts  parts   input       at      output      at            direct */ \
    ROW(kAllreduce,      0,   FABRICSHM_ALLREDUCE,        "allreduce",       kAll,       true,   false,  false,  kCount,     kEach,  kCount,     kEach,        true)     \
    ROW(kReduceScatter,  1,   FABRICSHM_REDUCE_SCATTER,   "reduce_scatter",  kAll,       true,   true,   true,   kAllParts,  kEach,  kPart,      kEach,        true)     \
    ROW(kAllGather,      2,   FABRICSHM_ALL_GATHER,       "all_gather",      kAll,       false,  true,   false,  kPart,      kEach,  kAllParts,  kEach,        true)     \
    ROW(kBroadcast,      3,   FABRICSHM_BROADCAST,        "broadcast",       kFromRoot,  false,  false,  false,  kCount,     kRoot,  kCount,     kEach,        true)     \
    ROW(kReduce,         4,   FABRICSHM_REDUCE,           "reduce",          kToRoot,    true,   false,  false,  kCount,     kEach,  kCount,     kRoot,        true)     \
    ROW(kGather,         5,   FABRICSHM_GATHER,           "gather",          kToRoot,    false,  true,   false,  kPart,      kEach,  kAllParts,  kRoot,        true)     \
    ROW(kScatter,        6,   FABRICSHM_SCATTER,          "scatter",         kFromRoot,  false,  true,   true,   kAllParts,  kRoot,  kPart,      kEach,        true)     \
    ROW(kAllToAll,       7,   FABRICSHM_ALL_TO_ALL,       "all_to_all",      kAll,       false,  true,   true,   kAllParts,  kEach,  kAllParts,  kEach,        true)     \
    ROW(kBarrier,        8,   FABRICSHM_BARRIER,          "barrier",         kAll,       false,  false,  false,  kNone,      kEach,  kNone,      kEach,        false)    \
    ROW(kSend,           9,   FABRICSHM_SEND,             "send",            kPeer,      false,  false,  false,  kCount,     kEach,  kNone,      kEach,        false)    \
    ROW(kRecv,           10,  FABRICSHM_RECV,             "recv",            kPeer,      false,  false,  false,  kNone,      kEach,  kCount,     kEach,        false)    \
    ROW(kScan,           11,  FABRICSHM_SCAN,             "scan",            kUp,        true,   false,  false,  kCount,     kEach,  kCount,     kEach,        true)     \
    ROW(kExscan,         12,  FABRICSHM_EXSCAN,           "exscan",          kUp,        true,   false,  false,  kCount,     kEach,  kCount,     kAboveFirst,  true)

#define FABRIC_ENUMERATOR(kind, value, ...) kind = value,
enum class Kind : std::uint8_t { FABRIC_KINDS(FABRIC_ENUMERATOR) };
#undef FABRIC_ENUMERATOR

struct KindRow {
    Kind kind;
    const char* name;
    Flow flow;
    bool reduces;       // takes an operation
    bool takes_counts;  // its parts may differ in size
    bool posts_parts;   // a rank shows one part for each rank, and not the same bytes to all
    Extent input;
    At input_at;
    Extent output;
    At output_at;
    bool direct;  // direct.cpp and pull.cpp serve it; else its bytes go through slots
};

#define FABRIC_ROW(kind, value, c, name, flow, reduces, counts, parts, input, input_at, output, output_at, direct) \
    {Kind::kind, name, Flow::flow, reduces, counts, parts, Extent::input, At::input_at, Extent::output, At::output_at, direct},
inline constexpr KindRow kKindRows[] = {FABRIC_KINDS(FABRIC_ROW)};
#undef FABRIC_ROW
// clang-format on
inline constexpr int kKindCount = static_cast<int>(std::size(kKindRows));
static_assert(
    [] {
        for (int i = 0; i < kKindCount; ++i) {
            if (static_cast<int>(kKindRows[i].kind) != i) return false;
        }
        return true;
    }(),
    "a row is not at its value");

/// Only of a kind that check_call() accepts.
constexpr const KindRow& row_of(Kind kind) noexcept {
    return kKindRows[static_cast<std::size_t>(kind)];
}

/// Kinds in which one rank gives to all others or takes from them.
constexpr bool has_root(Kind kind) noexcept {
    const Flow flow = row_of(kind).flow;
    return flow == Flow::kFromRoot || flow == Flow::kToRoot;
}

/// Kinds in which every rank hears of every other. In the others a rank may be done before all have
/// begun, and what they called is compared later.
constexpr bool all_hear_all(Kind kind) noexcept {
    return row_of(kind).flow == Flow::kAll;
}

/// Kinds with a buffer of one part for each rank.
constexpr bool has_parts(Kind kind) noexcept {
    return row_of(kind).input == Extent::kAllParts || row_of(kind).output == Extent::kAllParts;
}

/// Kinds in which each rank gives a part to each: with counts these are a rank's own.
constexpr bool exchanges_parts(Kind kind) noexcept {
    return row_of(kind).input == Extent::kAllParts && row_of(kind).output == Extent::kAllParts;
}

/// Kinds after which every rank has the same bytes: one output may serve all.
constexpr bool gives_one_result(Kind kind) noexcept {
    const KindRow& row = row_of(kind);
    const bool to_all = row.flow == Flow::kAll || row.flow == Flow::kFromRoot;
    return to_all && row.output != Extent::kNone && !row.posts_parts;
}

/// Reductions whose result all ranks get, not a part of it each.
constexpr bool reduces_for_all(Kind kind) noexcept {
    return gives_one_result(kind) && row_of(kind).reduces;
}

constexpr bool is_scan(Kind kind) noexcept {
    return row_of(kind).flow == Flow::kUp;
}

constexpr bool is_message(Kind kind) noexcept {
    return row_of(kind).flow == Flow::kPeer;
}

static_assert(reduces_for_all(Kind::kAllreduce) && exchanges_parts(Kind::kAllToAll));

}  // namespace fabricshm
