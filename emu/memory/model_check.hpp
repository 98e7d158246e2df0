// The model against itself: what a rank that uses the pool through a LinkMeter gets to see. Run at
// the daemon's start, and by bench_emulator for every preset.

#pragma once

#include <functional>
#include <memory>

#include "emu/memory/figures.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/shm/link_meter.hpp"

namespace emu {

using fabricshm::Bytes;

/// The real accesses that go on while the meter charges. Tests give one that moves a clock instead.
class PoolTouch {
  public:
    virtual ~PoolTouch() = default;
    virtual void read(Bytes bytes) noexcept = 0;
    virtual void write(Bytes bytes) noexcept = 0;
};

/// Makes the access of one of `ranks` ranks that work at the same time.
using TouchMaker = std::function<std::unique_ptr<PoolTouch>(int rank, int ranks)>;

struct CheckPlan {
    int ranks = 1;                       // on node 0; more than one: on threads of their own
    int latency_operations = 201;        // of one cache line each; their median counts
    Bytes bulk_bytes = fabricshm::kMiB;  // of one bulk operation
    std::uint64_t bulk_ns = 40'000'000;  // how long bulk operations are repeated, per direction
};

/// Figures as `links` show them to ranks in real time (slow motion not taken out): latency of an
/// operation of one cache line, bandwidth of bulk operations of all ranks together less their
/// latency. With `clock` and `maker` that depend on nothing else and one rank, so does the result.
Figures check_model(const fabricshm::LinkImage& links, const CheckPlan& plan,
                    const TouchMaker& maker, fabricshm::LinkClock& clock);

/// The same machine with nothing slowed: what remains is what this one needs by itself.
fabricshm::LinkImage unslowed(fabricshm::LinkImage links);

}  // namespace emu
