// Action: what a decision changes, one type for each kind, with fields that say what they hold. The
// table of all kinds is made from the types: a new kind is a struct here and its place in `Action`,
// and what is left out elsewhere does not compile. docs/contributing.md.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// Numbers of the journal and of the admin API: none of them changes once released. A number that
/// this build does not know is that of a newer daemon.
enum class ActionKind : std::uint8_t {
    kUnknown = 0,
    kBatchShares = 1,
    kWorkUnits = 2,
    kSyncInterval = 3,
    kAlarm = 4,
    kDrain = 5,
    kPlacement = 6,
    kQuota = 7,
    kComputeShare = 8,
    kPoolQuota = 9,
    kReturn = 10,
    kCacheQuota = 11,
};

/// What carries an action out.
enum class ActionScope : std::uint8_t {
    kNone,  // nothing does: it is for people
    kJob,   // a directive to the ranks of one job
    kHost,  // an actuator of the host
};

/// The row of a kind. Texts are for people, for labels of metrics and for JSON, and last like the
/// numbers.
struct ActionInfo {
    ActionKind kind = ActionKind::kUnknown;
    ActionScope scope = ActionScope::kNone;
    const char* name = "";        // "batch shares"
    const char* permission = "";  // the word in control.actions that allows it; "": none does
    const char* unit = "";        // of its values; "" for parts of 1 and for places
    const char* value = "";       // what its only value is called; "": values have names or ranks
};

/// A value that belongs to a name: a vGPU, a device, a shard.
template <typename Value>
struct NamedChange {
    std::string name;
    Value before{}, after{};
    bool operator==(const NamedChange&) const = default;
};

/// S113: how much of the batch each rank gets.
struct BatchShares {
    static constexpr ActionInfo kInfo{ActionKind::kBatchShares, ActionScope::kJob, "batch shares",
                                      "shares"};
    std::vector<double> before, after;  // by rank; parts of 1
    bool operator==(const BatchShares&) const = default;
};

/// S223: how many tasks each rank gets.
struct WorkUnits {
    static constexpr ActionInfo kInfo{ActionKind::kWorkUnits, ActionScope::kJob, "work units",
                                      "units", "units"};
    std::vector<std::uint64_t> before, after;  // by rank
    bool operator==(const WorkUnits&) const = default;
};

/// S313: how often the ranks synchronise.
struct SyncInterval {
    static constexpr ActionInfo kInfo{
        ActionKind::kSyncInterval, ActionScope::kJob, "sync interval", "sync", "steps", "interval"};
    std::uint32_t before = 0, after = 0;  // steps from one to the next
    bool operator==(const SyncInterval&) const = default;
};

/// A rank stays slow, or its device reports a fault.
struct Alarm {
    static constexpr ActionInfo kInfo{ActionKind::kAlarm, ActionScope::kNone, "alarm"};
    std::int32_t rank = -1;
    bool operator==(const Alarm&) const = default;
};

/// A rank gets no work any more.
struct Drain {
    static constexpr ActionInfo kInfo{ActionKind::kDrain, ActionScope::kJob, "drain", "drain"};
    std::int32_t rank = -1;
    std::vector<double> before, after;  // shares of all ranks
    bool operator==(const Drain&) const = default;
};

/// S213: where shards are at home.
struct Placement {
    static constexpr ActionInfo kInfo{ActionKind::kPlacement, ActionScope::kHost, "placement",
                                      "placement"};
    std::vector<NamedChange<std::uint32_t>> changes;  // of shards; nodes of the window
    bool operator==(const Placement&) const = default;
};

// Memory and compute of a vGPU are two permissions: a quota grows where memory was refused, which
// harms no tenant; a compute share is time that one tenant has and another one loses.

/// S322: memory of vGPUs.
struct Quota {
    static constexpr ActionInfo kInfo{ActionKind::kQuota, ActionScope::kHost, "quota", "quota",
                                      "bytes"};
    std::vector<NamedChange<fabricshm::Bytes>> changes;  // in the order of carrying them out
    bool operator==(const Quota&) const = default;
};

/// S422: compute time of vGPUs.
struct ComputeShare {
    static constexpr ActionInfo kInfo{ActionKind::kComputeShare, ActionScope::kHost,
                                      "compute share", "compute", "%"};
    std::vector<NamedChange<std::uint32_t>> changes;  // per cent of the GPU
    bool operator==(const ComputeShare&) const = default;
};

/// S412: the pool's memory, among the devices of the device file.
struct PoolQuota {
    static constexpr ActionInfo kInfo{ActionKind::kPoolQuota, ActionScope::kHost, "pool quota",
                                      "pool", "bytes"};
    std::vector<NamedChange<fabricshm::Bytes>> changes;  // in the order of carrying them out
    bool operator==(const PoolQuota&) const = default;
};

