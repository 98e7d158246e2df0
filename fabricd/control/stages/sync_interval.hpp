// S311 to S313: how many steps from one synchronisation to the next? Pure.

#pragma once

#include <cstdint>
#include <optional>

namespace fabricd {

struct SyncWeights {
    double speed = 1;    // a
    double delay = 1;    // b
    double share = 0.1;  // rho: the part of the time that synchronising may take
    std::uint32_t interval_max = 16;
};

/// S312: kappa = v^a d^b: how many steps one synchronisation lasts. `steps_per_s` v is measured
/// without synchronising, `sync_s` d is what one synchronisation adds. Nothing when an input or the
/// result is unusable.
std::optional<double> update_speed(double steps_per_s, double sync_s, const SyncWeights& weights);

/// S313: H = clip(ceil(kappa / rho), 1, H_max). While the loss gets worse the interval halves at
/// once instead, down to 1: a job that drifts apart needs more barriers, whatever they cost.
std::uint32_t sync_interval(double kappa, std::uint32_t interval_now, bool loss_worsens,
                            const SyncWeights& weights) noexcept;

}  // namespace fabricd
