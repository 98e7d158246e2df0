// Ranks for tests of collective/ without a daemon: threads or processes over one piece of memory.

#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "libfabricshm/collective/group.hpp"

namespace test_support {

/// What a rank sees: its group, the arena, and memory in the arena that it may give out.
struct RankContext {
    fabricshm::Group& group;
    int rank;
    int world;
    std::byte* arena;
    /// `bytes` of the arena, at the same offset in every rank that asks in the same order with the
    /// same `owner` (a rank, or `world` for what is shared). Owner -1: start again from nothing.
    std::function<std::byte*(int owner, fabricshm::Bytes bytes)> place;
};

/// An arena with a formatted group block, shared by what is forked from here.
class TestArena {
  public:
    TestArena(int world, fabricshm::Bytes bytes_per_rank);
    ~TestArena();
    TestArena(const TestArena&) = delete;
    TestArena& operator=(const TestArena&) = delete;

    fabricshm::GroupPlace place(int rank);
    RankContext context(fabricshm::Group& group);
    int world() const noexcept { return world_; }
    std::byte* base() const noexcept { return base_; }
    std::byte* block() const noexcept { return base_; }

  private:
    int world_;
    fabricshm::Bytes per_rank_;
    fabricshm::Bytes block_bytes_;
    fabricshm::Bytes bytes_;
    std::byte* base_;
};

/// Runs `body` once per rank and returns the number of ranks whose body returned false. A body says
/// why on stderr; it must not use CHECK.
using Body = std::function<bool(RankContext&)>;
int failures_in_threads(int world, fabricshm::Bytes bytes_per_rank, const Body& body);
int failures_in_processes(int world, fabricshm::Bytes bytes_per_rank, const Body& body);

/// Prints the line with the rank and returns false; for use in bodies.
bool complain(const RankContext& context, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

}  // namespace test_support
