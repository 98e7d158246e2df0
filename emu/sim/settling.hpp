// Settling: how fast and how straight a policy comes to good shares after something changed.

#pragma once

#include <cstdint>
#include <vector>

#include "emu/sim/training.hpp"

namespace emu {

/// How one change was answered.
struct Settled {
    std::uint64_t step = 0;       // of the change
    double seconds = 0;           // of training until the shares were good and stayed so
    bool is_settled = false;      // before the next change
    std::uint64_t reversals = 0;  // of the rank that changed its direction most often
};

/// Watches a policy from outside, with knowledge that no policy has: true speeds. Shares are good
/// when a step without noise would take at most 1 / 0.9 of the best.
class SettlingWatch {
  public:
    SettlingWatch(const Workload& workload, const Trace& trace, Policy policy);

    /// The policy, watched. Once, for one run.
    Policy policy();

    /// Changes that made the shares bad and had `least_s` until the next one or the end.
    std::vector<Settled> changes(double least_s) const;

  private:
    struct Moment {
        double now_s = 0;
        double efficiency = 1;       // of the shares from here on
        bool is_change = false;      // the speeds are others than before
        std::vector<double> shares;  // only where they changed
    };
    void watch(const Snapshot& seen, const Decision& decision);

    Policy watched_;
    Policy oracle_;
    std::vector<double> speeds_;
    std::vector<double> shares_;
    std::vector<Moment> moments_;
    double now_s_ = 0;
};

}  // namespace emu
