// Visibility: the one seam through which bytes cross from one rank to another. docs/visibility.md.
//
//   writer:  store the data   publish(data)   store the flag   publish(flag)
//   reader:  acquire(flag)    load the flag   acquire(data)    load the data
//
// On coherent memory both are nothing: the release store and the acquire load of the flag do the
// work, and a touch costs one branch that is never taken. Elsewhere a policy stands behind them:
// cache maintenance (flush_policy.hpp), emulated hosts that do not share caches, or a model of a
// device's latency. A change that adds shared bytes adds a touch, and a case that fails without it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricshm {

/// Every place in the code where bytes cross, by name: what a rank publishes, and what it acquires
/// (`...Read`). The rows of kTouches in visibility.cpp say the same in words.
enum class TouchPoint : std::uint8_t {
    kBlockFormat,
    kBlockRead,
    kIdentity,
    kIdentityRead,
    kTuning,
    kTuningRead,
    kClock,
    kClockRead,
    kCommand,
    kCommandRead,
    kBell,
    kBellRead,
    kFailure,
    kFailureRead,
    kDead,
    kDeadRead,
    kTiny,
    kTinyRead,
    kTree,
    kTreeRead,
    kSlot,
    kSlotRead,
    kInput,
    kInputRead,
    kResultClean,
    kShare,
    kShareRead,
    kDirectRead,
    kDirectWrite,
    kRingInputRead,
    kRingSum,
    kRingSumRead,
    kRingResult,
    kRingResultRead,
    kHostInputRead,
    kHostResult,
    kHostResultRead,
    kStagedPost,
    kStagedRead,
    kStagedResult,
    kStagedResultRead,
    kMessage,
    kMessageRead,
    kPiece,
    kPieceRead,
    kSent,
    kSentRead,
    kTaken,
    kTakenRead,
    kTensorHeader,
    kTensorHeaderRead,
    kElements,
    kElementsRead,
    kVersion,
    kVersionRead,
    kVersionBefore,
    kRetire,
    kRegionReturn,
    kStep,
    kStepRead,
    kGradientRead,
};
inline constexpr int kTouchCount = static_cast<int>(TouchPoint::kGradientRead) + 1;

/// Which memory a touch exists on: some are needed only where hosts do not share caches, others
/// belong to ways of working that exist only where they do.
enum class TouchScope : std::uint8_t { kBoth, kIncoherentOnly, kCoherentOnly };

struct TouchRow {
    TouchPoint touch;
    const char* name;  // "clock.publish"
    TouchScope scope;
};

/// All touches, in the order of the enumeration.
const TouchRow& row_of(TouchPoint touch) noexcept;
/// kInvalid for a name that no row has.
Result<TouchPoint> parse_touch(const char* name);

inline constexpr int kNobody = -1;

/// One touch as a policy sees it.
struct Access {
    TouchPoint touch;
    std::byte* data;  // as this process sees it
    Bytes offset;     // from the start of the arena's mapping
    Bytes bytes;
    int peer;  // the rank whose bytes these are or become, or kNobody
};

/// Moments of an operation that a policy may want to know of.
enum class PoolStep : std::uint8_t {
    kBegin,   // an operation starts
    kSignal,  // the next store announces what was published
    kEnd,     // an operation ends: its caller goes on
};

/// What stands behind publish and acquire. One object per mapping of an arena; called from every
/// thread that works on it, so implementations are thread-safe. May take time; must not fail.
class VisibilityPolicy {
  public:
    virtual ~VisibilityPolicy() = default;

    /// The bytes were written by this process. On return they are where others can get them, before
    /// anything that this thread stores afterwards.
    virtual void publish(const Access& access) noexcept = 0;

    /// The bytes are about to be read. What this thread loads afterwards is at least as new as what
    /// was published before the call. Bytes of the same cache lines that this process wrote and did
    /// not publish may become visible.
    virtual void acquire(const Access& access) noexcept = 0;

    /// True: the caches of all processes that map the arena see one memory, and an atomic addition
    /// holds among them. False: collectives use words with one writer each, and fixed shares. The
    /// same on all ranks of a group, and for as long as the policy lives.
    virtual bool coherent() const noexcept = 0;

