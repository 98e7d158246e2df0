// How messages end that cannot complete: deadlines, peers that died, groups that broke.

#include <algorithm>
#include <utility>

#include "libfabricshm/collective/mailbox.hpp"

namespace fabricshm {

// Whether `receive` can still complete. One that takes from anybody waits for a certain rank once
// that one's message is coming in, and before that for any of the others that lives.
Result<void> Mailbox::check_sender(std::list<Receive>::iterator receive) {
    int sender = receive->call.peer;
    for (int peer = 0; peer < group_.place.world; ++peer) {
        const Incoming& incoming = incoming_[static_cast<std::size_t>(peer)];
        const bool its = incoming.active && !incoming.aside && incoming.receive == receive;
        if (its) sender = peer;
    }
    Result<void> state = group_.meeting.check(sender);
    if (!state.ok() || sender != kAnyPeer) return state;
    for (int peer = 0; peer < group_.place.world; ++peer) {
        if (peer == group_.place.rank) continue;
        state = group_.meeting.check(peer);
        if (state.ok()) return state;
    }
    return state;
}

// Ends what is past its deadline, and what waits for a rank that died.
bool Mailbox::expire(TimePoint now) {
    bool any = false;
    const auto late = [now](const Call& call) -> Result<void> {
        if (call.deadline > now) return {};
        return Error{Errc::kTimeout, call.peer, "wait for a message"};
    };
    const auto verdict = [&](const Call& call) {
        const Result<void> state = late(call);
        return state.ok() ? group_.meeting.check(call.peer) : state;
    };
    for (auto receive = receives_.begin(); receive != receives_.end();) {
        Result<void> state = late(receive->call);
        if (state.ok()) state = check_sender(receive);
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
    for (std::size_t peer = 0; peer < sends_.size(); ++peer) {
        for (Send& send : sends_[peer]) {
            send.request->complete(error, -1);
            // Its memory goes with the mailbox; see release_all().
            if (send.staging != nullptr) unretired_[peer].push_back(std::move(send));
        }
        sends_[peer].clear();
        for (Send& send : unretired_[peer]) send.request->complete(error, -1);
    }
}

// For receivers that take nothing any more: they have died, or look at the state of the group after
// every piece they copy and throw it away when it is broken.
void Mailbox::release_all(int peer) {
    auto& queue = unretired_[static_cast<std::size_t>(peer)];
    for (const Send& send : queue) {
        if (send.staging != nullptr) group_.place.release(send.staging);
    }
    queue.clear();
}

}  // namespace fabricshm
