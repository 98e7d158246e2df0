// Where callbacks of futures run, and where the collectives that they call stand in the order.
//
// All ranks have to run the collectives of a group in one order, and the only order that they share
// is that of the program. A callback breaks it: it runs whenever its operation happens to end, and
// the thread that attached it goes on calling collectives meanwhile. So a collective gets a place
// that does not depend on time. The numbers of a place are read like those of chapters:
//
//     work = all_reduce(a)        1
//     future = work.get_future()  2      a future takes a number, too: callbacks are attached next
//     future.then(callback)              callback: all_reduce(u)  2.1, all_reduce(v)  2.2
//     all_reduce(b)               3      waits for the callback to end, since it could call more
//
// A callback that is attached after its operation has ended runs at once, on the thread that
// attaches it: all_reduce(u) gets 3 and b gets 4, which is the same order.

#pragma once

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace fabricshm::torch_backend {

class Executor;

using Place = c10::SmallVector<std::uint64_t, 4>;

/// The callbacks of one future. Made when the future is asked for, open while the callbacks run.
/// Except for `executor`, `place` and `outer`, which stay, everything is under the executor's
/// mutex.
struct CallbackScope {
    const Executor* executor;
    Place place;
    std::shared_ptr<CallbackScope> outer;  // in whose callback the future was asked for, or null
    std::size_t depth;                     // how many are outside of it
    std::uint64_t calls = 0;               // collectives and futures so far
    bool open = false;
    bool holds = true;                               // operations of later places wait
    std::chrono::steady_clock::time_point progress;  // when it began, or had an operation done

    /// True for what is called inside it, at any depth.
    bool contains(const Place& other) const {
        return other.size() > place.size() && std::equal(place.begin(), place.end(), other.begin());
    }
    /// True for operations that a program without callbacks would have called after it.
    bool precedes(const Place& other) const { return place < other && !contains(other); }
};

/// A program may chain callbacks for ever. Deeper than this they count as called outside.
inline constexpr std::size_t kDeepestScope = 32;

/// The scope whose callbacks this thread is running; null: none.
inline std::shared_ptr<CallbackScope>& scope_of_thread() {
    static thread_local std::shared_ptr<CallbackScope> scope;
    return scope;
}

/// Whether this thread is running callbacks, of a collective or of a message.
inline bool& thread_in_callback() {
    static thread_local bool inside = false;
    return inside;
}

}  // namespace fabricshm::torch_backend
