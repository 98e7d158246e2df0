// The share of the GPU's time: a bucket of tokens that all processes of a vGPU draw from, and the
// rule by which its rate follows what the GPU was seen to be busy. Time is a parameter.
//
// A token pays for a unit of work (a thread of a kernel). How long a unit keeps the GPU busy
// differs from kernel to kernel and changes while a program runs, so the rate is not computed but
// found: raised by half of what is missing while the measured share is below the wanted one, cut in
// proportion above. Both are factors of the rate, since its scale is not known: a unit may be a
// nanosecond of a GPU or a millisecond.

#pragma once

#include <cstdint>
#include <optional>

#include "libfabricshm/shm/usage_ledger.hpp"

namespace fabricshm::cuda {

/// Length of a window of measurement. NVML samples a few times per second: a shorter one would
/// mostly find none, and a longer one make a changed kernel wait longer for its rate.
inline constexpr std::int64_t kWindowNs = 200'000'000;
/// And where nothing is held back: only the account of the GPU's time depends on it.
inline constexpr std::int64_t kFreeWindowNs = 1'000'000'000;

struct ShareWindow {
    double wanted = 1.0;             // of the GPU's time
    double busy = 0.0;               // measured, of this vGPU's processes
    std::uint64_t spent_per_ms = 0;  // work that was let through
    bool held_up = false;            // some launch had to wait: the rate was what limited it
};

/// The rate for the next window, in units per millisecond. 0: not limited yet, nothing is known of
/// the work. Never 0 once it was above.
std::uint64_t next_rate(std::uint64_t rate, const ShareWindow& window) noexcept;

/// Draws `work` from the bucket, or says how many nanoseconds to wait before the next try. What is
/// larger than the bucket is let through when there is any token and pays afterwards.
std::optional<std::int64_t> try_spend(ShareBucket& bucket, std::uint64_t work,
                                      std::int64_t now_ns) noexcept;

/// Draws it whatever there is.
void spend_anyway(ShareBucket& bucket, std::uint64_t work) noexcept;

/// Returns what try_spend() or spend_anyway() took: the driver refused the launch.
void unspend(ShareBucket& bucket, std::uint64_t work) noexcept;

/// Whether the window is over; true for one caller only, which then measures, and begins the next
/// one of `length_ns`.
bool take_window(ShareBucket& bucket, std::int64_t now_ns,
                 std::int64_t length_ns = kWindowNs) noexcept;

/// Sets the rate after a window of `length_ns` in which the GPU was `busy`.
void end_window(ShareBucket& bucket, double wanted, double busy, std::int64_t length_ns) noexcept;

}  // namespace fabricshm::cuda
