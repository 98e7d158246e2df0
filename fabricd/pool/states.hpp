// The states of regions, groups and shards in the views of snapshot.hpp, and their names: one row
// each. JSON, tables and the admin API have the names; a name may be added, and never changes.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <type_traits>

namespace fabricd {

// ROW(enumerator, name). kUnknown is the first of each: the name of a newer daemon that this
// program doesn't know, or nothing said yet.
// clang-format off
#define FABRIC_REGION_STATES(ROW) \
    ROW(kUnknown, "unknown") \
    ROW(kLive, "live") \
    ROW(kQuarantined, "quarantined") \
    ROW(kBad, "bad")  /* the hardware lost a page of it */
#define FABRIC_GROUP_STATES(ROW) \
    ROW(kUnknown, "unknown") \
    ROW(kForming, "forming") \
    ROW(kComplete, "complete") \
    ROW(kBroken, "broken")
#define FABRIC_SHARD_STATES(ROW) \
    ROW(kUnknown, "unknown") \
    ROW(kHere, "here") \
    ROW(kFixed, "fixed")        /* its memory doesn't let it move */ \
    ROW(kMoving, "moving") \
    ROW(kDraining, "draining")  /* the old copy is still read */ \
    ROW(kRetired, "retired")
// clang-format on

#define FABRIC_ENUMERATOR(state, name) state,
enum class RegionState : std::uint8_t { FABRIC_REGION_STATES(FABRIC_ENUMERATOR) };
enum class GroupState : std::uint8_t { FABRIC_GROUP_STATES(FABRIC_ENUMERATOR) };
enum class ShardState : std::uint8_t { FABRIC_SHARD_STATES(FABRIC_ENUMERATOR) };
#undef FABRIC_ENUMERATOR

#define FABRIC_NAME(state, name) name,
template <typename>
inline constexpr std::nullptr_t kStateNames = nullptr;  // of what is no state
template <>
inline constexpr std::string_view kStateNames<RegionState>[] = {FABRIC_REGION_STATES(FABRIC_NAME)};
template <>
inline constexpr std::string_view kStateNames<GroupState>[] = {FABRIC_GROUP_STATES(FABRIC_NAME)};
template <>
inline constexpr std::string_view kStateNames<ShardState>[] = {FABRIC_SHARD_STATES(FABRIC_NAME)};
#undef FABRIC_NAME

template <typename T>
concept ViewState = !std::is_null_pointer_v<std::remove_cv_t<decltype(kStateNames<T>)>>;

/// Two copies of it take memory.
constexpr bool is_moving(ShardState state) noexcept {
    return state == ShardState::kMoving || state == ShardState::kDraining;
}

/// "quarantined". Static text.
template <ViewState State>
constexpr std::string_view name_of(State state) noexcept {
    const auto at = static_cast<std::size_t>(state);
    return kStateNames<State>[at < std::size(kStateNames<State>) ? at : 0];
}

/// The state of that name; kUnknown for every other text. Of what came over the admin API.
template <ViewState State>
constexpr State state_named(std::string_view name) noexcept {
    const auto* const found =
        std::find(std::begin(kStateNames<State>), std::end(kStateNames<State>), name);
    return found == std::end(kStateNames<State>)
               ? State::kUnknown
               : static_cast<State>(found - std::begin(kStateNames<State>));
}

}  // namespace fabricd
