#include "libfabricshm/collective/message_wait.hpp"

#include "libfabricshm/collective/call.hpp"

namespace fabricshm {

bool MessageWait::is_due(TimePoint now) noexcept {
    const bool due = next_look_ != TimePoint{} && now >= next_look_;
    if (due || next_look_ == TimePoint{}) next_look_ = now + kPeerPeriod;
    return due;
}

void MessageWait::look(const Message& message, TimePoint now) noexcept {
    const bool is_same = message.order == order_ && message.published == published_;
    order_ = message.order;
    published_ = message.published;
    if (message.moves || !is_same) wait_.reset();
    // A message to oneself waits for no other rank.
    if (message.moves || message.peer == barrier_.rank()) return;
    if (!wait_) {
        const LongWaits& terms = barrier_.long_waits();
        wait_.emplace(barrier_.rank(), barrier_.world(), terms.from, terms.screen);
        return;
    }
    const Doing doing{message.is_send ? "send" : "recv", message.bytes};
    WaitRecord late{};
    for (int peer = 0; peer < barrier_.world(); ++peer) {
        const bool is_meant = message.peer == kAnyPeer || message.peer == peer;
        if (is_meant && peer != barrier_.rank()) add_late(late, peer);
    }
    // The log names one process; of a receive from any rank there is none to name.
    if (message.peer != kAnyPeer && wait_->is_due(now)) {
        wait_->say(message.peer, barrier_.words(message.peer).pid, doing, now);
    }
    if (wait_->is_shown_at(now)) wait_->show(late, doing, now);
}

}  // namespace fabricshm
