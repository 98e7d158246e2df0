#include "libfabricshm/collective/mailbox.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>
#include <utility>

#include "kernels/copy.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/pause.hpp"

namespace fabricshm {

namespace {

// How long a mailbox that goes waits for receivers of what lies in its stages.
constexpr auto kFarewell = std::chrono::seconds(5);

// While a thread spins: polls between two readings of the clock, and between two scans of the
// channels of all peers where bits say which ones to poll.
constexpr std::uint64_t kPollsPerLook = 64;
constexpr std::uint64_t kPollsPerScan = 64;

// Up to here polling all channels costs no more than to keep bits.
constexpr int kMaxScannedWorld = 16;

// How long a receive waits beyond its deadline for a sender that is copying one chunk: many turns
// of the scheduler on a crowded machine.
constexpr auto kSharedTimeout = std::chrono::seconds(2);

// Beyond this a copy is long next to two steps of the lock.
constexpr Bytes kLockedCopy = 4 * kKiB;

bool inside(const GroupPlace& place, const std::byte* buffer, Bytes bytes) noexcept {
    if (buffer < place.arena || bytes > place.arena_bytes) return false;
    return static_cast<Bytes>(buffer - place.arena) <= place.arena_bytes - bytes;
}

std::uint64_t lines_of(Bytes bytes) noexcept {
    if (bytes <= kFirstLineBytes) return 1;
    return 1 + (bytes - kFirstLineBytes + kNextLineBytes - 1) / kNextLineBytes;
}

constexpr Bytes kInlineMax = kFirstLineBytes + 3 * kNextLineBytes;

// With the ring's least number of lines a message is one line, so that sixteen fit.
Bytes inline_max_of(std::uint64_t lines) noexcept {
    return kFirstLineBytes + (lines / 16 - 1) * kNextLineBytes;
}

using PeerBits = std::array<std::uint64_t, 4>;

void set(PeerBits& peers, int peer) noexcept {
    peers[static_cast<std::size_t>(peer) / 64] |= std::uint64_t{1} << (peer % 64);
}
void clear(PeerBits& peers, int peer) noexcept {
    peers[static_cast<std::size_t>(peer) / 64] &= ~(std::uint64_t{1} << (peer % 64));
}

// Calls `function` for each peer of a copy, those from `first` on before the others.
template <typename Function>
void for_each(const PeerBits peers, int first, Function function) {
    for (const bool second_half : {false, true}) {
        for (std::size_t word = 0; word < peers.size(); ++word) {
            for (std::uint64_t bits = peers[word]; bits != 0; bits &= bits - 1) {
                const int peer = static_cast<int>(word) * 64 + std::countr_zero(bits);
                if ((peer < first) == second_half) function(peer);
            }
        }
    }
}

}  // namespace

Mailbox::Mailbox(GroupState& group)
    : group_(group),
      rank_(group.place.rank),
      world_(group.place.world),
      lines_(group.layout.channel_lines),
      inline_max_(inline_max_of(lines_)),
      uses_calls_(world_ > kMaxScannedWorld && group.barrier.view().coherent()),
      out_(static_cast<std::size_t>(world_)),
      in_(static_cast<std::size_t>(world_)) {
    FABRIC_CHECK(std::has_single_bit(lines_) && lines_ >= 16 && inline_max_ <= kInlineMax);
    for (int peer = 0; peer < world_; ++peer) {
        if (peer != rank_) set(everyone_, peer);
    }
    for (Outgoing& outgoing : out_) outgoing.head_at.resize(lines_);
}

// What lies in the ring itself outlasts this mailbox. Receivers may still be reading what lies in
// the stages, whose memory goes with the session.
Mailbox::~Mailbox() {
    const TimePoint limit = Clock::now() + kFarewell;
    Barrier& barrier = group_.barrier;
    for (int peer = 0; peer < world_; ++peer) {
        if (out(peer).stage.memory() == nullptr) continue;
        while (!drained(peer) && !in(peer).corrupt && Clock::now() < limit &&
               barrier.check(peer).ok()) {
            if (!view().one_kernel()) {
                (void)barrier.idle(~std::uint64_t{0});
                continue;
            }
            const Word bell = bell_of(rank_);
            const auto seen = bell.value.load(std::memory_order_seq_cst);
            barrier.enlist(bell);
            const bool over = drained(peer);
            barrier.doze(bell, seen, over ? TimePoint{} : Clock::now() + kSleepSlice);
        }
        withdraw(peer);
        group_.place.release(out(peer).stage.memory());
    }
    while (Kept* kept = all_kept_.front()) {
        all_kept_.erase(*kept);
        delete kept;
    }
}

Result<void> Mailbox::await_leaving(TimePoint deadline) {
    Barrier& barrier = group_.barrier;
    const Lock lock(mutex_);
    for (int peer = 0; peer < world_; ++peer) {
        Incoming& incoming = in(peer);
        if (incoming.left_line == nullptr) continue;
        auto& copied = offer_in(*incoming.left_line).copied;
        // Acquire pairs with SharedCopy::show(): the sender's stores come before it.
        for (std::uint64_t turn = 0;
             copied.load(std::memory_order_acquire) < incoming.left_until && barrier.lives(peer);
             ++turn) {
            if (Clock::now() >= deadline) {
                return Error{Errc::kTimeout, peer, "wait for a peer to leave"};
            }
            (void)barrier.idle(turn);
        }
        incoming.left_line = nullptr;
    }
    return {};
}

Word Mailbox::bell_of(int rank) const noexcept {
    RankWords& words = group_.barrier.words(rank);
    return {words.bell, words.bell_sleepers, TouchPoint::kBell, TouchPoint::kBellRead};
}

ChannelLine& Mailbox::line_to(int peer, std::uint64_t number) const noexcept {
    const auto pair = static_cast<std::size_t>(rank_) * static_cast<std::size_t>(world_) +
                      static_cast<std::size_t>(peer);
    return group_.channels[pair * lines_ + (number & (lines_ - 1))];
}

ChannelLine& Mailbox::line_from(int peer, std::uint64_t number) const noexcept {
    const auto pair = static_cast<std::size_t>(peer) * static_cast<std::size_t>(world_) +
                      static_cast<std::size_t>(rank_);
    return group_.channels[pair * lines_ + (number & (lines_ - 1))];
}

Mailbox::Ticket Mailbox::ticket_of(const Call& call) const {
    Ticket ticket;
    ticket.is_send = call.kind == Kind::kSend;
    ticket.peer = call.peer;
    ticket.tag = call.tag;
    ticket.input = call.input;
    ticket.output = call.output;
    ticket.bytes = call.count * kernels::size_of(call.dtype);
    ticket.deadline = call.deadline;
    const bool in_arena = ticket.is_send && ticket.bytes > kOfferAbove &&
                          inside(group_.place, ticket.input, ticket.bytes);
    ticket.in_place = in_arena && ticket.bytes > kEager;
    ticket.offered = in_arena && !ticket.in_place && view().coherent() && !view().active();
    return ticket;
}

// ---- Calls

Result<void> Mailbox::run(const Call& call) {
    const Bytes bytes = call.count * kernels::size_of(call.dtype);
    if (bytes <= kLockedCopy) {
        const bool done =
            call.kind == Kind::kSend ? send_at_once(call, bytes) : receive_at_once(call, bytes);
        if (done) return {};
    }
    Ticket ticket = ticket_of(call);
    return ticket.is_send ? send(ticket) : receive(ticket);
}

// The usual small message, when nothing stands before it: true when it is sent. Whatever else there
// is to it is for send().
bool Mailbox::send_at_once(const Call& call, Bytes bytes) {
    const Lock lock(mutex_);
    const bool first = out(call.peer).queue.empty() && !in(call.peer).corrupt;
    if (!first || failure_.has_value()) return false;
    if (bytes <= inline_max_) {
        return publish_inline(call.peer, call.tag, call.input, bytes) && !failure_.has_value();
    }
    Outgoing& outgoing = out(call.peer);
    if (outgoing.stage.memory() == nullptr || !has_room(call.peer, 1)) return false;
    std::byte* place = outgoing.stage.reserve(bytes);
    if (place == nullptr) return false;
    const PoisonGuard guard;
    kernels::copy(place, call.input, bytes, false);
    if (guard.hit()) return false;
    publish_piece(call.peer, call.tag, place, {0, bytes, bytes}, true);
    return true;
}

// Likewise the message that was asked for, when it is the next one and no receive stands before
// this one. True when it is received; otherwise nothing is taken.
bool Mailbox::receive_at_once(const Call& call, Bytes bytes) {
    const int peer = call.peer;
    // Relaxed: a guess, which is made sure of below.
    if (peer == kAnyPeer || unsettled_.load(std::memory_order_relaxed) != 0) return false;
    if (!await_line(peer)) return false;
    const Lock lock(mutex_);
    Incoming& incoming = in(peer);
    const bool alone = unsettled_.load(std::memory_order_relaxed) == 0 && !failure_.has_value() &&
                       !incoming.active && !incoming.busy && !incoming.corrupt;
    if (!alone) return false;
    const std::uint64_t next = incoming.next.load(std::memory_order_relaxed);
    ChannelLine& line = line_from(peer, next);
    // Acquire: as in pull().
    if (line.number.load(std::memory_order_acquire) != next + 1) return false;
    const auto what = std::bit_cast<MessageWhat>(line.what.load(std::memory_order_relaxed));
    if (what.first != 1 || what.tag != call.tag) return false;
    const PoisonGuard guard;
    if (what.kind == MessageKind::kInline) {
        if (what.bytes != bytes || bytes > inline_max_) return false;
        if (!copy_lines(peer, next, call.output, bytes)) return false;
    } else if (!copy_whole_piece(line, call.output, bytes)) {
        return false;
    }
    FAULT_POINT("message.taken");
    if (guard.hit()) return false;
    advance(peer, what.kind == MessageKind::kInline ? lines_of(bytes) : 1);
    return true;
}

// A message of `bytes` bytes that lies in the arena in one piece. False: it does not, or what was
// copied may be anything (see pull_piece()).
bool Mailbox::copy_whole_piece(const ChannelLine& line, std::byte* output, Bytes bytes) {
    const auto first = std::bit_cast<MessageWhat>(line.what.load(std::memory_order_relaxed));
    MessagePiece piece{};
    std::memcpy(&piece, line.data, sizeof piece);
    const GroupPlace& place = group_.place;
    const bool whole = first.kind == MessageKind::kPiece && piece.bytes == bytes &&
                       piece.total == bytes && bytes != 0 && bytes <= place.arena_bytes &&
                       piece.offset <= place.arena_bytes - bytes;
    if (!whole) return false;
    kernels::copy(output, place.arena + piece.offset, bytes, false);
    // The loads of the bytes stay before both checks: x86 keeps the order of loads, and
    // check_unbroken() that of the compiler.
    if (!group_.barrier.check_unbroken().ok()) return false;
    const auto now = std::bit_cast<MessageWhat>(line.what.load(std::memory_order_acquire));
    return now.kind == MessageKind::kPiece;
}

// Why nothing can be sent to or received from the peer any more.
std::optional<Error> Mailbox::refusal(const Ticket& ticket) const {
    if (failure_.has_value()) return failure_;
    if (ticket.peer != kAnyPeer && in(ticket.peer).corrupt) {
        return Error{Errc::kCorrupt, ticket.peer, "message: the channel was corrupt"};
    }
    return std::nullopt;
}

Result<void> Mailbox::send(Ticket& ticket) {
    Lock lock(mutex_);
    if (const auto reason = refusal(ticket)) return *reason;
    ++drivers_;
    add_send(ticket, lock);
    if (ticket.offered && !ticket.done) {
        // What has to wait for room has waited long enough.
        ticket.offered = ticket.lent;
        if (ticket.lent) await_offer(ticket, lock);
    }
    if (!ticket.done) drive(&ticket, lock);
    settle_ended(lock);
    --drivers_;
    return ticket.result;
}

Result<void> Mailbox::receive(Ticket& ticket) {
    const int peer = ticket.peer;
    Lock lock(mutex_);
    if (const auto reason = refusal(ticket)) return *reason;
    ++drivers_;
    if (!take_kept(ticket)) {
        // Not before receives that were posted earlier.
        const bool next = peer != kAnyPeer && asked_for(peer, ticket.tag) == nullptr;
        if (next && !in(peer).active) (void)pull(peer, lock, &ticket);
        const auto reason = refusal(ticket);
        if (!ticket.done && reason.has_value()) {
            end_receive(ticket, *reason, -1);
        } else if (!ticket.done && !ticket.listed) {
            list_receive(ticket, true);
        }
        if (!ticket.done) drive(&ticket, lock);
    }
    settle_ended(lock);
    --drivers_;
    return ticket.result;
}

std::shared_ptr<PendingRequest> Mailbox::post(const Call& call) {
    auto owned = std::make_unique<Ticket>(ticket_of(call));
    const auto request = std::make_shared<PendingRequest>();
    owned->request = request;
    owned->offered = false;  // no thread waits for the receiver
    Lock lock(mutex_);
    ++drivers_;
    ++posted_;
    Ticket& ticket = *owned.release();  // complete() owns it
    if (const auto reason = refusal(ticket)) {
        complete(ticket, *reason, -1);
    } else if (ticket.is_send) {
        add_send(ticket, lock);
        while (hungry_ && supply(lock)) {
        }
    } else if (!take_kept(ticket)) {
        list_receive(ticket, true);
        (void)progress(lock);
    }
    settle_ended(lock);
    --drivers_;
    return request;
}

void Mailbox::finish_all() {
    Lock lock(mutex_);
    ++drivers_;
    drive(nullptr, lock);
    settle_ended(lock);
    --drivers_;
}

void Mailbox::add_send(Ticket& ticket, Lock& lock) {
    ticket.order = ++order_;
    out(ticket.peer).queue.push_back(ticket);
    set(sending_, ticket.peer);
    next_deadline_ = std::min(next_deadline_, ticket.deadline);
    (void)push(ticket.peer, lock);
    const auto reason = refusal(ticket);
    if (reason.has_value() && !ticket.done) end_send(ticket, *reason);
}

void Mailbox::list_receive(Ticket& ticket, bool indexed) {
    ticket.order = ++order_;
    ticket.listed = true;
    receives_.push_back(ticket);
    unsettled_.store(unsettled_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    next_deadline_ = std::min(next_deadline_, ticket.deadline);
    if (!indexed) return;
    ticket.indexed = true;
    asked_.add(ticket.peer, ticket.tag, ticket);
    ++(ticket.peer == kAnyPeer ? any_wanted_ : in(ticket.peer).wanted);
}

// The message that was kept first, if there is one for this receive.
bool Mailbox::take_kept(Ticket& ticket) {
    Kept* kept = ticket.peer == kAnyPeer ? kept_of_any_.first(kAnyPeer, ticket.tag)
                                         : kept_.first(ticket.peer, ticket.tag);
    if (kept == nullptr) return false;
    const std::unique_ptr<Kept> owned(kept);
    kept_.erase(kept->peer, kept->tag, *kept);
    kept_of_any_.erase(kAnyPeer, kept->tag, *kept);
    all_kept_.erase(*kept);
    FABRIC_DCHECK(in(kept->peer).kept_bytes >= kept->bytes.size());
    in(kept->peer).kept_bytes -= kept->bytes.size();
    unsettled_.store(unsettled_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
    Result<void> result;
    if (kept->bytes.size() != ticket.bytes) {
        result = Error{Errc::kMismatch, kept->peer, "receive: size"};
    } else if (!kept->bytes.empty()) {
        std::memcpy(ticket.output, kept->bytes.data(), kept->bytes.size());
    }
    end_receive(ticket, result, kept->peer);
    return true;
}

// ---- Waiting

bool Mailbox::finished(const Ticket* ticket) const noexcept {
    return ticket != nullptr ? ticket->done : posted_ == 0;
}

// One step of everything that can move: one message or piece of each peer.
bool Mailbox::progress(Lock& lock) {
    bool moved = false;
    for_each(sending_, 0, [&](int peer) { moved = push(peer, lock) || moved; });
    if (!uses_calls_ || ++polls_ % kPollsPerScan == 0) {
        pending_ = everyone_;
    } else {
        collect_calls();
    }
    first_pulled_ = first_pulled_ + 1 < world_ ? first_pulled_ + 1 : 0;
    for_each(pending_, first_pulled_, [&](int peer) {
        const Pulled pulled = pull(peer, lock, nullptr);
        if (pulled == Pulled::kEmpty) clear(pending_, peer);
        moved = moved || pulled == Pulled::kMoved;
    });
    return moved;
}

// Until `ticket` is done; nullptr: until no request is left.
void Mailbox::drive(const Ticket* ticket, Lock& lock) {
    WaitTimer timer(group_.place.meter.get());
    const Barrier& barrier = group_.barrier;
    const int peer = ticket != nullptr ? ticket->peer : kAnyPeer;
    // Behind a policy a poll takes time of its own.
    const std::uint64_t spins = view().active() ? 0 : barrier.spins_for(peer);
    TimePoint awake_until = TimePoint::max();
    MessageWait wait(barrier);
    std::uint64_t turn = 0;
    for (std::uint64_t polls = 1;; ++polls, ++turn) {
        if (progress(lock)) turn = 0;
        settle_ended(lock);
        if (finished(ticket)) return;
        if (hungry_ && supply(lock)) continue;
        const bool spinning = turn % (spins + 1) < spins;
        if (!spinning || polls % kPollsPerLook == 0) look_at_clock(ticket, lock, wait);
        if (finished(ticket)) return;
        if (!view().one_kernel()) {
            lock.unlock();
            timer.begin();
            (void)barrier.idle(turn);
            lock.lock();
        } else if (spinning) {
            lock.unlock();
            pause_cpu();
            lock.lock();
        } else if (turn / (spins + 1) <= barrier.yields() && Clock::now() < awake_until) {
            lock.unlock();
            timer.begin();
            if (turn <= spins) awake_until = Clock::now() + kMaxAwake;
            std::this_thread::yield();
            lock.lock();
        } else {
            sleep(ticket, lock);
        }
    }
}

// Ends what is past its deadline, and now and then what waits for a peer that has ended. Shows what
// waits for one that lives: a thread's own message, else the first that none has come for.
void Mailbox::look_at_clock(const Ticket* ticket, Lock& lock, MessageWait& wait) {
    const TimePoint now = Clock::now();
    const bool is_due = wait.is_due(now);
    if (is_due || now >= next_deadline_) expire(now, is_due, lock);
    if (is_due) wait.look(ticket != nullptr ? ticket : receives_.front(), in_, now);
    settle_ended(lock);
}

void Mailbox::sleep(const Ticket* ticket, Lock& lock) {
    Barrier& barrier = group_.barrier;
    const Word bell = bell_of(rank_);
    view().acquire(TouchPoint::kBellRead, &bell.value, sizeof bell.value);
    const std::uint64_t seen = bell.value.load(std::memory_order_seq_cst);
    barrier.enlist(bell);
    // Once more, and at all channels: what came before a peer could see that this rank sleeps.
    pending_ = everyone_;
    polls_ = kPollsPerScan - 1;
    const bool awake = progress(lock) || finished(ticket) || hungry_ || !ended_.empty();
    const TimePoint until = std::min(next_deadline_, Clock::now() + kSleepSlice);
    lock.unlock();
    barrier.doze(bell, seen, awake ? TimePoint{} : until);
    lock.lock();
}

// Callbacks run without the lock: they may read the request, or start another.
void Mailbox::settle_ended(Lock& lock) {
    if (__builtin_expect(ended_.empty(), true)) return;
    const auto ended = std::exchange(ended_, {});
    lock.unlock();
    for (const auto& ticket : ended) ticket->request->complete(ticket->result, ticket->sender);
    lock.lock();
}

// Without the lock: spins for a while until the next line of the channel is there. True if it is.
bool Mailbox::await_line(int peer) const noexcept {
    if (view().active()) return false;
    if (is_there(peer)) return true;
    const std::uint64_t spins = group_.barrier.spins_for(peer);
    for (std::uint64_t spin = 0; spin < spins; ++spin) {
        pause_cpu();
        if (is_there(peer)) return true;
    }
    return false;
}

bool Mailbox::is_there(int peer) const noexcept {
    // Relaxed: a hint. The thread that takes the line rechecks, with the lock and with acquire.
    const std::uint64_t next = in(peer).next.load(std::memory_order_relaxed);
    return line_from(peer, next).number.load(std::memory_order_relaxed) == next + 1;
}

// Wakes threads of `peer` that sleep until something happens on a channel; see Barrier::raise().
void Mailbox::notify(int peer) noexcept {
    if (!view().one_kernel()) return;
    const Word bell = bell_of(peer);
    if (!group_.barrier.fenced()) {
        // The sleeper sends a membarrier() after it counted itself, so only the compiler must be
        // kept from moving this load before the store that it must not miss.
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if (bell.sleepers.load(std::memory_order_relaxed) == 0) return;
    }
    // Several peers ring the same bell, so it counts. Sequentially consistent: a locked instruction
    // on x86, which also keeps the check of the sleepers behind it.
    bell.value.fetch_add(1, std::memory_order_seq_cst);
    view().publish(bell.raised, &bell.value, sizeof bell.value, peer);
    Barrier::wake(bell);
}

// Says to `peer` that its channel from this rank has something.
void Mailbox::call(int peer) noexcept {
    if (uses_calls_) {
        auto& word = group_.calls[peer].from[rank_ / 64];
        const std::uint64_t bit = std::uint64_t{1} << (rank_ % 64);
        // Relaxed: the load may be served before the line is visible, and see a bit that the peer
        // is just taking; it polls all channels now and then, and before it sleeps. Release for the
        // bit, so that a peer that takes it sees the line.
        if ((word.load(std::memory_order_relaxed) & bit) == 0) {
            word.fetch_or(bit, std::memory_order_release);
            view().publish(TouchPoint::kBell, &word, sizeof word, peer);
        }
    }
    notify(peer);
}

void Mailbox::collect_calls() noexcept {
    ChannelCalls& calls = group_.calls[rank_];
    view().acquire(TouchPoint::kBellRead, &calls, sizeof calls);
    for (std::size_t i = 0; i < pending_.size(); ++i) {
        if (calls.from[i].load(std::memory_order_relaxed) == 0) continue;
        // Acquire pairs with call(). Bits that no rank has are garbage.
        pending_[i] |= calls.from[i].exchange(0, std::memory_order_acquire) & everyone_[i];
    }
}

// ---- Sending

bool Mailbox::push(int peer, Lock& lock) {
    Outgoing& outgoing = out(peer);
    if (outgoing.busy) return false;
    bool moved = !outgoing.lent.empty() && see_taken(peer);
    moved = (!outgoing.lent.empty() && share(peer, lock)) || moved;
    if (outgoing.busy) return moved;
    while (Ticket* send = outgoing.queue.front()) {
        if (!publish(peer, *send, lock)) break;
        moved = true;
        if (send->done) break;  // the group failed
        if (send->published < send->bytes) continue;
        outgoing.queue.erase(*send);
        if (!send->in_place && send->stage == nullptr) {
            complete(*send, {}, -1);
            continue;
        }
        send->lent = true;
        outgoing.lent.push_back(*send);
    }
    if (outgoing.queue.empty() && outgoing.lent.empty()) clear(sending_, peer);
    return moved;
}

// One more piece of `send`. False: there is no room or no stage, or the send is over.
bool Mailbox::publish(int peer, Ticket& send, Lock& lock) {
    if (send.bytes <= inline_max_) {
        send.published = send.bytes;
        return publish_inline(peer, send.tag, send.input, send.bytes);
    }
    if (send.offered && publish_offer(peer, send)) return true;
    if (!send.in_place) return publish_staged(peer, send, lock);
    if (!has_room(peer, 1)) return false;
    if (view().coherent() && !view().active()) return publish_offer(peer, send);
    send.last_line = out(peer).sent;
    publish_piece(peer, send.tag, send.input, {0, send.bytes, send.bytes}, true);
    send.published = send.bytes;
    return true;
}

// Leaves the message where it is. False: there is no room to move it to, or it has begun otherwise.
bool Mailbox::publish_offer(int peer, Ticket& send) {
    Outgoing& outgoing = out(peer);
    std::uint64_t place = kNoOffset;
    if (!send.in_place) {
        if (send.published != 0 || outgoing.stage.memory() == nullptr || !has_room(peer, 1))
            return false;
        if (outgoing.unoffered != 0) {
            --outgoing.unoffered;
            send.offered = false;
            return false;
        }
        send.stage = outgoing.stage.reserve(send.bytes);
        if (send.stage == nullptr) return false;
        place = static_cast<std::uint64_t>(send.stage - group_.place.arena);
    }
    const auto offset = static_cast<std::uint64_t>(send.input - group_.place.arena);
    send.last_line = outgoing.sent;
    write_offer(line_to(peer, outgoing.sent), {offset, send.bytes, send.bytes}, place);
    show_lines(peer, {send.tag, 0, MessageKind::kOffered, 1}, 1);
    send.published = send.bytes;
    return true;
}

// A receiver that waits takes what is offered at once. For any other it is moved to the stage, and
// the sender goes on as after every message of its size.
void Mailbox::await_offer(Ticket& send, Lock& lock) {
    const int peer = send.peer;
    const std::uint64_t line = send.last_line;
    const auto index = static_cast<std::size_t>(peer) * static_cast<std::size_t>(world_) +
                       static_cast<std::size_t>(rank_);
    const std::uint64_t spins = group_.barrier.spins_for(peer);
    lock.unlock();
    for (std::uint64_t spin = 0; spin < spins; ++spin) {
        // Relaxed: a hint; see_taken() loads with acquire.
        if (group_.taken[index].taken.load(std::memory_order_relaxed) > line) break;
        pause_cpu();
    }
    lock.lock();
    if (!send.done) (void)push(peer, lock);
    if (!send.done && send.lent) (void)move_offer(send);
}

// Copies to the stage what was offered and not claimed, and ends its send. False: it was claimed,
// or lies on a lost page.
bool Mailbox::move_offer(Ticket& send) {
    Outgoing& outgoing = out(send.peer);
    ChannelLine& line = line_to(send.peer, send.last_line);
    // Relaxed: it only spares a copy in vain; the exchange below decides.
    const auto now = std::bit_cast<MessageWhat>(line.what.load(std::memory_order_relaxed));
    if (send.stage == nullptr || now.kind != MessageKind::kOffered) return false;
    const PoisonGuard guard;
    kernels::copy(send.stage, send.input, send.bytes, false);
    if (guard.hit()) {
        group_.poisoned(PoisonGuard::place());
        return false;
    }
    FAULT_POINT("message.before_move");
    if (!fabricshm::move_offer(line)) return false;
    outgoing.unoffered = kUnoffered;
    outgoing.lent.erase(send);
    complete(send, {}, -1);
    notify(send.peer);
    return true;
}

// Copies a part of the oldest message in place for its receiver, which asked for that.
bool Mailbox::share(int peer, Lock& lock) {
    Outgoing& outgoing = out(peer);
    Ticket& send = *outgoing.lent.front();
    if (!send.in_place || send.copied || send.bytes < kShareFrom || outgoing.shared != nullptr) {
        return false;
    }
    ChannelLine& line = line_to(peer, send.last_line);
    // Acquire: the place of the output was written before.
    const auto what = std::bit_cast<MessageWhat>(line.what.load(std::memory_order_acquire));
    if (what.kind != MessageKind::kShared) return false;
    send.copied = true;
    const GroupPlace& place = group_.place;
    const std::uint64_t to = offer_in(line).place.load(std::memory_order_relaxed);
    if (to > place.arena_bytes - send.bytes) {
        corrupt(peer, "send: output outside the arena");
        return true;
    }
    outgoing.shared = &send;
    lock.unlock();
    {
        const PoisonGuard guard;
        SharedCopy copy(line, SharedCopy::Side::kSender, place.arena + to, send.input, send.bytes,
                        past_cache(send.bytes));
        // In a broken group the receiver may be about to give up; a chunk that was copied counts
        // all the same, for it waits for that.
        while (!group_.barrier.broken() && copy.copy_next()) {
            if (guard.hit()) group_.poisoned(PoisonGuard::place());
            FAULT_POINT("message.shared");
            copy.show(group_.barrier);
        }
    }
    lock.lock();
    outgoing.shared = nullptr;
    // Whatever ended the sends to this peer meanwhile left this one to us.
    if (const auto reason = refusal(send); reason.has_value()) {
        end_send(send, *reason);
    } else {
        settle_lent(outgoing);
    }
    return true;
}

bool Mailbox::has_room(int peer, std::uint64_t lines) {
    const Outgoing& outgoing = out(peer);
    if (outgoing.sent + lines - outgoing.taken <= lines_) return true;
    return see_taken(peer) && outgoing.sent + lines - outgoing.taken <= lines_;
}

// How far the receiver has come. True when it came further.
bool Mailbox::see_taken(int peer) {
    Outgoing& outgoing = out(peer);
    const auto index = static_cast<std::size_t>(peer) * static_cast<std::size_t>(world_) +
                       static_cast<std::size_t>(rank_);
    ChannelTaken& line = group_.taken[index];
    view().acquire(TouchPoint::kTakenRead, &line, sizeof line, peer);
    // Acquire: the receiver has read the lines and what they name, so both can be written again.
    const std::uint64_t taken = line.taken.load(std::memory_order_acquire);
    if (taken == outgoing.taken) return false;
    if (taken < outgoing.taken || taken > outgoing.sent) {
        corrupt(peer, "send: lines taken that were not sent");
        return false;
    }
    outgoing.taken = taken;
    FABRIC_DCHECK(outgoing.sent - outgoing.taken <= lines_);
    const Bytes emptied = outgoing.head_at[(taken - 1) & (lines_ - 1)];
    outgoing.stage.release_until(emptied);
    settle_lent(outgoing);
    return true;
}

// Ends the sends in place that are taken; but for one that a thread is at.
void Mailbox::settle_lent(Outgoing& outgoing) {
    while (Ticket* send = outgoing.lent.front()) {
        if (send->last_line >= outgoing.taken || send == outgoing.shared) break;
        outgoing.lent.erase(*send);
        complete(*send, {}, -1);
    }
}

bool Mailbox::publish_inline(int peer, int tag, const std::byte* input, Bytes bytes) {
    const std::uint64_t lines = lines_of(bytes);
    if (!has_room(peer, lines)) return false;
    const PoisonGuard guard;
    const std::uint64_t first = out(peer).sent;
    // The receiver has read these lines: all are fetched for writing at once.
    for (std::uint64_t n = first + 1; n < first + lines; ++n) {
        __builtin_prefetch(&line_to(peer, n), 1);
    }
    Bytes from = kFirstLineBytes;
    for (std::uint64_t n = first + 1; n < first + lines; ++n, from += kNextLineBytes) {
        ChannelLine& line = line_to(peer, n);
        const Bytes here = std::min(kNextLineBytes, bytes - from);
        std::uint64_t head = 0;
        std::memcpy(&head, input + from, std::min<Bytes>(here, sizeof head));
        line.what.store(head, std::memory_order_relaxed);
        if (here > sizeof head) {
            std::memcpy(line.data, input + from + sizeof head, here - sizeof head);
        }
        // Relaxed: the number of the first line, with release, stands for all.
        line.number.store(n + 1, std::memory_order_relaxed);
        view().publish(TouchPoint::kPiece, &line, sizeof line, peer);
    }
    const MessageWhat what{tag, static_cast<std::uint16_t>(bytes), MessageKind::kInline, 1};
    publish_first_line(peer, what, input, std::min(bytes, kFirstLineBytes), lines);
    if (guard.hit()) {
        group_.poisoned(PoisonGuard::place());
        fail_all(group_.barrier.check(-1).error());
    }
    return true;
}

bool Mailbox::publish_staged(int peer, Ticket& send, Lock& lock) {
    Outgoing& outgoing = out(peer);
    if (outgoing.stage.memory() == nullptr) {
        hungry_ = true;
        return false;  // until supply() has been here
    }
    if (!has_room(peer, 1)) return false;
    const Bytes bytes =
        std::min(send.bytes - send.published, send.bytes <= kEager ? kEagerPiece : kPiece);
    std::byte* place = outgoing.stage.reserve(bytes);
    if (place == nullptr && see_taken(peer)) place = outgoing.stage.reserve(bytes);
    if (place == nullptr) return false;
    const bool unlocked = bytes > kLockedCopy;
    bool hit = false;
    outgoing.busy = true;
    if (unlocked) lock.unlock();
    {
        const PoisonGuard guard;
        kernels::copy(place, send.input + send.published, bytes, false);
        hit = guard.hit();
        if (hit) group_.poisoned(PoisonGuard::place());
    }
    if (unlocked) lock.lock();
    outgoing.busy = false;
    if (hit) fail_all(group_.barrier.check(-1).error());
    // Whatever ended the sends to this peer meanwhile left this one to us.
    if (const auto reason = refusal(send); reason.has_value() && !send.done) {
        end_send(send, *reason);
    }
    if (send.done) return false;
    publish_piece(peer, send.tag, place, {0, bytes, send.bytes}, send.published == 0);
    send.published += bytes;
    return true;
}

// One line that names bytes of the arena; `piece` lacks only their place.
void Mailbox::publish_piece(int peer, int tag, const std::byte* data, MessagePiece piece,
                            bool first) {
    view().publish(TouchPoint::kMessage, data, piece.bytes, peer);
    piece.offset = static_cast<std::uint64_t>(data - group_.place.arena);
    const MessageWhat what{tag, 0, MessageKind::kPiece, first ? std::uint8_t{1} : std::uint8_t{0}};
    publish_first_line(peer, what, &piece, sizeof piece, 1);
}

// The line that makes `lines` lines visible, the others having been written.
void Mailbox::publish_first_line(int peer, const MessageWhat& what, const void* data, Bytes bytes,
                                 std::uint64_t lines) {
    if (bytes != 0) std::memcpy(line_to(peer, out(peer).sent).data, data, bytes);
    show_lines(peer, what, lines);
}

void Mailbox::show_lines(int peer, const MessageWhat& what, std::uint64_t lines) {
    Outgoing& outgoing = out(peer);
    // As has_room() found it: what is in flight is not written over.
    FABRIC_DCHECK(lines > 0 && outgoing.sent + lines - outgoing.taken <= lines_);
    ChannelLine& line = line_to(peer, outgoing.sent);
    line.what.store(std::bit_cast<std::uint64_t>(what), std::memory_order_relaxed);
    FAULT_POINT("message.before_publish");
    // Release: a receiver that sees the number sees this line, those behind it, and the bytes that
    // it names.
    line.number.store(outgoing.sent + 1, std::memory_order_release);
    view().publish(TouchPoint::kSent, &line, sizeof line, peer);
    outgoing.sent += lines;
    outgoing.head_at[(outgoing.sent - 1) & (lines_ - 1)] = outgoing.stage.head();
    call(peer);
}

// ---- Stages

// Makes a stage for one peer and goes on with what waits for it; without the lock, for that may
// take a round trip to the daemon. False when no send lacks one.
bool Mailbox::supply(Lock& lock) {
    int peer = -1;
    for_each(sending_, 0, [&](int each) {
        const Ticket* front = out(each).queue.front();
        const bool lacks = front != nullptr && !front->in_place && front->bytes > inline_max_ &&
                           out(each).stage.memory() == nullptr && !out(each).supplying;
        if (lacks) peer = each;
    });
    if (peer < 0) {
        hungry_ = false;
        return false;
    }
    Outgoing& outgoing = out(peer);
    if (stages_ < kMaxStages || !take_over_stage(outgoing)) {
        const std::uint64_t order = outgoing.queue.front()->order;
        outgoing.supplying = true;
        lock.unlock();
        std::byte* memory = group_.place.allocate ? group_.place.allocate(Stage::kBytes) : nullptr;
        lock.lock();
        outgoing.supplying = false;
        outgoing.stage.set_memory(memory);
        stages_ += memory != nullptr ? 1 : 0;
        Ticket* front = outgoing.queue.front();
        // Meanwhile its deadline may have passed, or the group have failed.
        if (memory == nullptr && front != nullptr && front->order == order) {
            end_send(*front, Error{Errc::kNoMemory, 0, "send: no staging memory"});
        }
    }
    (void)push(peer, lock);
    // Another thread may wait for this send, and sleeps on the bell.
    if (drivers_ > 1) notify(rank_);
    return true;
}

// The stage of a peer to which nothing is in flight.
bool Mailbox::take_over_stage(Outgoing& outgoing) noexcept {
    for (int peer = 0; peer < world_; ++peer) {
        Outgoing& other = out(peer);
        if (other.stage.memory() == nullptr || other.busy || !other.queue.empty() || !drained(peer))
            continue;
        outgoing.stage.set_memory(other.stage.take_memory());
        return true;
    }
    return false;
}

bool Mailbox::drained(int peer) {
    (void)see_taken(peer);
    return out(peer).stage.is_empty();
}

// The memory that untaken lines name goes: their receiver may be at them just now, or come later.
// It rechecks the line after it copied, and so learns that the bytes may be anything.
void Mailbox::withdraw(int peer) noexcept {
    const Outgoing& outgoing = out(peer);
    for (std::uint64_t n = outgoing.taken; n < outgoing.sent;) {
        ChannelLine& line = line_to(peer, n);
        auto what = std::bit_cast<MessageWhat>(line.what.load(std::memory_order_relaxed));
        n += what.kind == MessageKind::kInline ? lines_of(what.bytes) : 1;
        if (what.kind == MessageKind::kInline) continue;
        what.kind = MessageKind::kWithdrawn;
        // Sequentially consistent: before the memory is given away.
        line.what.store(std::bit_cast<std::uint64_t>(what), std::memory_order_seq_cst);
        view().publish(TouchPoint::kSent, &line, sizeof line, peer);
    }
}

// ---- Receiving

// One message or piece from `peer`. `candidate` is a receive that is not listed yet.
Mailbox::Pulled Mailbox::pull(int peer, Lock& lock, Ticket* candidate) {
    Incoming& incoming = in(peer);
    if (incoming.busy) return Pulled::kLeft;
    if (incoming.corrupt || failure_.has_value()) return Pulled::kEmpty;
    const std::uint64_t next = incoming.next.load(std::memory_order_relaxed);
    ChannelLine& line = line_from(peer, next);
    view().acquire(TouchPoint::kSentRead, &line, sizeof line, peer);
    // Acquire pairs with the release in publish_first_line().
    const std::uint64_t number = line.number.load(std::memory_order_acquire);
    if (number != next + 1) {
        // What was there one round before, or nothing yet. The ring's lines have one writer each.
        const std::uint64_t before = next < lines_ ? 0 : next + 1 - lines_;
        if (number != before) corrupt(peer, "receive: not a line of the channel");
        return Pulled::kEmpty;
    }
    // Copies, here and below: the sender can write what is in shared memory at any time. Acquire
    // pairs with move_offer(): a receiver that finds an offer moved reads the bytes where they were
    // moved to.
    const auto what = std::bit_cast<MessageWhat>(line.what.load(std::memory_order_acquire));
    if (incoming.active && what.first != 0) {
        abandon(peer, {Errc::kPeer, peer, "receive: sender gave up"});
    }
    switch (what.kind) {
        case MessageKind::kInline:
            return pull_inline(peer, what, candidate);
        case MessageKind::kPiece:
        case MessageKind::kOffered:
        case MessageKind::kMoved:
            return pull_piece(peer, what, lock, candidate);
        case MessageKind::kWithdrawn:
            return pull_withdrawn(peer, what, candidate);
        case MessageKind::kClaimed:
        case MessageKind::kShared:
            break;  // by no rank but this one, which has not
    }
    corrupt(peer, "receive: no such kind of line");
    return Pulled::kEmpty;
}

Mailbox::Pulled Mailbox::pull_inline(int peer, const MessageWhat& what, Ticket* candidate) {
    if (what.bytes > inline_max_ || what.first == 0) {
        corrupt(peer, "receive: not a message in lines");
        return Pulled::kEmpty;
    }
    if (!begin_message(peer, what, what.bytes, candidate)) return Pulled::kLeft;
    Incoming& incoming = in(peer);
    std::array<std::byte, kInlineMax> copy;
    const PoisonGuard guard;
    const std::uint64_t first = incoming.next.load(std::memory_order_relaxed);
    if (!copy_lines(peer, first, copy.data(), what.bytes)) {
        corrupt(peer, "receive: not a line of the message");
        return Pulled::kEmpty;
    }
    store_bytes(incoming, copy.data(), what.bytes);
    FAULT_POINT("message.taken");
    if (guard.hit()) {
        group_.poisoned(PoisonGuard::place());
        fail_all(group_.barrier.check(-1).error());
        return Pulled::kEmpty;
    }
    advance(peer, lines_of(what.bytes));
    end_message(peer);
    return Pulled::kMoved;
}

// The bytes of a message that lies in lines. False: what stands behind the first line is garbage.
bool Mailbox::copy_lines(int peer, std::uint64_t first, std::byte* output, Bytes bytes) const {
    const std::uint64_t end = first + lines_of(bytes);
    for (std::uint64_t n = first + 1; n < end; ++n) __builtin_prefetch(&line_from(peer, n));
    if (bytes != 0) {
        std::memcpy(output, line_from(peer, first).data, std::min(bytes, kFirstLineBytes));
    }
    Bytes done = kFirstLineBytes;
    for (std::uint64_t n = first + 1; n < end; ++n, done += kNextLineBytes) {
        const ChannelLine& line = line_from(peer, n);
        view().acquire(TouchPoint::kPieceRead, &line, sizeof line, peer);
        // Relaxed: the acquire of the first line's number covers this line.
        if (line.number.load(std::memory_order_relaxed) != n + 1) return false;
        const Bytes here = std::min(kNextLineBytes, bytes - done);
        const std::uint64_t head = line.what.load(std::memory_order_relaxed);
        std::memcpy(output + done, &head, std::min<Bytes>(here, sizeof head));
        if (here > sizeof head) {
            std::memcpy(output + done + sizeof head, line.data, here - sizeof head);
        }
    }
    return true;
}

Mailbox::Pulled Mailbox::pull_piece(int peer, const MessageWhat& what, Lock& lock,
                                    Ticket* candidate) {
    Incoming& incoming = in(peer);
    ChannelLine& line = line_from(peer, incoming.next.load(std::memory_order_relaxed));
    MessagePiece piece{};
    std::memcpy(&piece, line.data, sizeof piece);
    const GroupPlace& place = group_.place;
    const Bytes left = what.first != 0 ? piece.total : incoming.total - incoming.done;
    const bool continues = what.first != 0 || (incoming.active && piece.total == incoming.total);
    const bool in_pieces = what.kind == MessageKind::kPiece;
    const bool sane = continues && piece.bytes != 0 && piece.bytes <= left &&
                      piece.bytes <= place.arena_bytes &&
                      piece.offset <= place.arena_bytes - piece.bytes &&
                      piece.total <= place.arena_bytes * 1024 &&
                      (in_pieces || (what.first != 0 && piece.bytes == piece.total));
    if (!sane) {
        corrupt(peer, "receive: piece outside the arena");
        return Pulled::kEmpty;
    }
    // Before a receive asks for it its sender moves it to its stage: to keep it here would be one
    // copy more.
    const bool moves = what.kind == MessageKind::kOffered && piece.bytes <= kEager;
    if (moves && !is_asked(peer, candidate)) return Pulled::kLeft;
    if (what.first != 0 && !begin_message(peer, what, piece.total, candidate)) return Pulled::kLeft;
    const bool whole = piece.bytes == piece.total;
    if (!whole && incoming.receive != nullptr && !incoming.receive->listed) {
        list_receive(*incoming.receive, false);
    }
    MessageKind kind = what.kind;
    if (kind == MessageKind::kOffered) {
        const bool shares = piece.bytes >= kShareFrom;
        kind = claim_offer(line, what, shares ? shared_output(incoming) : kNoOffset);
    }
    if (kind == MessageKind::kMoved) {
        piece.offset = offer_in(line).place.load(std::memory_order_relaxed);
    }
    if (kind == MessageKind::kWithdrawn) return pull_withdrawn(peer, {}, nullptr);
    if (kind == MessageKind::kOffered || piece.offset > place.arena_bytes - piece.bytes) {
        corrupt(peer, "receive: no such offer");
        return Pulled::kEmpty;
    }
    return take_piece(peer, kind, piece, lock);
}

// Copies the bytes of a line that is of this kind now; the message that they are of has begun.
Mailbox::Pulled Mailbox::take_piece(int peer, MessageKind kind, const MessagePiece& piece,
                                    Lock& lock) {
    Incoming& incoming = in(peer);
    ChannelLine& line = line_from(peer, incoming.next.load(std::memory_order_relaxed));
    const bool unlocked = piece.bytes > kLockedCopy;
    const bool wanted = incoming.receive != nullptr || incoming.kept != nullptr;
    bool hit = false;
    Result<void> shared;
    std::uint64_t left_until = 0;
    incoming.busy = true;
    if (unlocked) lock.unlock();
    {
        const PoisonGuard guard;
        const std::byte* data = group_.place.arena + piece.offset;
        if (wanted) view().acquire(TouchPoint::kMessageRead, data, piece.bytes, peer);
        if (kind == MessageKind::kShared) {
            shared = copy_shared(peer, line, data, &left_until);
        } else {
            store_bytes(incoming, data, piece.bytes);
        }
        hit = guard.hit();
        if (hit) group_.poisoned(PoisonGuard::place());
    }
    FAULT_POINT("message.taken");
    if (unlocked) lock.lock();
    incoming.busy = false;
    if (!shared.ok()) {
        incoming.left_line = &line;
        incoming.left_until = left_until;
        // This receive has an error of its own, before the group's may end it.
        abandon(peer, shared.error());
    }
    // A sender that gave up has its buffer back, and broke the group before it said so: what was
    // copied since may be anything.
    const auto state = hit ? group_.barrier.check(-1) : group_.barrier.check_unbroken();
    if (!state.ok()) fail_all(state.error());
    if (failure_.has_value() || incoming.corrupt) {
        // Whatever ended the messages of this peer meanwhile left this one to us.
        abandon(peer, failure_.value_or(Error{Errc::kCorrupt, peer, "receive: corrupt channel"}));
        return Pulled::kEmpty;
    }
    // The same for a sender that left. The loads of the bytes stay before this one: x86 keeps the
    // order of loads, and check_unbroken() above that of the compiler.
    view().acquire(TouchPoint::kSentRead, &line, sizeof line, peer);
    const auto now = std::bit_cast<MessageWhat>(line.what.load(std::memory_order_acquire));
    if (now.kind == MessageKind::kWithdrawn) return pull_withdrawn(peer, {}, nullptr);
    advance(peer, 1);
    if (incoming.active && incoming.done == incoming.total) end_message(peer);
    return Pulled::kMoved;
}

// Where in the arena the message that comes in is wanted; kNoOffset: elsewhere, or not at all.
std::uint64_t Mailbox::shared_output(const Incoming& incoming) const noexcept {
    const Ticket* receive = incoming.receive;
    const bool shares = receive != nullptr && incoming.fits &&
                        inside(group_.place, receive->output, receive->bytes);
    return shares ? static_cast<std::uint64_t>(receive->output - group_.place.arena) : kNoOffset;
}

// Copies a message together with its sender, without the lock. After a failure the sender will have
// copied `left_until` chunks when it is through.
Result<void> Mailbox::copy_shared(int peer, ChannelLine& line, const std::byte* data,
                                  std::uint64_t* left_until) {
    Incoming& incoming = in(peer);
    const Ticket& receive = *incoming.receive;
    Barrier& barrier = group_.barrier;
    SharedCopy copy(line, SharedCopy::Side::kReceiver, receive.output, data, incoming.total,
                    past_cache(incoming.total));
    while (!barrier.broken() && copy.copy_next()) {
    }
    auto result = barrier.check_unbroken();
    // The sender is in the middle of a chunk: a receive that only checks whether something is
    // there, with a deadline that has passed, must not break the group for that.
    const TimePoint deadline = std::max(receive.deadline, Clock::now() + kSharedTimeout);
    if (result.ok()) result = copy.await_sender(barrier, peer, deadline);
    incoming.done = incoming.total;
    if (result.ok()) return {};
    // The caller is about to get its buffer back, into which the sender may still be copying.
    if (result.error().code == Errc::kTimeout) barrier.fail(Errc::kTimeout, peer);
    *left_until = copy.close();
    return result;
}

// What is copied and does not fit into the cache, for both directions of a pair, goes past it.
bool Mailbox::past_cache(Bytes bytes) const noexcept {
    return bytes * 4 >= group_.tuning.streaming_from;
}

// The bytes of a message, or of its rest, went with their sender.
Mailbox::Pulled Mailbox::pull_withdrawn(int peer, const MessageWhat& what, Ticket* candidate) {
    const Error error{Errc::kPeer, peer, "receive: sender left"};
    abandon(peer, error);
    Ticket* receive = what.first != 0 ? find_receive(peer, what.tag, candidate) : nullptr;
    if (receive != nullptr) end_receive(*receive, error, peer);
    advance(peer, 1);
    return Pulled::kMoved;
}

Mailbox::Ticket* Mailbox::find_receive(int peer, int tag, Ticket* candidate) const noexcept {
    Ticket* receive = asked_for(peer, tag);
    const bool is_candidate = receive == nullptr && candidate != nullptr && candidate->tag == tag;
    return is_candidate ? candidate : receive;
}

// Whether some receive waits for a message of this peer, be it a later one.
bool Mailbox::is_asked(int peer, const Ticket* candidate) const noexcept {
    return in(peer).wanted != 0 || any_wanted_ != 0 || candidate != nullptr;
}

// Finds what gets the message that starts here. False: it stays in the channel for now.
bool Mailbox::begin_message(int peer, const MessageWhat& what, Bytes total, Ticket* candidate) {
    Incoming& incoming = in(peer);
    Ticket* receive = find_receive(peer, what.tag, candidate);
    if (receive == nullptr) {
        const Bytes limit = is_asked(peer, candidate) ? kMaxKept : kMaxKeptUnasked;
        if (total > limit || incoming.kept_bytes > limit - total) return false;
        incoming.kept = std::make_unique<Kept>();
        incoming.kept->peer = peer;
        incoming.kept->tag = what.tag;
        // What a peer claims is not reserved at once.
        incoming.kept->bytes.reserve(std::min<Bytes>(total, kPiece));
        incoming.kept_bytes += total;
    }
    if (receive != nullptr && receive->indexed) {
        receive->indexed = false;
        asked_.erase(receive->peer, receive->tag, *receive);
        --(receive->peer == kAnyPeer ? any_wanted_ : in(receive->peer).wanted);
    }
    // One message of a peer at a time: end_message() and abandon() close it.
    FABRIC_DCHECK(!incoming.active && !incoming.busy);
    incoming.active = true;
    incoming.receive = receive;
    incoming.fits = receive != nullptr && receive->bytes == total;
    incoming.tag = what.tag;
    incoming.total = total;
    incoming.done = 0;
    return true;
}

// The receive for this peer and tag that was posted first, by name or for any peer.
Mailbox::Ticket* Mailbox::asked_for(int peer, int tag) const noexcept {
    Ticket* named = in(peer).wanted != 0 ? asked_.first(peer, tag) : nullptr;
    Ticket* any = any_wanted_ != 0 ? asked_.first(kAnyPeer, tag) : nullptr;
    if (named == nullptr || any == nullptr) return named != nullptr ? named : any;
    return named->order < any->order ? named : any;
}

void Mailbox::store_bytes(Incoming& incoming, const std::byte* data, Bytes bytes) {
    if (incoming.kept != nullptr) {
        incoming.kept->bytes.insert(incoming.kept->bytes.end(), data, data + bytes);
    } else if (incoming.receive != nullptr && incoming.fits && bytes != 0) {
        std::byte* output = incoming.receive->output + incoming.done;
        if (bytes <= kFirstLineBytes) {
            std::memcpy(output, data, bytes);
        } else {
            kernels::copy(output, data, bytes, false);
        }
    }
    incoming.done += bytes;
    FABRIC_DCHECK(incoming.done <= incoming.total);
}

// Gives `lines` lines, and what they name, back to their sender.
void Mailbox::advance(int peer, std::uint64_t lines) {
    const std::uint64_t taken = in(peer).next.load(std::memory_order_relaxed) + lines;
    in(peer).next.store(taken, std::memory_order_relaxed);
    const auto index = static_cast<std::size_t>(rank_) * static_cast<std::size_t>(world_) +
                       static_cast<std::size_t>(peer);
    ChannelTaken& line = group_.taken[index];
    // Release: our reads come before the sender writes there again.
    line.taken.store(taken, std::memory_order_release);
    view().publish(TouchPoint::kTaken, &line, sizeof line, peer);
    notify(peer);
}

void Mailbox::end_message(int peer) {
    Incoming& incoming = in(peer);
    FABRIC_DCHECK(incoming.active && incoming.done == incoming.total);
    incoming.active = false;
    if (Ticket* receive = std::exchange(incoming.receive, nullptr)) {
        end_receive(*receive,
                    incoming.fits ? Result<void>()
                                  : Result<void>(Error{Errc::kMismatch, peer, "receive: size"}),
                    peer);
        return;
    }
    if (incoming.kept == nullptr) return;
    Kept& kept = *incoming.kept.release();
    kept_.add(peer, kept.tag, kept);
    kept_of_any_.add(kAnyPeer, kept.tag, kept);
    all_kept_.push_back(kept);
    unsettled_.store(unsettled_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    // A receive for it may have been posted meanwhile, and must not get the next message.
    if (Ticket* receive = asked_for(peer, kept.tag)) (void)take_kept(*receive);
}

void Mailbox::abandon(int peer, const Error& error) {
    Incoming& incoming = in(peer);
    if (!incoming.active) return;
    incoming.active = false;
    if (incoming.kept != nullptr) incoming.kept_bytes -= incoming.total;
    incoming.kept.reset();
    if (Ticket* receive = std::exchange(incoming.receive, nullptr)) {
        end_receive(*receive, error, peer);
    }
}

// ---- How messages end that cannot complete

// The channel holds what no sender of ours writes: nothing more is believed of that peer.
void Mailbox::corrupt(int peer, const char* step) {
    Incoming& incoming = in(peer);
    if (incoming.corrupt) return;
    incoming.corrupt = true;
    const Error error{Errc::kCorrupt, peer, step};
    for (Ticket* receive = receives_.front(); receive != nullptr;) {
        Ticket* after = Tickets::after(*receive);
        // A receive from any peer ends, too: it may be the one that the garbage was for.
        const bool concerned = receive->peer == peer || receive->peer == kAnyPeer;
        if (concerned && !is_being_copied(*receive)) end_receive(*receive, error, -1);
        receive = after;
    }
    if (!incoming.busy) abandon(peer, error);
    for_each_send(peer, [&](Ticket& send) { end_send(send, error); });
}

// All sends to `peer` but one that is being copied; `function` may end them.
template <typename Function>
void Mailbox::for_each_send(int peer, Function function) {
    for (Tickets* chain : {&out(peer).queue, &out(peer).lent}) {
        for (Ticket* send = chain->front(); send != nullptr;) {
            Ticket* after = Tickets::after(*send);
            if (!is_being_copied(*send)) function(*send);
            send = after;
        }
    }
}

bool Mailbox::is_being_copied(const Ticket& ticket) const noexcept {
    if (ticket.is_send) {
        const Outgoing& outgoing = out_[static_cast<std::size_t>(ticket.peer)];
        if (outgoing.shared == &ticket) return true;
        return outgoing.busy && outgoing.queue.front() == &ticket;
    }
    if (ticket.indexed) return false;
    const auto has_it = [&](const Incoming& incoming) {
        return incoming.busy && incoming.receive == &ticket;
    };
    if (ticket.peer != kAnyPeer) return has_it(in(ticket.peer));
    return std::ranges::any_of(in_, has_it);
}

// The ticket is in no chain any more.
void Mailbox::complete(Ticket& ticket, const Result<void>& result, int sender) {
    // Once: its caller may be gone after it, and its buffer with it.
    FABRIC_DCHECK(!ticket.done && !ticket.listed);
    ticket.done = true;
    ticket.result = result;
    ticket.sender = sender;
    if (ticket.request != nullptr) {
        --posted_;
        ended_.emplace_back(&ticket);
    }
    // Its thread may be another one, and sleep on the bell.
    if (drivers_ > 1) notify(rank_);
}

void Mailbox::end_send(Ticket& send, const Error& error) {
    Outgoing& outgoing = out(send.peer);
    // Of its size it is over when it is in the stage, whatever becomes of the receiver.
    if (send.lent && move_offer(send)) return;
    (send.lent ? outgoing.lent : outgoing.queue).erase(send);
    // The receiver may be reading the caller's own buffer: the caller is about to get it back.
    if (send.lent) group_.barrier.fail(error.code, send.peer);
    complete(send, error, -1);
}

void Mailbox::unlist(Ticket& receive) noexcept {
    if (receive.indexed) {
        receive.indexed = false;
        asked_.erase(receive.peer, receive.tag, receive);
        --(receive.peer == kAnyPeer ? any_wanted_ : in(receive.peer).wanted);
    }
    if (!receive.listed) return;
    receive.listed = false;
    receives_.erase(receive);
    unsettled_.store(unsettled_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
}

// A receive whose deadline passes while its message comes in leaves it to the next one that asks
// for it: its sender may know already that all of it was sent. Beyond the limit of kept messages,
// too, for no peer chose this size. Of a message of another size nothing was stored.
void Mailbox::keep_part(const Ticket& receive) {
    for (int peer = 0; peer < world_; ++peer) {
        Incoming& incoming = in(peer);
        if (!incoming.active || incoming.receive != &receive || !incoming.fits) continue;
        incoming.kept = std::make_unique<Kept>();
        incoming.kept->peer = peer;
        incoming.kept->tag = incoming.tag;
        incoming.kept->bytes.reserve(incoming.total);
        incoming.kept->bytes.assign(receive.output, receive.output + incoming.done);
        incoming.kept_bytes += incoming.total;
        incoming.receive = nullptr;
    }
}

// The rest of a message whose receive fails before it is thrown away as it comes.
void Mailbox::end_receive(Ticket& receive, const Result<void>& result, int sender) {
    if (receive.indexed) {
        // No message has come for it.
    } else if (receive.peer != kAnyPeer) {
        if (in(receive.peer).receive == &receive) in(receive.peer).receive = nullptr;
    } else {
        for (Incoming& incoming : in_) {
            if (incoming.receive == &receive) incoming.receive = nullptr;
        }
    }
    unlist(receive);
    complete(receive, result, sender);
}

const Result<void>& Mailbox::checked(int peer) {
    auto& state = checked_[static_cast<std::size_t>(peer)];
    if (!state.has_value()) state = group_.barrier.check(peer);
    return *state;
}

// Whether `receive` can still complete. One that takes from any peer waits for a certain one once
// that one's message is coming in, and before that for any of the others that lives.
Result<void> Mailbox::check_source(const Ticket& receive) {
    if (receive.peer != kAnyPeer) return checked(receive.peer);
    Result<void> last;
    for (int peer = 0; peer < world_; ++peer) {
        if (peer == rank_) continue;
        if (in(peer).active && in(peer).receive == &receive) return checked(peer);
    }
    for (int peer = 0; peer < world_; ++peer) {
        if (peer == rank_) continue;
        last = checked(peer);
        if (last.ok()) break;
    }
    return last;
}

Result<void> Mailbox::verdict(const Ticket& ticket, TimePoint now, bool looks_at_peers) {
    if (ticket.deadline <= now) return Error{Errc::kTimeout, ticket.peer, "wait for a message"};
    if (!looks_at_peers) return {};
    return ticket.is_send ? checked(ticket.peer) : check_source(ticket);
}

// Ends what is past its deadline, and what waits for a rank that died or left.
void Mailbox::expire(TimePoint now, bool looks_at_peers, Lock& lock) {
    if (looks_at_peers) {
        checked_.assign(static_cast<std::size_t>(world_), std::nullopt);
        drain_ended_peers(lock);
    }
    next_deadline_ = TimePoint::max();
    for (Ticket* receive = receives_.front(); receive != nullptr;) {
        Ticket* after = Tickets::after(*receive);
        const auto state = verdict(*receive, now, looks_at_peers);
        if (!state.ok() && !is_being_copied(*receive)) {
            if (state.error().code == Errc::kTimeout) keep_part(*receive);
            end_receive(*receive, state, -1);
        } else {
            next_deadline_ = std::min(next_deadline_, receive->deadline);
        }
        receive = after;
    }
    for_each(sending_, 0, [&](int peer) {
        for_each_send(peer, [&](Ticket& send) {
            const auto state = verdict(send, now, looks_at_peers);
            if (!state.ok()) return end_send(send, state.error());
            next_deadline_ = std::min(next_deadline_, send.deadline);
        });
    });
}

// What a peer sent before it ended is there now that its end is seen, and counts.
void Mailbox::drain_ended_peers(Lock& lock) {
    Peers ended{};
    for (Ticket* receive = receives_.front(); receive != nullptr;
         receive = Tickets::after(*receive)) {
        if (check_source(*receive).ok()) continue;
        if (receive->peer == kAnyPeer) ended = everyone_;
        if (receive->peer != kAnyPeer) set(ended, receive->peer);
    }
    for_each(ended, 0, [&](int peer) {
        // Bounded: a ring has so many lines, and what ended writes no more.
        for (std::uint64_t line = 0; line <= lines_; ++line) {
            if (pull(peer, lock, nullptr) != Pulled::kMoved) break;
        }
    });
}

void Mailbox::fail_all(const Error& error) {
    if (!failure_.has_value()) failure_ = error;
    for (Ticket* receive = receives_.front(); receive != nullptr;) {
        Ticket* after = Tickets::after(*receive);
        if (!is_being_copied(*receive)) end_receive(*receive, error, -1);
        receive = after;
    }
    for (Incoming& incoming : in_) {
        // A receive that is not listed is that of the thread which is here.
        if (!incoming.busy) incoming.active = false;
    }
    for (int peer = 0; peer < world_; ++peer) {
        for_each_send(peer, [&](Ticket& send) { end_send(send, error); });
    }
}

}  // namespace fabricshm
