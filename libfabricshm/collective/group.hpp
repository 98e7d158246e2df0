// Group: the ranks of a job that run collectives together, as one of them sees it.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/collective/call.hpp"
#include "libfabricshm/collective/meter.hpp"
#include "libfabricshm/collective/peer_read.hpp"
#include "libfabricshm/shm/visibility.hpp"

namespace fabricshm {

class Mailbox;
class PoisonGuard;
class WaitScreen;
class Worker;
struct GroupState;
struct Operation;
struct RankPlace;
struct Tuning;
struct Word;

/// Where a group lives: what the daemon said when the group was joined.
struct GroupPlace {
    std::byte* arena = nullptr;  // this process's mapping
    Bytes arena_bytes = 0;
    Bytes block_offset = 0;
    Bytes block_bytes = 0;
    int rank = 0;
    int world = 1;
    std::uint64_t group_id = 0;
    const Tuning* tuning = nullptr;  // of rank 0, for the whole group; nullptr: load_tuning()
    // Where this rank may run; nullptr: where its thread may, as the system says.
    const RankPlace* runs_at = nullptr;
    // How bytes cross between the ranks; the policy behind it outlives the group. nullptr: nothing
    // has to be done, the memory is coherent.
    VisibilityPolicy* visibility = nullptr;
    // Memory inside the arena for messages whose buffer is outside it; nullptr when there is none.
    std::function<std::byte*(Bytes)> allocate;
    std::function<void(std::byte*)> release;
    // Reports to the daemon that the page at this offset of the arena is lost; the region's id, or
    // 0 when there is none or no answer. nullptr: not reported.
    std::function<std::uint64_t(Bytes)> lost;
    // Where its operations are counted; nullptr: nowhere.
    std::shared_ptr<Meter> meter;
    // Where waits that have become long are shown; nullptr: nowhere.
    std::shared_ptr<WaitScreen> screen;
};

/// One started operation. Shared between its caller and the thread that runs it.
class Request {
  public:
    virtual ~Request() = default;

    /// True once the result is there. Never blocks.
    virtual bool done() const noexcept = 0;
    /// Waits for the result; the deadline is that of the call.
    virtual Result<void> wait() = 0;
    /// The rank that sent, after a receive completed; -1 otherwise.
    virtual int peer() const noexcept = 0;
    /// Calls `callback` once with the result, from the thread that completes it or at once.
    virtual void on_complete(std::function<void(Result<void>)> callback) = 0;
};

/// Runs collectives over the group block. One operation at a time: run() and start() are called in
/// the same order on all ranks. Threads: run(), start() from any thread, ordered by the caller;
/// everything else from any thread.
class Group {
  public:
    /// Takes the place of `rank` in the block and waits until all others have. kTimeout names no
    /// rank; kPeer a rank that died meanwhile; kCorrupt when the block is not what was promised.
    static Result<std::unique_ptr<Group>> attach(GroupPlace place, TimePoint deadline);

    /// Waits for the operations that were started (each is bounded by its own deadline).
    ~Group();
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    int rank() const noexcept;
    int world() const noexcept;
    std::uint64_t id() const noexcept;

    /// Runs `call` on this thread, after the operations that were started before.
    Result<void> run(const Call& call);

    /// From when on a wait of an operation is named in the log (long_wait.hpp), kLongWait at first.
    /// Before the first operation; for tests.
    void set_long_wait(Duration from) noexcept;

    /// A number for the last collective if repeat() can run it again, another one for each; else 0.
    std::uint64_t kept() const noexcept;

    /// As run() of the call that kept() stands for, on these buffers: for callers that see by
    /// themselves that a call is like the last. Costs about half as much. The timeout is above 0.
    Result<void> repeat(const std::byte* input, std::byte* output, Duration timeout);

    /// Runs `call` on the group's own thread (messages: on its message thread).
    Result<std::shared_ptr<Request>> start(Call call);

    /// Times a read of what `peer` wrote: of its slots, whatever is in them. Nothing where there is
    /// none to time: on emulated hosts, while operations run on the group's own thread, after a
    /// failure. Some 20 us; by the thread that runs the group's operations.
    std::optional<PeerRead> time_peer(int peer) noexcept;

    /// Ends a started receive that no message has come for: true, and its buffer is the caller's
    /// again. Else it ends by itself. Thread-safe.
    bool cancel(const Request& request);

    // For what the ranks do on words of their own in the arena (optim/); besides collectives, from
    // any one thread.

    /// Stores `value` with release and wakes the ranks that wait for it.
    void raise(const Word& word, std::uint64_t value) noexcept;

    /// Waits until `word`, which `peer` raises, is at least `value`. A failure is one of an
    /// operation: it breaks the group, and names the rank.
    Result<void> await(const Word& word, std::uint64_t value, int peer, TimePoint deadline);

    /// kPoisoned, and the group is broken, when this thread touched a lost page inside `guard`.
    Result<void> intact(const PoisonGuard& guard);

    /// Why the group can't go on, if so: it broke, or a rank died. One that has left, alive, is no
    /// reason: a rank that needs more of it notices. For waits outside operations; a look at each
    /// process, some microseconds. Thread-safe.
    Result<void> check() noexcept;

    /// Makes every wait of this process in the group end with `code` soon. Thread-safe.
    void abort(Errc code, int rank) noexcept;

    /// This rank takes part in nothing more: its operations are refused from now on, and all waits
    /// in the group end, with kPeer and its number. Thread-safe.
    void give_up() noexcept;

    /// Ends every operation of this rank and waits until none runs: afterwards it touches no buffer
    /// of the group. Breaks the group for all. Before a shrink; by the caller's own thread.
    void retire() noexcept;

    /// retire(), then waits until no peer stores into the outputs that this rank gave to the
    /// operation that failed, and none that reads its inputs can take them for a result. kTimeout
    /// names a peer that may still store (one that is stopped, say); call again.
    Result<void> quiesce(TimePoint deadline) noexcept;

  private:
    explicit Group(std::unique_ptr<GroupState> state);
    struct Kept;
    Result<void> run_now(const Call& call);
    Result<void> run_prepared(Operation& operation);
    void keep(const Operation& operation);
    Result<void> take_buffers(const std::byte* input, std::byte* output);
    Result<void> ended(const Result<void>& result);
    Result<Bytes> agree_on_largest(const Call& call);

    std::unique_ptr<GroupState> state_;
    std::unique_ptr<Kept> kept_;
    std::unique_ptr<Mailbox> mailbox_;
    std::unique_ptr<Worker> worker_;    // collectives, made at the first start()
    std::unique_ptr<Worker> messages_;  // drives sends and receives, likewise
};

}  // namespace fabricshm