    /// True: one kernel runs all of them, so that a futex wakes them and a membarrier() reaches
    /// them. False: they poll. Hosts whose hardware keeps their caches coherent (CXL 3, HDM-DB)
    /// have coherent memory and a kernel each. What is not coherent has never one kernel here.
    virtual bool one_kernel() const noexcept { return coherent(); }

    /// False: publish(), acquire(), use() and step() do nothing, and need not be called.
    virtual bool active() const noexcept { return true; }

    // For models of how long memory takes; others have no use for them.

    /// This process reads and writes so many bytes of its own in the pool: they cross to no other
    /// rank, but they take the same way.
    virtual void use(Bytes read, Bytes written) noexcept {
        (void)read;
        (void)written;
    }
    virtual void step(PoolStep step) noexcept { (void)step; }
    /// This process is `rank` of `world` in a group of the arena, the last one that it entered.
    virtual void take_place(int rank, int world) noexcept {
        (void)rank;
        (void)world;
    }
    /// The node of the emulated machine that `rank` of `world` runs on, if that is this process; 0
    /// for none. Memory of another node's own is out of its reach.
    virtual int node(int rank, int world) const noexcept {
        (void)rank;
        (void)world;
        return 0;
    }
    /// The emulated machine's name, a part of the name of its tuning's file; "" for none.
    virtual const char* machine() const noexcept { return ""; }
};

/// One process's seam to one arena: a value, cheap to copy. Borrows its policy, which outlives it.
class Visibility {
  public:
    /// Coherent memory: every touch is nothing.
    Visibility() = default;
    /// `policy` of nullptr: the same.
    Visibility(VisibilityPolicy* policy, std::byte* base, Bytes bytes) noexcept
        : policy_(policy != nullptr && policy->active() ? policy : nullptr),
          base_(base),
          bytes_(bytes),
          coherent_(policy == nullptr || policy->coherent()),
          one_kernel_(policy == nullptr || (policy->coherent() && policy->one_kernel())) {}

    bool coherent() const noexcept { return coherent_; }
    bool one_kernel() const noexcept { return one_kernel_; }
    /// False: touches are nothing, and need not even be computed.
    bool active() const noexcept { return __builtin_expect(policy_ != nullptr, false); }

    /// After the bytes were written, before the flag that announces them. Bytes outside the arena
    /// are no other's and are left alone.
    void publish(TouchPoint touch, const void* data, Bytes bytes,
                 int peer = kNobody) const noexcept {
        if (active()) tell(true, touch, data, bytes, peer);
    }
    /// After the flag that announces the bytes was seen, before they are read. A flag itself is
    /// acquired before every load of it.
    void acquire(TouchPoint touch, const void* data, Bytes bytes,
                 int peer = kNobody) const noexcept {
        if (active()) tell(false, touch, data, bytes, peer);
    }

    /// Own bytes in the pool that are read and written besides; see VisibilityPolicy::use().
    void use(Bytes read, Bytes written) const noexcept {
        if (active()) policy_->use(read, written);
    }
    void step(PoolStep step) const noexcept {
        if (active()) policy_->step(step);
    }

  private:
    void tell(bool publishes, TouchPoint touch, const void* data, Bytes bytes,
              int peer) const noexcept;

    VisibilityPolicy* policy_ = nullptr;
    std::byte* base_ = nullptr;
    Bytes bytes_ = 0;
    bool coherent_ = true;
    bool one_kernel_ = true;
};

/// Gives each mapping of an arena its policy. Installed by a layer above: emulated hosts and memory
/// models live over the library and are called by it through this.
class VisibilityProvider {
  public:
    virtual ~VisibilityProvider() = default;
    /// Called once for each mapping, before anything in it is read. `file` and `file_offset` are
    /// what is mapped at `base`; an implementation may put other memory there. nullptr: coherent.
    virtual Result<std::shared_ptr<VisibilityPolicy>> policy_for(const Fd& file, Bytes file_offset,
                                                                 std::byte* base, Bytes bytes) = 0;
};

/// For every arena that this process opens from now on; nullptr takes it back. Not owned. Call it
/// before the first session opens: mappings keep the policy that they began with.
void install_visibility(VisibilityProvider* provider) noexcept;
VisibilityProvider* installed_visibility() noexcept;

}  // namespace fabricshm
