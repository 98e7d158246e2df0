// The kinds of operations, one row each: what the checks, the plan and the engines ask about a
// kind. What a rank computes from the posts of the others stands in combine.cpp.

#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace fabricshm {

/// The values are those of the C ABI.
enum class Kind : std::uint8_t {
    kAllreduce = 0,
    kReduceScatter = 1,
    kAllGather = 2,
    kBroadcast = 3,
    kReduce = 4,
    kGather = 5,
    kScatter = 6,
    kAllToAll = 7,
    kBarrier = 8,
    kSend = 9,
    kRecv = 10,
    kScan = 11,
    kExscan = 12,
};

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

struct KindRow {
    const char* name;
    Flow flow;
    bool reduces;       // takes an operation
    bool takes_counts;  // its parts may differ in size
    bool posts_parts;   // a rank shows one part for each rank, and not the same bytes to all
    Extent input;
    At input_at;
    Extent output;
    At output_at;
};

// clang-format off
inline constexpr KindRow kKindRows[] = {
    // name            flow             reduces counts parts  input              at         output             at
    {"allreduce",      Flow::kAll,      true,  false, false, Extent::kCount,    At::kEach, Extent::kCount,    At::kEach},
    {"reduce_scatter", Flow::kAll,      true,  true,  true,  Extent::kAllParts, At::kEach, Extent::kPart,     At::kEach},
    {"all_gather",     Flow::kAll,      false, true,  false, Extent::kPart,     At::kEach, Extent::kAllParts, At::kEach},
    {"broadcast",      Flow::kFromRoot, false, false, false, Extent::kCount,    At::kRoot, Extent::kCount,    At::kEach},
    {"reduce",         Flow::kToRoot,   true,  false, false, Extent::kCount,    At::kEach, Extent::kCount,    At::kRoot},
    {"gather",         Flow::kToRoot,   false, true,  false, Extent::kPart,     At::kEach, Extent::kAllParts, At::kRoot},
    {"scatter",        Flow::kFromRoot, false, true,  true,  Extent::kAllParts, At::kRoot, Extent::kPart,     At::kEach},
    {"all_to_all",     Flow::kAll,      false, true,  true,  Extent::kAllParts, At::kEach, Extent::kAllParts, At::kEach},
    {"barrier",        Flow::kAll,      false, false, false, Extent::kNone,     At::kEach, Extent::kNone,     At::kEach},
    {"send",           Flow::kPeer,     false, false, false, Extent::kCount,    At::kEach, Extent::kNone,     At::kEach},
    {"recv",           Flow::kPeer,     false, false, false, Extent::kNone,     At::kEach, Extent::kCount,    At::kEach},
    {"scan",           Flow::kUp,       true,  false, false, Extent::kCount,    At::kEach, Extent::kCount,    At::kEach},
    {"exscan",         Flow::kUp,       true,  false, false, Extent::kCount,    At::kEach, Extent::kCount,    At::kAboveFirst},
};
// clang-format on
inline constexpr int kKindCount = static_cast<int>(std::size(kKindRows));
static_assert(kKindCount == static_cast<int>(Kind::kExscan) + 1);

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

constexpr bool is_scan(Kind kind) noexcept {
    return row_of(kind).flow == Flow::kUp;
}

constexpr bool is_message(Kind kind) noexcept {
    return row_of(kind).flow == Flow::kPeer;
}

}  // namespace fabricshm