/// A drained rank gets a small share again, as a trial.
struct Return {
    static constexpr ActionInfo kInfo{ActionKind::kReturn, ActionScope::kJob, "return", "drain"};
    std::int32_t rank = -1;
    std::vector<double> before, after;  // shares of all ranks
    bool operator==(const Return&) const = default;
};

/// How much of the pool caches may have.
struct CacheQuota {
    static constexpr ActionInfo kInfo{ActionKind::kCacheQuota, ActionScope::kHost, "cache quota",
                                      "cache", "bytes"};
    std::vector<NamedChange<fabricshm::Bytes>> changes;  // in the order of carrying them out
    bool operator==(const CacheQuota&) const = default;
};

/// An action of any kind as the journal and the admin API have it: lists of numbers, which only the
/// kind gives a meaning.
struct ActionFrame {
    ActionKind kind = ActionKind::kUnknown;
    std::int32_t rank = -1;
    std::vector<std::string> names;
    std::vector<double> before, after;
    bool operator==(const ActionFrame&) const = default;
};

/// What was read and is no action of this build: a kind of a newer daemon, or numbers that the kind
/// cannot have. It can be shown and written again, and is never carried out.
struct UnknownAction {
    static constexpr ActionInfo kInfo{ActionKind::kUnknown, ActionScope::kNone, "unknown"};
    ActionFrame frame;
    bool operator==(const UnknownAction&) const = default;
};

/// At the place of its number each, a new one at the end.
using Action = std::variant<UnknownAction, BatchShares, WorkUnits, SyncInterval, Alarm, Drain,
                            Placement, Quota, ComputeShare, PoolQuota, Return, CacheQuota>;

inline constexpr std::size_t kActionKinds = std::variant_size_v<Action>;  // 0 is none

namespace detail {

template <std::size_t... I>
constexpr std::array<ActionInfo, sizeof...(I)> rows_of(std::index_sequence<I...>) {
    return {std::variant_alternative_t<I, Action>::kInfo...};
}

}  // namespace detail

/// All kinds, by number.
inline constexpr std::array<ActionInfo, kActionKinds> kActions =
    detail::rows_of(std::make_index_sequence<kActionKinds>{});

static_assert(
    [] {
        for (std::size_t i = 0; i < kActionKinds; ++i) {
            if (kActions[i].kind != static_cast<ActionKind>(i)) return false;
        }
        return true;
    }(),
    "a kind of action is not at the place of its number");

/// That of kUnknown for a number that this build does not have.
constexpr const ActionInfo& info_of(ActionKind kind) noexcept {
    const auto at = static_cast<std::size_t>(kind);
    return kActions[at < kActionKinds ? at : 0];
}

/// The words that control.actions can have, in the order of the kinds. Two kinds may share one.
inline std::vector<std::string> action_permissions() {
    std::vector<std::string> words;
    for (const ActionInfo& info : kActions) {
        const std::string word = info.permission;
        const bool is_new = std::find(words.begin(), words.end(), word) == words.end();
        if (!word.empty() && is_new) words.push_back(word);
    }
    return words;
}

inline ActionKind kind_of(const Action& action) noexcept {
    return static_cast<ActionKind>(action.index());
}

/// Kinds with a value for each name, for each rank, and with a single one. What is common to all
/// kinds of a shape is written once, for the shape.
template <typename A>
concept NamedAction = requires(A action) {
    action.changes;
};
template <typename A>
concept RankedAction = requires(A action) {
    action.after.size();
};
template <typename A>
concept SingleAction = requires(A action) {
    action.after + 1;
};
template <typename A>
concept ActionOfRank = requires(A action) {
    action.rank;
};

/// `value` as a whole number, rounded down; as near as `Whole` comes where it is none of its
/// values. Every whole number below 2^53 is a double.
template <typename Whole>
Whole whole_of(double value) noexcept {
    constexpr double kMaxExact = 9007199254740992.0;
    constexpr double kMax = sizeof(Whole) < 8 ? static_cast<double>(Whole(-1)) : kMaxExact;
    // Written so that a NaN is 0.
    if (!(value > 0)) return 0;
    return value >= kMax ? static_cast<Whole>(kMax) : static_cast<Whole>(value);
}

/// For the journal and the admin API, and for what treats all kinds alike.
ActionFrame frame_of(const Action& action);

/// The other way. What frame_of() would not give back to the last bit is an UnknownAction: numbers
/// of one kind are never taken for those of another one.
Action action_of(ActionFrame frame);

/// The action that restores what was there before.
Action reversed(Action action);

/// What changes nothing is left out of kinds with names.
void drop_unchanged(Action& action);

/// The change at `at` is left out, of a kind with names.
void drop_change(Action& action, std::size_t at);

}  // namespace fabricd
