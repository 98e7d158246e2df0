// How messages end that cannot complete: deadlines, peers that died, groups that broke.

#include <algorithm>
#include <utility>

#include "libfabricshm/collective/mailbox.hpp"

namespace fabricshm {

// Ends what is past its deadline, and what waits for a rank that died.
bool Mailbox::expire(TimePoint now) {
    bool any = false;
    const auto verdict = [&](const Call& call) -> Result<void> {
        if (call.deadline <= now) return Error{Errc::kTimeout, call.peer, "wait for a message"};
        return group_.meeting.check(call.peer);
    };
    for (auto receive = receives_.begin(); receive != receives_.end();) {
        const Result<void> state = verdict(receive->call);
        if (state.ok()) {
            ++receive;
            continue;
        }
        any = true;
        for (Incoming& incoming : incoming_) {
            // The rest of a message whose receive gave up is thrown away as it comes.
            const bool its = incoming.active && !incoming.aside && incoming.receive == receive;
            if (its) incoming.aside = incoming.discard = true;
        }
        receive->request->complete(state, -1);
        receive = receives_.erase(receive);
    }
    const auto give_up = [&](Send& send, const Result<void>& state) {
        any = true;
        // The receiver may be reading the caller's own buffer: the caller is about to get it back.
        const bool lends = send.started && send.staging == nullptr && !send.request->done() &&
                           bytes_of(send.call) != 0;
        if (lends) group_.meeting.fail(state.error().code, send.call.peer);
        send.request->complete(state, -1);
    };
    for (auto& queue : sends_) {
        for (auto send = queue.begin(); send != queue.end();) {
            const Result<void> state = verdict(send->call);
            if (state.ok()) {
                ++send;
                continue;
            }
            give_up(*send, state);
            // What was published may still be read: its memory stays until it is taken.
            const auto peer = static_cast<std::size_t>(send->call.peer);
            if (send->started) unretired_[peer].push_back(std::move(*send));
            send = queue.erase(send);
        }
    }
    for (auto& queue : unretired_) {
        for (Send& send : queue) {
            const Result<void> state = verdict(send.call);
            if (!state.ok() && !send.request->done()) give_up(send, state);
        }
    }
    return any;
}

void Mailbox::fail_all(const Error& error) {
    for (Receive& receive : receives_) receive.request->complete(error, -1);
    receives_.clear();
    for (Incoming& incoming : incoming_) incoming.active = false;
    for (auto& queue : sends_) {
        for (Send& send : queue) send.request->complete(error, -1);
        queue.clear();
    }
    for (auto& queue : unretired_) {
        for (Send& send : queue) send.request->complete(error, -1);
    }
}

}  // namespace fabricshm
