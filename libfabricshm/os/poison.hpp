// Pages that the hardware lost. A load or store that touches one is a SIGBUS; inside a guard it
// becomes an answer instead. docs/adr has why it is done with a handler, and why only there.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/stripes.hpp"

namespace fabricshm {

/// Bytes of a mapping, from its start.
struct LostRange {
    Bytes offset = 0;
    Bytes bytes = 0;
};

namespace detail {
// How often this thread touched a lost page inside a guard, and how many guards it is inside of.
// Initial-exec: the handler must not be the first to touch them, since making the thread-local
// memory of a loaded library may allocate.
extern __thread std::uint32_t t_lost_pages __attribute__((tls_model("initial-exec")));
extern __thread std::uint32_t t_guards __attribute__((tls_model("initial-exec")));
extern std::atomic<std::uint32_t> g_losses;
void put_back() noexcept;
}  // namespace detail

/// Whether the process knows of any lost page. Relaxed: a thread that has to know of one is
/// notified by other means and checks afterwards.
inline bool any_lost() noexcept {
    return __builtin_expect(detail::g_losses.load(std::memory_order_relaxed) != 0, false);
}

/// Says that [data, data + bytes) is a mapping whose lost pages are dealt with, and keeps the list
/// of those that are known. The first one installs the handler of SIGBUS, in front of whatever was
/// there; FABRIC_SIGBUS=off in the environment leaves the signal alone. Thread-safe.
class PoisonWatch {
  public:
    struct Source {
        std::shared_ptr<const Fd> file;  // what the mapping shows; nullptr: it is not put back
        std::uint64_t offset = 0;
        Bytes page_bytes = 4096;  // the smallest piece of the mapping that can be replaced
        bool writable = true;
        // Where it shows several files: those after `file`, and how its offsets lie on them.
        std::shared_ptr<const std::vector<Fd>> others = nullptr;
        Stripes stripes = {};
        bool is_inherited = true;  // MapOptions::is_inherited of the mapping
    };

    /// Nothing is watched when the table (256 mappings) is full; that is logged.
    PoisonWatch(std::byte* data, Bytes bytes, Source source);
    ~PoisonWatch();

    /// For the handlers of fork(): the first before it; in a child, which does not have the mapping
    /// at `data`, the second, and nothing is put there any more; the third on both sides.
    static void lock_for_fork() noexcept;
    static void forget_in_child(const std::byte* data) noexcept;
    static void unlock_after_fork() noexcept;
    PoisonWatch(const PoisonWatch&) = delete;
    PoisonWatch& operator=(const PoisonWatch&) = delete;

    /// Notes a loss that was learnt of elsewhere (from the daemon). What does not fit into the list
    /// of 32 makes the whole mapping count as lost.
    void learn(LostRange range) noexcept;

    /// What is known to be lost, in no order.
    std::vector<LostRange> lost() const;

  private:
    int slot_ = -1;
};

/// While one lives on a thread, a lost page of a watched mapping that the thread touches is
/// replaced by an empty one, and counted; the access goes on and reads zeros, or its writes are
/// lost. The holder of the guard has to ask afterwards, before what was computed is used. The end
/// of the outermost guard puts the mapping back as it was, so that no later access takes the empty
/// page for data. Costs two increments of a thread-local word. Not for signal handlers.
class PoisonGuard {
  public:
    PoisonGuard() noexcept : before_(detail::t_lost_pages) {
        ++detail::t_guards;
        // The handler runs on this thread: only the compiler could move an access out of the guard.
        std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    ~PoisonGuard() {
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if (--detail::t_guards == 0 && hit()) detail::put_back();
    }
    PoisonGuard(const PoisonGuard&) = delete;
    PoisonGuard& operator=(const PoisonGuard&) = delete;

    /// True once this thread touched a lost page since the guard was made.
    bool hit() const noexcept {
        // The count changes behind the compiler's back: it must not use a value from before.
        std::atomic_signal_fence(std::memory_order_seq_cst);
        return detail::t_lost_pages != before_;
    }

    /// Where that was, the last time; nullptr before.
    static const std::byte* place() noexcept;

  private:
    std::uint32_t before_;
};

/// The first byte of a page in [data, data + bytes) that is known to be lost; nullptr when there is
/// none.
const std::byte* find_lost(const void* data, Bytes bytes) noexcept;

/// Makes the page of `place`, in a watched mapping, one that is lost: with MADV_HWPOISON where the
/// kernel has it and the caller may, else with a mapping of nothing in this process, which raises
/// the same signal. For fault plans and tests. True: it was the real thing.
bool lose_page(std::byte* place) noexcept;

}  // namespace fabricshm
