// Fabric: a topology as resources, and what a rank's steps cost on them.

#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "emu/sim/fluid.hpp"
#include "emu/sim/topology.hpp"
#include "libfabricshm/collective/steps.hpp"

namespace emu {

/// Resources of one topology, for one run. Building costs a few passes over the nodes.
class Fabric {
  public:
    /// The topology is borrowed, and must have no error_message().
    explicit Fabric(const Topology& topology);

    Fluid& fluid() noexcept { return fluid_; }
    const Topology& topology() const noexcept { return topology_; }
    int world() const noexcept { return static_cast<int>(devices_.size()); }

    /// Says how much all steps of a plan touch, which decides what the caches hold. Before loads.
    void prepare(const fabricshm::StepPlan& plan, bool streaming);

    /// The load of a step whose touches all have the same size (they do, by step), per byte of it.
    int load_of(int rank, const fabricshm::Step& step);

    /// How long the first byte of a step takes: the longest of its reads, 0 when it reads nothing.
    Seconds first_byte(int rank, const fabricshm::Step& step) const;
    /// To read a word that another rank wrote, and to make one visible.
    Seconds line_read(int rank) const;
    Seconds word_store(int rank) const;
    /// What giving the core to the other ranks on it adds to a barrier.
    Seconds turn_taking(int rank) const { return turns_[at(rank)]; }
    /// The least time in which all ranks can read all words, by the bandwidth of where they lie.
    Seconds words_floor() const noexcept { return words_floor_; }

    /// Bytes that left the homes, arrived at the engines, and the other way round; for the check
    /// that nothing is lost on the way.
    double read_at_homes() const;
    double written_at_homes() const;

    int link_up(int node) const { return up_[at(node)]; }
    int link_down(int node) const { return down_[at(node)]; }
    int media(int node) const { return media_[at(node)]; }
    int device_of(int rank) const { return devices_[at(rank)]; }

  private:
    using Key = std::tuple<int, std::uint64_t>;

    static std::size_t at(int index) noexcept { return static_cast<std::size_t>(index); }
    void make_resources();
    void set_commons();
    void count_turns();
    int node_of(int rank, const fabricshm::Touch& touch) const;
    void add_touch(int rank, const fabricshm::Touch& touch, double share, std::vector<Use>& uses,
                   Load& load) const;
    void add_spread(int rank, double bytes, bool write, std::vector<Use>& uses, Load& load) const;
    void add_route(int rank, int home, double bytes, bool write, std::vector<Use>& uses) const;
    Seconds route_latency(int rank, int home) const;
    Seconds spread_latency(int rank) const;
    double engine_cost(int rank, const fabricshm::Touch& touch, double bytes) const;
    void note_places(
        int rank, const fabricshm::Step& step,
        std::map<std::tuple<fabricshm::Where, fabricshm::Whose, bool>, double>& places) const;
    double copies(int rank, const fabricshm::Touch& touch) const;

    const Topology& topology_;
    Fluid fluid_;
    std::vector<int> devices_;
    std::vector<int> homes_;
    std::vector<int> depth_;
    std::vector<int> up_, down_, inside_, media_;  // resources by node, -1: none
    std::vector<int> cores_;                       // likewise, of hosts
    std::vector<double> below_;                    // share of the buffers' bytes below a node
    std::vector<Seconds> turns_;                   // by rank
    double mean_latency_ = 0;  // of a spread read by a rank outside of all nodes
    Seconds words_floor_ = 0;
    double footprint_ = 0;       // bytes that a core touches in the operation
    double slot_footprint_ = 0;  // of them, those in slots, which stay in the caches
    bool streaming_ = false;
    std::map<Key, int> loads_;
};

}  // namespace emu
