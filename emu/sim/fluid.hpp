// Fluid: how fast transfers go that share links. Bytes flow like a liquid; each resource (a link's
// direction, a memory, a host's processors) has a capacity, and all transfers grow alike until a
// resource is full (max-min fair).
//
// A transfer is a bundle: an engine that reads a byte from each of N buffers in one pass goes at
// one speed, not at N. So one activity stands for all its flows, with a weight for each resource
// that it uses. N activities instead of N^2 flows, and exactly what the code does.
//
// Most bundles go to all homes of memory alike. What that costs is the same for every activity, but
// on the activity's own way to the root. It is written once, as the common weights of a spread, and
// an activity holds only how much of it there is and where it differs. So an activity costs memory
// and time for the depth of the tree, not for its width.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "emu/sim/event_queue.hpp"

namespace emu {

/// Weight of one unit of progress on one resource. Negative ones correct a spread.
struct Use {
    int resource = 0;
    double weight = 0;
};

inline constexpr int kSpreads = 2;  // reads and writes

/// What a unit of an activity's progress (a byte of its share, mostly) costs.
struct Load {
    std::vector<Use> uses;                                  // each resource at most once
    std::array<double, kSpreads> spread{};                  // how much of the common weights
    double most = std::numeric_limits<double>::infinity();  // units per second by itself
};

/// Resources and the activities that share them. Single-threaded, deterministic.
class Fluid {
  public:
    /// `capacity` in weight units per second; infinity for what never limits.
    int add_resource(double capacity);
    /// The weight of a unit of `spread` on a resource, for activities that do not correct it.
    void set_common(int spread, int resource, double weight);
    /// Loads are kept, activities refer to them. Costs memory only.
    int add_load(Load load);
    /// A number of units that several activities work off together (claims).
    int add_pot(double units);

    /// Starts `units` of progress for `job`. Takes effect at the current time.
    void start(int job, int load, double units);
    /// The same on what is left in a pot; ends, for all that work on it, when it is empty.
    void start_on_pot(int job, int load, int pot);

    /// When the first activity ends; infinity when none runs. Computes rates if something changed:
    /// a few passes over resources and activities.
    Seconds next_end();
    /// Lets the time pass; ended activities are given out by take_ended(). Not beyond next_end().
    void advance(Seconds to);
    /// Those that ended by now, in the order of starting.
    std::vector<int> take_ended();

    bool idle() const noexcept { return active_.empty(); }
    Seconds now() const noexcept { return now_; }
    /// Units that passed through a resource so far.
    double passed(int resource) const noexcept { return passed_[at(resource)]; }
    double capacity(int resource) const noexcept { return capacity_[at(resource)]; }
    std::size_t resources() const noexcept { return capacity_.size(); }
    /// Units per second of all activities that run, in the order of starting.
    std::vector<double> rates();

  private:
    struct Activity {
        int job = 0;
        int load = 0;
        int pot = -1;
        double left = 0;  // units; unused with a pot
        double rate = 0;
        bool frozen = false;
        bool over = false;
    };
    struct Pot {
        double left = 0;
        double rate = 0;
    };

    static std::size_t at(int index) noexcept { return static_cast<std::size_t>(index); }
    void solve();
    void weigh(std::vector<double>& weights) const;
    double highest_level(const std::vector<double>& weights, const std::vector<double>& used) const;
    int freeze(double level, const std::vector<double>& weights, std::vector<double>& used);
    bool is_held(const Load& load, const std::vector<char>& full,
                 const std::array<int, kSpreads>& full_common) const;
    void add_use(const Load& load, double rate, std::vector<double>& sums) const;
    double units_left(const Activity& activity) const noexcept;

    std::vector<double> capacity_;
    std::vector<double> passed_;
    std::vector<double> used_;  // weight units per second, at the current rates
    std::array<std::vector<double>, kSpreads> common_;
    std::vector<Load> loads_;
    std::vector<Pot> pots_;
    std::vector<Activity> active_;
    std::vector<int> ended_;
    Seconds now_ = 0;
    Seconds next_ = std::numeric_limits<Seconds>::infinity();
    bool changed_ = false;
};

}  // namespace emu
