// Bytes, times and deadlines as types, and how people write them: "64MiB", "250ms".

#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "libfabricshm/base/result.hpp"

namespace fabricshm {

using Bytes = std::uint64_t;

using Clock = std::chrono::steady_clock;
using Duration = Clock::duration;
using TimePoint = Clock::time_point;

inline constexpr Bytes kKiB = 1024;
inline constexpr Bytes kMiB = 1024 * kKiB;
inline constexpr Bytes kGiB = 1024 * kMiB;

/// The place where shared words are kept apart: two lines, since the prefetcher fetches pairs.
inline constexpr Bytes kCacheLine = 64;
inline constexpr Bytes kCachePair = 128;

/// What the kernel maps at least, and every layout in shared memory is cut into.
inline constexpr Bytes kPageBytes = 4096;

/// A deadline long past, for a call that is to try once and not to wait.
inline constexpr TimePoint kNoWait{};

constexpr Bytes round_up(Bytes bytes, Bytes unit) noexcept {
    return (bytes + unit - 1) / unit * unit;
}

/// `now + length`, capped so that an "infinite" length does not overflow.
TimePoint deadline_after(TimePoint now, Duration length) noexcept;

/// The same from now on, for the data path: from a second on it reads the clock that the kernel's
/// timer advances, which takes a few nanoseconds instead of some twenty, and may be 10 ms late.
/// Never early.
TimePoint deadline_from_now(Duration length) noexcept;

/// `now` in nanoseconds of CLOCK_MONOTONIC, which steady_clock is here: the clock of shared pages.
inline std::int64_t monotonic_ns(TimePoint now = Clock::now()) noexcept {
    return now.time_since_epoch() / std::chrono::nanoseconds(1);
}

/// "4096", "64KiB", "1.5GiB" (also K, M, G, T, all powers of 1024). kInvalid otherwise.
Result<Bytes> parse_bytes(std::string_view text);

/// "250ms", "10s", "2min", "5us". kInvalid otherwise; a unit is required.
Result<Duration> parse_duration(std::string_view text);

/// "64 MiB": the largest unit that leaves at least 1, with at most one decimal.
std::string format_bytes(Bytes bytes);

/// "250 ms", likewise.
std::string format_duration(Duration length);

}  // namespace fabricshm
