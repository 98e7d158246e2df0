#include "libfabricshm/collective/mailbox.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/copy.hpp"
#include "libfabricshm/base/fault_point.hpp"

namespace fabricshm {

namespace {

bool inside(const GroupPlace& place, const std::byte* buffer, Bytes bytes) noexcept {
    if (bytes == 0) return true;
    if (buffer < place.arena || bytes > place.arena_bytes) return false;
    return static_cast<Bytes>(buffer - place.arena) <= place.arena_bytes - bytes;
}

constexpr auto kFarewell = std::chrono::seconds(5);

}  // namespace

Mailbox::Mailbox(GroupState& group)
    : group_(group),
      sends_(static_cast<std::size_t>(group.place.world)),
      unretired_(static_cast<std::size_t>(group.place.world)),
      incoming_(static_cast<std::size_t>(group.place.world)) {}

Mailbox::~Mailbox() {
    // Receivers may still be reading what was sent eagerly; the memory goes with the session.
    const TimePoint limit = Clock::now() + kFarewell;
    const Meeting& meeting = group_.meeting;
    for (int peer = 0; peer < group_.place.world; ++peer) {
        auto& waiting = unretired_[static_cast<std::size_t>(peer)];
        retire(peer);
        while (!waiting.empty() && Clock::now() < limit && group_.meeting.check(peer).ok()) {
            const Word bell = bell_of(group_.place.rank);
            // Acquire, and before the look: who takes a piece raises `taken`, then rings.
            const auto seen = bell.value.load(std::memory_order_acquire);
            retire(peer);
            if (waiting.empty()) break;
            if (!meeting.view().coherent()) {
                (void)meeting.idle(~std::uint64_t{0});
                continue;
            }
            (void)group_.meeting.await(
                bell, seen + 1, peer,
                std::min(limit, Clock::now() + std::chrono::milliseconds(50)));
        }
        if (!group_.meeting.check(peer).ok()) release_all(peer);
    }
}

Channel& Mailbox::to(int peer) const noexcept {
    return group_.channels[group_.place.rank * group_.place.world + peer];
}

Channel& Mailbox::from(int peer) const noexcept {
    return group_.channels[peer * group_.place.world + group_.place.rank];
}

std::shared_ptr<PendingRequest> Mailbox::post(const Call& call) {
    auto request = std::make_shared<PendingRequest>();
    bool hungry = false;
    {
        const std::lock_guard lock(mutex_);
        if (call.kind == Kind::kSend) {
            Send send;
            send.call = call;
            send.request = request;
            sends_[static_cast<std::size_t>(call.peer)].push_back(std::move(send));
        } else {
            receives_.push_back({call, request, false});
        }
        progress();
        hungry = hungry_;
    }
    while (hungry) hungry = supply();
    return request;
}

Word Mailbox::bell_of(int rank) const noexcept {
    RankWords& words = group_.meeting.words(rank);
    return {words.bell, words.bell_sleepers, TouchPoint::kBell, TouchPoint::kBellRead};
}

// Until something may have happened on a channel: the bell is above `seen`, or, where no bell can
// ring because hosts do not share caches, some time has passed.
Result<void> Mailbox::await_news(std::uint64_t turn, std::uint64_t seen, TimePoint deadline) {
    Meeting& meeting = group_.meeting;
    if (meeting.view().coherent()) {
        return meeting.await(bell_of(group_.place.rank), seen + 1, -1, deadline);
    }
    return meeting.idle(turn) ? meeting.check(-1) : Result<void>();
}

Result<void> Mailbox::finish(PendingRequest& request) {
    const Word bell = bell_of(group_.place.rank);
    for (std::uint64_t turn = 0;; ++turn) {
        // The bell is read before looking: what happens afterwards raises it above `seen`.
        const std::uint64_t seen = bell.value.load(std::memory_order_acquire);
        TimePoint deadline;
        bool hungry = false;
        {
            const std::lock_guard lock(mutex_);
            while (progress()) turn = 0;
            expire(Clock::now());
            deadline = nearest_deadline();
            hungry = hungry_;
        }
        if (request.done()) return request.wait();
        if (hungry && supply()) continue;
        const auto rung = await_news(turn, seen, deadline);
        if (!rung.ok() && rung.error().code != Errc::kTimeout) {
            const std::lock_guard lock(mutex_);
            fail_all(rung.error());
        }
    }
}

void Mailbox::finish_all() {
    while (const auto next = unfinished()) {
        (void)finish(*next);  // its owner gets the result from the request
    }
}

std::shared_ptr<PendingRequest> Mailbox::unfinished() {
    const std::lock_guard lock(mutex_);
    if (!receives_.empty()) return receives_.front().request;
    for (const auto& queue : sends_) {
        if (!queue.empty()) return queue.front().request;
    }
    for (const auto& queue : unretired_) {
        for (const Send& send : queue) {
            if (!send.request->done()) return send.request;
        }
    }
    return nullptr;
}

TimePoint Mailbox::nearest_deadline() const {
    // Peers are looked at once in a while: one that died never rings.
    TimePoint nearest = Clock::now() + std::chrono::milliseconds(100);
    for (const Receive& receive : receives_) nearest = std::min(nearest, receive.call.deadline);
    for (const auto& queue : sends_) {
        for (const Send& send : queue) nearest = std::min(nearest, send.call.deadline);
    }
    return nearest;
}

void Mailbox::ring(int peer) {
    const Visibility& view = group_.meeting.view();
    if (!view.coherent()) return;
    const Word bell = bell_of(peer);
    // Several peers ring the same bell, so it counts. Sequentially consistent: a locked instruction
    // on x86, which also keeps the look at the sleepers behind it.
    bell.value.fetch_add(1, std::memory_order_seq_cst);
    view.publish(bell.raised, &bell.value, sizeof bell.value, peer);
    Meeting::wake(bell);
}

// ---- Sending

bool Mailbox::progress() {
    bool moved = take_aside();
    for (int peer = 0; peer < group_.place.world; ++peer) {
        if (peer == group_.place.rank) continue;
        moved = push_pieces(peer) || moved;
        moved = pull_pieces(peer) || moved;
    }
    return moved;
}

void Mailbox::retire(int peer) {
    auto& queue = unretired_[static_cast<std::size_t>(peer)];
    // Nothing to learn: a look at the other host's line would cost without telling anything.
    if (queue.empty()) return;
    acquire_taken(peer);
    // Acquire: the receiver has read the piece before it raised `taken`, so the memory is free.
    const std::uint64_t taken = to(peer).taken.load(std::memory_order_acquire);
    while (!queue.empty() && queue.front().last_piece < taken) {
        if (queue.front().staging != nullptr) group_.place.release(queue.front().staging);
        queue.front().request->complete({}, -1);
        queue.pop_front();
    }
}

void Mailbox::acquire_taken(int peer) const noexcept {
    group_.meeting.view().acquire(TouchPoint::kTakenRead, &to(peer).taken, kCacheLine, peer);
}

bool Mailbox::push_pieces(int peer) {
    auto& queue = sends_[static_cast<std::size_t>(peer)];
    retire(peer);
    bool moved = false;
    while (!queue.empty() && publish_piece(peer, queue.front())) {
        moved = true;
        Send& send = queue.front();
        const bool all = send.published == bytes_of(send.call);
        if (!all) continue;
        const bool eager = send.staging != nullptr && bytes_of(send.call) <= kEager;
        if (eager || bytes_of(send.call) == 0) send.request->complete({}, -1);
        unretired_[static_cast<std::size_t>(peer)].push_back(std::move(send));
        queue.pop_front();
    }
    return moved;
}

// One more piece of `send` into the ring, if there is room. A failure ends the send.
bool Mailbox::publish_piece(int peer, Send& send) {
    Channel& channel = to(peer);
    const Visibility& view = group_.meeting.view();
    const std::uint64_t sent = channel.sent.load(std::memory_order_relaxed);  // written by us alone
    acquire_taken(peer);
    if (sent - channel.taken.load(std::memory_order_acquire) >= 2) return false;
    const GroupPlace& place = group_.place;
    const Bytes total = bytes_of(send.call);
    const bool in_place = inside(place, send.call.input, total) && total > kEager;
    if (!send.started && !in_place && total != 0 && send.staging == nullptr) {
        send.wanted = total <= kEager ? total : 2 * kPiece;
        hungry_ = hungry_ || !send.supplied;
        return false;  // until supply() has been here
    }
    const Bytes bytes =
        in_place ? total : std::min(total - send.published, total <= kEager ? total : kPiece);
    const std::byte* data = send.call.input + send.published;
    if (!in_place && bytes != 0) {
        std::byte* half = send.staging + (total <= kEager ? 0 : (sent & 1) * kPiece);
        const PoisonGuard guard;
        kernels::copy(half, data, bytes, false);
        if (guard.hit()) {
            group_.harmed(PoisonGuard::place());
            fail_all(group_.meeting.check(-1).error());
            return false;
        }
        data = half;
    }
    const auto offset = bytes == 0 ? 0 : static_cast<std::uint64_t>(data - place.arena);
    view.publish(TouchPoint::kMessage, data, bytes, peer);
    channel.pieces[sent & 1] = {offset, bytes, total, send.call.tag, send.started ? 0u : 1u};
    view.publish(TouchPoint::kPiece, &channel.pieces[sent & 1], sizeof(ChannelPiece), peer);
    send.started = true;
    send.published += bytes;
    send.last_piece = sent;
    FAULT_POINT("message.before_publish");
    // Release: who sees the count sees the piece and its bytes.
    channel.sent.store(sent + 1, std::memory_order_release);
    view.publish(TouchPoint::kSent, &channel.sent, sizeof channel.sent, peer);
    ring(peer);
    return true;
}

// ---- Receiving

bool Mailbox::valid(const ChannelPiece& piece) const noexcept {
    const GroupPlace& place = group_.place;
    return piece.bytes <= place.arena_bytes && piece.offset <= place.arena_bytes - piece.bytes &&
           piece.total <= place.arena_bytes * 1024;
}

bool Mailbox::pull_pieces(int peer) {
    Channel& channel = from(peer);
    const Visibility& view = group_.meeting.view();
    bool moved = false;
    while (true) {
        const std::uint64_t taken = channel.taken.load(std::memory_order_relaxed);  // ours alone
        view.acquire(TouchPoint::kSentRead, &channel.sent, sizeof channel.sent, peer);
        // Acquire pairs with the release in publish_piece().
        if (channel.sent.load(std::memory_order_acquire) == taken) return moved;
        view.acquire(TouchPoint::kPieceRead, &channel.pieces[taken & 1], sizeof(ChannelPiece),
                     peer);
        const ChannelPiece piece = channel.pieces[taken & 1];  // a copy: the sender can write it
        if (!valid(piece)) {
            fail_all({Errc::kCorrupt, peer, "receive: piece outside the arena"});
            return moved;
        }
        Incoming& incoming = incoming_[static_cast<std::size_t>(peer)];
        if (incoming.active && piece.first != 0) abandon(peer);  // its sender gave up half-way
        if (!incoming.active && !begin_message(peer, piece)) return moved;
        {
            const PoisonGuard guard;
            take_piece(peer, piece);
            // The check below then ends everything with the reason.
            if (guard.hit()) group_.harmed(PoisonGuard::place());
        }
        FAULT_POINT("message.taken");
        // A sender that gave up has its buffer back, and broke the group before it said so: what
        // was copied since may be anything.
        if (const auto state = group_.meeting.check(-1); !state.ok()) {
            fail_all(state.error());
            return moved;
        }
        // Release: our reads of the piece come before the sender uses its memory again.
        channel.taken.store(taken + 1, std::memory_order_release);
        view.publish(TouchPoint::kTaken, &channel.taken, sizeof channel.taken, peer);
        ring(peer);
        moved = true;
        if (incoming.done >= incoming.total) end_message(peer);
    }
}

// Finds who wants the message whose first piece is `piece`. False: nobody asks for this rank at
// all.
bool Mailbox::begin_message(int peer, const ChannelPiece& piece) {
    Incoming& incoming = incoming_[static_cast<std::size_t>(peer)];
    bool asked = false;
    for (auto receive = receives_.begin(); receive != receives_.end(); ++receive) {
        if (receive->call.peer != peer && receive->call.peer != kAnyPeer) continue;
        asked = true;
        if (receive->call.tag != piece.tag || receive->taken) continue;
        receive->taken = true;
        incoming = Incoming{};
        incoming.receive = receive;
        incoming.too_long = piece.total != bytes_of(receive->call);
        incoming.active = true;
        incoming.total = piece.total;
        return true;
    }
    if (!asked) return false;
    incoming = Incoming{};
    incoming.active = true;
    incoming.aside = true;
    incoming.kept = Aside{peer, piece.tag, {}};
    incoming.total = piece.total;
    // What a peer claims is not reserved at once: a wild total would end the process.
    incoming.kept.bytes.reserve(std::min<Bytes>(piece.total, kPiece));
    return true;
}

void Mailbox::take_piece(int peer, const ChannelPiece& piece) {
    Incoming& incoming = incoming_[static_cast<std::size_t>(peer)];
    const Bytes bytes = std::min<Bytes>(piece.bytes, incoming.total - incoming.done);
    const std::byte* data = group_.place.arena + piece.offset;
    if (!incoming.discard) {
        group_.meeting.view().acquire(TouchPoint::kMessageRead, data, bytes, peer);
    }
    if (incoming.discard) {
        // Counted, not kept.
    } else if (incoming.aside) {
        incoming.kept.bytes.insert(incoming.kept.bytes.end(), data, data + bytes);
    } else if (!incoming.too_long && bytes != 0) {
        kernels::copy(incoming.receive->call.output + incoming.done, data, bytes, false);
    }
    incoming.done += bytes;
    // An empty piece in the middle would never end the message: take it as its end.
    if (piece.bytes == 0) incoming.done = incoming.total;
}

void Mailbox::end_message(int peer) {
    Incoming& incoming = incoming_[static_cast<std::size_t>(peer)];
    incoming.active = false;
    if (incoming.discard) return;
    if (incoming.aside) {
        aside_.push_back(std::move(incoming.kept));
        // At once: a receive that wants it may be there already, and must not get the next message.
        take_aside();
        return;
    }
    const Result<void> result = incoming.too_long
                                    ? Result<void>(Error{Errc::kMismatch, peer, "receive: size"})
                                    : Result<void>();
    incoming.receive->request->complete(result, peer);
    receives_.erase(incoming.receive);
}

void Mailbox::abandon(int peer) {
    Incoming& incoming = incoming_[static_cast<std::size_t>(peer)];
    incoming.active = false;
    if (incoming.aside) return;
    incoming.receive->request->complete(Error{Errc::kPeer, peer, "receive: sender gave up"}, peer);
    receives_.erase(incoming.receive);
}

bool Mailbox::take_aside() {
    bool moved = false;
    for (auto receive = receives_.begin(); receive != receives_.end();) {
        const Call& call = receive->call;
        const auto match = std::find_if(aside_.begin(), aside_.end(), [&](const Aside& aside) {
            return (call.peer == kAnyPeer || call.peer == aside.peer) && call.tag == aside.tag;
        });
        if (receive->taken || match == aside_.end()) {
            ++receive;
            continue;
        }
        Result<void> result;
        if (match->bytes.size() != bytes_of(call)) {
            result = Error{Errc::kMismatch, match->peer, "receive: size"};
        } else if (!match->bytes.empty()) {
            std::memcpy(call.output, match->bytes.data(), match->bytes.size());
        }
        receive->request->complete(result, match->peer);
        aside_.erase(match);
        receive = receives_.erase(receive);
        moved = true;
    }
    return moved;
}

}  // namespace fabricshm
