// S321 to S323: how much memory should each vGPU of a device have? Pure.

#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace fabricd {

/// All in bytes but where said otherwise.
struct VgpuReading {
    double quota = 0;   // V
    double used = 0;    // live use: what a new quota never goes below
    double denied = 0;  // refused in the last windows
    double speed = 0;   // C over C_std: what this node does against the standard; no unit
    double delay = 0;   // delta: delay of the node against the median, no unit (0: none)
    double busy = 0;    // l: share of the device that others keep busy, 0 to 1
};

struct VgpuWeights {
    double filled = 0.85;             // part of a quota that is in use when it is just right
    double speed = 0.5;               // gamma
    double delay = 0.25;              // lambda_d
    double busy = 0.25;               // lambda_l
    double step = 0.25;               // largest change of one quota at once
    double unit = 2.0 * 1024 * 1024;  // a quota may always change by so much: 25 % of 0 is 0
};

/// V' = V E (C / C_std)^gamma / ((1 + lambda_d delta)(1 + lambda_l l)), E = (used + denied) /
/// (0.85 V); then at most one step away from V and never below live use: what each vGPU would have
/// for itself. What is promised and what there is, is for lending.hpp. The vGPUs of one GPU are
/// alike: the daemon leaves C / C_std at 1, delta and l at 0. Nothing when an input is unusable.
std::optional<std::vector<double>> vgpu_demands(std::span<const VgpuReading> readings,
                                                const VgpuWeights& weights);

}  // namespace fabricd
