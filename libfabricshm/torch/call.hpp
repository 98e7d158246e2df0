// Calls into the C ABI whose failures become torch errors.

#pragma once

#include <ATen/ATen.h>
#include <fabricshm/fabricshm.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "libfabricshm/torch/outstanding.hpp"

namespace fabricshm::torch_backend {

class JobArena;

/// Raises a RuntimeError that says what failed, why, and which rank is to blame, unless `code` is
/// FABRICSHM_OK. To be called on the thread that got `code`. `difference` ends the text.
void check(int code, const std::string& what, const std::string& difference = {});

/// A joined group. Left when the last operation that uses it is gone; where a transfer is still
/// waiting for its peer, behind the caller's back. Collectives of it are run one after another by
/// the Executor; sends and receives concurrently with them.
class Communicator {
  public:
    /// Waits until all `size` ranks are there. Raises otherwise. Through `store` ranks that called
    /// different operations find out what they called.
    /// With `several_hosts` the ranks' arenas may be those of several daemons, and the ranks find
    /// each other through `store`, too.
    Communicator(std::shared_ptr<JobArena> arena, const std::string& name, int rank, int size,
                 std::chrono::milliseconds timeout, c10::intrusive_ptr<c10d::Store> store,
                 bool several_hosts = false);
    ~Communicator();
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    /// Runs one operation to its end; `what` is for the error text. Blocks; the deadline is in the
    /// call. On any thread, one at a time.
    void run(const fabricshm_call& call, const char* what) const;

    /// Ends the group for all ranks: what waits, on this one and on others for it, and what is
    /// called later. `why`, a static text, is what it fails with here. Thread-safe; waits for
    /// nothing.
    void abort(const char* why) noexcept;
    /// Leaves the group. No operation runs, and those that follow raise. Once; the destructor does
    /// it otherwise.
    void leave();
    /// What is under way, and whether this rank has ended the group.
    const std::shared_ptr<Outstanding>& outstanding() const { return outstanding_; }

    /// Starts a send or receive. `in_flight` counts it until its owner drops the reference.
    /// Never blocks. The caller ends the request by fabricshm_wait(); raises when nothing was
    /// started.
    fabricshm_request* start(const fabricshm_call& call, const char* what,
                             std::shared_ptr<void>& in_flight) const;

    /// Ends a step of training of this group's ranks; `info` without the group. Never waits.
    void step(fabricshm_step_info info) const;
    /// What fabricd asks of this group. Nothing while there are no directives, and when they are
    /// about another group of the session. Never waits.
    std::optional<fabricshm_directive> directives() const;

    /// The group's first operation of CUDA tensors, in the order of run(): puts the arena into the
    /// address space of this rank's device and joins the ranks there. Raises on all ranks when one
    /// of them can't. `timeout` is that of every operation on the device.
    void join_cuda(int device, std::chrono::milliseconds timeout);
    /// For operations on streams, after join_cuda().
    fabricshm_group* handle() const { return group_.load(std::memory_order_relaxed); }
    /// This is the copy that a fork has made.
    bool is_of_parent() const;

    int rank() const { return rank_; }
    int size() const { return size_; }

  private:
    // What is reported of a call to a rank that called another one.
    struct Called {
        const char* what = "";
        fabricshm_kind kind = FABRICSHM_BARRIER;
        fabricshm_dtype dtype = FABRICSHM_U8;
        fabricshm_op op = FABRICSHM_SUM;
        int root = 0;
        std::uint64_t count = 0;

        std::string text() const;
    };
    // The library may notice a difference some small operations later.
    static constexpr std::uint64_t kRemembered = 128;

    void join_hosts(std::chrono::milliseconds timeout);
    void agree_on_cuda(int device, std::uint64_t& stage_bytes, std::chrono::milliseconds timeout);
    std::string difference(int peer) const;

    // Lives as long as the group does.
    std::shared_ptr<JobArena> arena_;
    std::mutex leaving_;                            // of abort() and leave(), which may meet
    std::atomic<fabricshm_group*> group_{nullptr};  // null: it was left. Relaxed: see leave()
    int rank_;
    int size_;
    int owner_pid_;  // a forked child must not leave its parent's group
    c10::intrusive_ptr<c10d::Store> store_;
    std::string name_;
    mutable std::uint64_t calls_ = 0;  // of run(), which is called by one thread at a time
    mutable std::array<Called, kRemembered> called_;
    bool has_device_ = false;      // the arena is attached for this group
    mutable std::mutex starting_;  // the library wants starts of one group in an order
    std::shared_ptr<Outstanding> outstanding_ = std::make_shared<Outstanding>();
};

/// A call with everything at its default. `timeout` as c10d gives it: negative means unset.
fabricshm_call make_call(fabricshm_kind kind, fabricshm_dtype dtype, std::uint64_t count,
                         std::chrono::milliseconds timeout);

}  // namespace fabricshm::torch_backend
