// Staging for messages from outside the arena. To make it may take a round trip to the daemon, or a
// wait for its return, and meanwhile other messages have to go on: so it is made without the lock.

#include "libfabricshm/collective/mailbox.hpp"

namespace fabricshm {

// A send in front of its queue that wants staging and that nobody makes it for; nullptr when there
// is none.
Mailbox::Send* Mailbox::find_unsupplied(int* peer) {
    for (*peer = 0; *peer < group_.place.world; ++*peer) {
        auto& queue = sends_[static_cast<std::size_t>(*peer)];
        if (queue.empty()) continue;
        Send& send = queue.front();
        if (send.wanted != 0 && send.staging == nullptr && !send.supplied) return &send;
    }
    hungry_ = false;
    return nullptr;
}

// Makes staging for one send and goes on with it. False when none wants any.
bool Mailbox::supply() {
    std::unique_lock lock(mutex_);
    int peer = 0;
    Send* send = hungry_ ? find_unsupplied(&peer) : nullptr;
    if (send == nullptr) return false;
    send->supplied = true;
    const Bytes wanted = send->wanted;
    const std::shared_ptr<PendingRequest> request = send->request;  // who it is, afterwards
    lock.unlock();
    std::byte* const memory = group_.place.allocate ? group_.place.allocate(wanted) : nullptr;
    lock.lock();
    auto& queue = sends_[static_cast<std::size_t>(peer)];
    // Meanwhile its deadline may have passed, or the group have failed.
    if (queue.empty() || queue.front().request != request) {
        if (memory != nullptr) group_.place.release(memory);
        return true;
    }
    queue.front().staging = memory;
    if (memory == nullptr) {
        request->complete(Error{Errc::kNoMemory, 0, "send: no staging memory"}, -1);
        queue.pop_front();
    }
    while (push_pieces(peer)) {
    }
    // Another thread may wait for this send, and sleeps on the bell.
    ring(group_.place.rank);
    return true;
}

}  // namespace fabricshm
