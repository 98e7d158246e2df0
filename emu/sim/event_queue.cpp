#include "emu/sim/event_queue.hpp"

#include <algorithm>
#include <limits>

#include "libfabricshm/base/check.hpp"

namespace emu {

namespace {

// A heap gives the largest first; the order of scheduling settles ties, or two runs of the same
// input could differ.
bool later(const Event& a, const Event& b) noexcept {
    return a.at != b.at ? a.at > b.at : a.order > b.order;
}

}  // namespace

void EventQueue::schedule(Seconds at, int kind, int who) {
    // Also refuses NaN, which would get lost in the heap's order.
    FABRIC_CHECK(at >= now_);
    heap_.push_back({at, scheduled_++, kind, who});
    std::push_heap(heap_.begin(), heap_.end(), later);
}

Seconds EventQueue::next_at() const noexcept {
    return heap_.empty() ? std::numeric_limits<Seconds>::infinity() : heap_.front().at;
}

Event EventQueue::pop() {
    FABRIC_CHECK(!heap_.empty());
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Event event = heap_.back();
    heap_.pop_back();
    now_ = event.at;
    ++popped_;
    return event;
}

void EventQueue::move_to(Seconds now) {
    // An event that is skipped would never happen, and its rank wait for ever.
    FABRIC_CHECK(now >= now_ && now <= next_at());
    now_ = now;
}

}  // namespace emu
