// Ranks for tests of collective/ without a daemon: threads or processes over one piece of memory.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "emu/hosts/incoherent_hosts.hpp"
#include "libfabricshm/collective/group.hpp"
#include "libfabricshm/collective/tuning.hpp"
#include "libfabricshm/shm/flush_policy.hpp"

namespace test_support {

class PoolMemory;

/// What a rank sees: its group, the arena, and memory in the arena that it may give out.
struct RankContext {
    fabricshm::Group& group;
    int rank;
    int world;
    std::byte* arena;
    /// `bytes` of the arena, at the same offset in every rank that asks in the same order with the
    /// same `owner` (a rank, or `world` for what is shared). Owner -1: start again from nothing.
    std::function<std::byte*(int owner, fabricshm::Bytes bytes)> place;
    /// The seam to the arena, for what tests share outside the group.
    fabricshm::Visibility view;
    /// As the daemon does when the process of a rank ends.
    std::function<void(int rank)> mark_dead;
};

/// On how many emulated hosts ranks are spread that share no caches, and how those behave. 0: all
/// ranks are on one real host. The daemon has an emulated host of its own.
struct Hosts {
    int count = 0;
    emu::HostBehaviour behaviour{};
    /// With a count of 0: hosts whose caches are kept coherent, with a kernel each.
    bool coherent = false;

    /// FABRIC_TEST_HOSTS=4 or 4:strict (eager, random, coherent), as fabric_test_on_hosts() sets
    /// it.
    static Hosts of_environment();
};

/// An arena with a formatted group block, shared by what is forked from here.
class TestArena {
  public:
    TestArena(int world, fabricshm::Bytes bytes_per_rank,
              const Hosts& hosts = Hosts::of_environment());
    ~TestArena();
    TestArena(const TestArena&) = delete;
    TestArena& operator=(const TestArena&) = delete;

    fabricshm::GroupPlace place(int rank);
    /// What rank 0 gives the group, instead of what this machine has.
    void set_tuning(const fabricshm::Tuning& tuning) { tuning_ = tuning; }
    RankContext context(fabricshm::Group& group);
    int world() const noexcept { return world_; }
    std::byte* base() const noexcept { return base_; }
    std::byte* block() const noexcept { return base_; }
    /// What `rank` sees of the arena; base() where all are on one host.
    std::byte* base_of(int rank) const noexcept;
    /// As the daemon does when the rank's process ends.
    void mark_dead(int rank) noexcept;
    /// How often ranks of this process, or the daemon, passed the touch. 0 on one host.
    std::uint64_t passed(fabricshm::TouchPoint touch) const noexcept;

  private:
    int host_of(int rank) const noexcept {
        return hosts_ != nullptr ? rank % (hosts_->count() - 1) : 0;
    }
    fabricshm::VisibilityPolicy* policy_of(int host) const noexcept;
    fabricshm::Visibility daemon_view() const noexcept;
    std::byte* daemon_base() const noexcept;

    int world_;
    fabricshm::Bytes per_rank_;
    fabricshm::Bytes block_bytes_;
    fabricshm::Bytes bytes_;
    std::optional<fabricshm::Tuning> tuning_;
    std::unique_ptr<PoolMemory> pool_;  // empty: anonymous memory
    std::byte* base_;
    std::unique_ptr<emu::IncoherentHosts> hosts_;  // the last is the daemon's
    std::unique_ptr<fabricshm::CoherentHosts> coherent_hosts_;
};

/// Runs `body` once per rank and returns the number of ranks whose body returned false. A body says
/// why on stderr; it must not use CHECK.
using Body = std::function<bool(RankContext&)>;
int failures_in_threads(int world, fabricshm::Bytes bytes_per_rank, const Body& body);
int failures_in_processes(int world, fabricshm::Bytes bytes_per_rank, const Body& body);

/// The same over an arena that the caller made, by threads that give up attaching at `deadline`.
int failures_in_threads(TestArena& arena, fabricshm::TimePoint deadline, const Body& body);

/// Prints the line with the rank and returns false; for use in bodies.
bool report(const RankContext& context, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

}  // namespace test_support
