#include "libfabricshm/net/links.hpp"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/pause.hpp"

namespace fabricshm::net {

namespace {

// A word: 8 bits of rank, 4 of note, 20 of value.
constexpr int kValueBits = 20;
constexpr std::uint32_t kValueMask = (1u << kValueBits) - 1;
constexpr Bytes kLine = 64;
constexpr Bytes kLengthBytes = sizeof(std::uint64_t);

// A wait polls so long before it sleeps in the transport: about what a message takes to come.
constexpr Duration kLinkPolling = std::chrono::microseconds(200);
constexpr int kSliceMs = 5;
// Of a wait, before it looks at the time.
constexpr int kQuickTurns = 4;
// While something comes in every turn, only every so many look at the time.
constexpr int kTurnsPerLook = 64;
// Naps outside of the transport, which one thread has at a time, and for how long they are short.
constexpr Duration kNap = std::chrono::microseconds(50);
constexpr Duration kLongNap = std::chrono::microseconds(500);
constexpr Duration kShortWait = std::chrono::milliseconds(10);
constexpr Duration kPingEvery = std::chrono::milliseconds(50);
// In a wait that has become long all peers are asked so often in the time of a silence, and not
// only the one that is waited for: that one may itself wait for one that is gone. With 255 peers
// these are 510 words a second.
constexpr int kAskAllTimes = 2;
// For how long nothing may come of a peer that is gone until all that it had sent is here: reading
// it off this host's memory takes less than a millisecond. Others may go on sending.
constexpr Duration kRest = std::chrono::milliseconds(3);
constexpr Duration kMostRest = std::chrono::milliseconds(30);
// How long a connection may refuse a word to a peer before it counts as ended, where the provider
// can't say whether that peer is there.
constexpr Duration kRefused = std::chrono::milliseconds(250);
// How long the last bytes may take that a rank that leaves has sent.
constexpr Duration kGoodbye = std::chrono::seconds(1);
// How often the thread between operations looks for what came: more seldom when it found nothing
// for so many times. 50 times a second cost 0.3 % of a processor.
constexpr Duration kListenEvery = std::chrono::milliseconds(20);
constexpr Duration kListenSeldom = std::chrono::milliseconds(100);
constexpr int kQuietTurns = 50;
constexpr std::uint64_t kMessagesPerCredit = 32;

// Whether this says that there is no such process any more. What a network that is cut says does
// not, and neither does what our own end of the connection did.
bool is_death(int error) noexcept {
    return error == ECONNRESET || error == ECONNREFUSED || error == ENOTCONN || error == EPIPE ||
           error == ECONNABORTED || error == ESHUTDOWN;
}

constexpr unsigned bit_of(Note note) noexcept {
    return 1u << static_cast<unsigned>(note);
}

// Where a message at this position of a stream begins: it does not cross the ring's end.
Bytes place_of(Bytes ring_bytes, Bytes position, Bytes bytes) noexcept {
    const Bytes start = round_up(position, kLine);
    const Bytes in_ring = start % ring_bytes;
    return in_ring + bytes > ring_bytes ? start + ring_bytes - in_ring : start;
}

Bytes control_at(const LinksSpec& spec, int round) noexcept {
    return kDoorHead + spec.ring_bytes +
           static_cast<Bytes>(round) * round_up(spec.control_bytes + kLengthBytes, kLine);
}

Bytes piece_ring_at(const LinksSpec& spec) noexcept {
    return control_at(spec, kControlRounds);
}

std::uint32_t word_of(const LinksSpec& spec, Note note, std::uint32_t value) noexcept {
    return static_cast<std::uint32_t>(spec.rank) << 24 |
           static_cast<std::uint32_t>(note) << kValueBits | (value & kValueMask);
}

// While it lives one more thread waits.
class Waiter {
  public:
    explicit Waiter(std::atomic<int>& count) noexcept : count_(count) { ++count_; }
    ~Waiter() { --count_; }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;
    bool alone() const noexcept { return count_.load(std::memory_order_relaxed) == 1; }

  private:
    std::atomic<int>& count_;
};

// A peer's word on why the group is broken, as in failure_; 0: it is none that a rank would say.
std::uint64_t failure_in(std::uint32_t value, std::size_t ranks) noexcept {
    const std::uint64_t rank = value & 0x1ff;
    const std::uint64_t code = value >> 9;
    const bool known = code != 0 && code <= static_cast<std::uint64_t>(Errc::kChanged);
    return known && rank <= ranks ? code << 32 | rank : 0;
}

Error error_in(std::uint64_t failure) noexcept {
    return Error{static_cast<Errc>(failure >> 32),
                 static_cast<std::int32_t>(static_cast<std::uint32_t>(failure)) - 1, "peer"};
}

bool gives_up(std::uint64_t failure, int rank) noexcept {
    const Error error = error_in(failure);
    return error.code == Errc::kPeer && error.detail == rank;
}

}  // namespace

Links::Links(LinksSpec spec, std::unique_ptr<Transport> transport, Check check, OnAbort on_abort)
    : spec_(std::move(spec)),
      transport_(std::move(transport)),
      check_(std::move(check)),
      on_abort_(std::move(on_abort)) {
    if (!on_abort_) on_abort_ = [](const Error&, int) {};
    FABRIC_CHECK(spec_.ring_bytes % (4 * kLine) == 0 && spec_.piece_ring_bytes % kLine == 0);
    FABRIC_CHECK(spec_.piece_ring_bytes / kLine <= kValueMask);
    for (std::size_t peer = 0; peer < spec_.remote.size(); ++peer) {
        peers_.push_back(std::make_unique<Peer>());
    }
    begin();
    server_.push([this] { serve(); });
}

Links::~Links() {
    begin();
    const TimePoint until = Clock::now() + kGoodbye;
    {
        const std::lock_guard lock(mutex_);
        closing_ = true;
        for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
            if (spec_.remote[static_cast<std::size_t>(peer)]) owe(peer, Note::kLeave);
        }
    }
    FAULT_POINT("hosts.leaving");
    // Bytes that a peer has not fetched from the connection would be lost with it.
    const auto over = [this] {
        for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
            const Peer& it = *peers_[peer];
            if (!spec_.remote[peer] || it.lost || !it.greeted) continue;
            // It goes once it has had one of these of this rank, and takes no more from then on.
            const bool has_left = (it.owes & bit_of(Note::kLeave)) == 0;
            const bool has_answered = it.leaving && (it.owes & bit_of(Note::kLeft)) == 0;
            if (!(it.left || it.leaving) || !(has_left || has_answered)) return false;
        }
        return notes_ == 0;
    };
    while (Clock::now() < until) {
        const std::lock_guard lock(mutex_);
        if (over()) break;
        progress(1);
    }
    {
        const std::lock_guard lock(ending_mutex_);
        ending_ = true;
    }
    ending_changed_.notify_all();
    transport_->wake();
}

void Links::begin() noexcept {
    // Relaxed: a hint to the thread below, which does no harm in an operation.
    active_.fetch_add(1, std::memory_order_relaxed);
}

void Links::end() noexcept {
    active_.fetch_sub(1, std::memory_order_relaxed);
}

// It does not sleep in the transport: a thread that sleeps there has the lock, and tcp;ofi_rxm does
// not wake it for fi_cq_signal(). The next operation then waited for the end of the sleep.
void Links::serve() {
    int quiet = 0;
    std::unique_lock ending(ending_mutex_);
    while (!ending_) {
        ending_changed_.wait_for(ending, quiet < kQuietTurns ? kListenEvery : kListenSeldom);
        ++quiet;
        if (active_.load(std::memory_order_relaxed) != 0) quiet = 0;
        ending.unlock();
        for (int came = 1; came > 0 && active_.load(std::memory_order_relaxed) == 0;) {
            const std::lock_guard lock(mutex_);
            came = progress(0);
            if (came > 0) quiet = 0;
        }
        ending.lock();
    }
}

Errc Links::post(int peer, Note note, std::uint32_t value) noexcept {
    const Errc code = transport_->write(peer, nullptr, 0, 0, word_of(spec_, note, value), &notes_);
    if (code == Errc::kPeer) lose(peer, false);
    return code;
}

void Links::owe(int peer, Note note) noexcept {
    at(peer).owes |= bit_of(note);
    owing_ = true;
}

// What could not be sent when it was due, since the connection was busy.
void Links::pay() noexcept {
    if (!owing_) return;
    owing_ = false;
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
        Peer& to = at(peer);
        for (const Note note : {Note::kHello, Note::kCredit, Note::kPieceCredit, Note::kStarved,
                                Note::kPing, Note::kLeft, Note::kAbort, Note::kLeave}) {
            if ((to.owes & bit_of(note)) == 0) continue;
            // It says that all before was consumed, which the credit in front of it proves.
            if (note == Note::kStarved && (to.owes & bit_of(Note::kCredit)) != 0) continue;
            std::uint32_t value = 0;
            if (note == Note::kCredit) value = static_cast<std::uint32_t>(to.steps.taken);
            if (note == Note::kPieceCredit) value = static_cast<std::uint32_t>(to.pieces.taken);
            if (note == Note::kStarved) value = to.starving_mark;
            if (note == Note::kPing) value = 1;
            if (note == Note::kAbort) {
                const std::uint64_t failure = failure_.load(std::memory_order_relaxed);
                value = static_cast<std::uint32_t>(failure >> 32) << 9 |
                        (static_cast<std::uint32_t>(failure) & 0x1ff);
            }
            if (to.lost || post(peer, note, value) != Errc::kBusy) to.owes &= ~bit_of(note);
        }
        if (to.owes != 0) owing_ = true;
    }
}

void Links::acknowledge(int peer, Note credit) noexcept {
    Peer& from = at(peer);
    const bool steps = credit == Note::kCredit;
    Stream& stream = steps ? from.steps : from.pieces;
    const Bytes ring = steps ? spec_.ring_bytes : spec_.piece_ring_bytes;
    const bool enough = stream.read_at - stream.acknowledged_at >= ring / 4 ||
                        stream.taken - stream.acknowledged >= kMessagesPerCredit;
    if (!enough || from.leaving) return;
    stream.acknowledged = stream.taken;
    stream.acknowledged_at = stream.read_at;
    owe(peer, credit);
    pay();
}

void Links::lose(int peer, bool dead) noexcept {
    Peer& it = at(peer);
    if (dead) it.dead = true;
    if (it.lost.exchange(true)) return;
    transport_->fence(peer);
    if (closing_ || it.leaving) return;
    const auto rank = static_cast<std::uint64_t>(peer) + 1;
    std::uint64_t none = 0;
    failure_.compare_exchange_strong(none, static_cast<std::uint64_t>(Errc::kPeer) << 32 | rank);
}

void Links::Stream::credit(std::uint32_t value) noexcept {
    const std::uint64_t more = (value - static_cast<std::uint32_t>(credited)) & kValueMask;
    for (std::uint64_t i = 0; i < more && !ends.empty(); ++i) {
        free_from = ends.front();
        ends.pop_front();
        ++credited;
    }
}

void Links::handle_word(std::uint32_t word) noexcept {
    const auto peer = static_cast<int>(word >> 24);
    // From the network: a rank that is none, or none that may write here, is ignored.
    if (static_cast<std::size_t>(peer) >= peers_.size() ||
        !spec_.remote[static_cast<std::size_t>(peer)]) {
        return;
    }
    Peer& from = at(peer);
    // It is fenced: the bytes that belong to this word may have gone elsewhere. A word that was
    // handled before has all of its bytes here, since they come first.
    if (from.lost) return;
    const std::uint32_t value = word & kValueMask;
    // Relaxed: a time, for the report of a failure alone.
    from.heard_ns.store(monotonic_ns(), std::memory_order_relaxed);
    switch (static_cast<Note>(word >> kValueBits & 15)) {
        case Note::kData:
            from.steps.marks.push_back(value);
            return;
        case Note::kPiece:
            from.pieces.marks.push_back(value);
            pieces_.fetch_add(1, std::memory_order_relaxed);
            return;
        case Note::kCredit:
            return from.steps.credit(value);
        case Note::kPieceCredit:
            return from.pieces.credit(value);
        case Note::kStarved:
            // What is on its way there ends that wait.
            from.starved = from.steps.ends.empty();
            from.starved_mark = value;
            return;
        case Note::kHello:
            if (!from.greeted && !spec_.greets[static_cast<std::size_t>(peer)]) {
                owe(peer, Note::kHello);
            }
            from.greeted = true;
            return;
        case Note::kAbort: {
            const std::uint64_t failure = failure_in(value, peers_.size());
            std::uint64_t none = 0;
            if (gives_up(failure, spec_.rank)) given_up_by_ = peer;
            const bool is_first = failure != 0 && failure_.compare_exchange_strong(none, failure);
            if (is_first) on_abort_(error_in(failure), peer);
            return;
        }
        case Note::kLeave:
            from.leaving = true;
            owe(peer, Note::kLeft);
            return;
        case Note::kLeft:
            from.left = true;
            return;
        case Note::kControl:
            from.controls |= 1u << (value % kControlRounds);
            return;
        case Note::kPing:
            if (value == 0) owe(peer, Note::kPing);
            return;
    }
}

int Links::progress(int wait_ms) noexcept {
    Event events[32];
    pay();
    const int count = transport_->poll(events, 32, wait_ms);
    for (int i = 0; i < count; ++i) {
        const Event& event = events[i];
        if (event.what == Event::What::kArrived) handle_word(event.word);
        if (event.what == Event::What::kLost) lose(event.peer, is_death(event.error));
    }
    if (count > 0) pay();
    return count;
}

// The answer says that the peer lives; the question finds out whether its connection does.
void Links::ping(int peer) noexcept {
    Peer& it = at(peer);
    if (it.lost || it.leaving) return;
    if (it.starving) {
        it.steps.acknowledged = it.steps.taken;
        it.steps.acknowledged_at = it.steps.read_at;
        owe(peer, Note::kCredit);
        owe(peer, Note::kStarved);
        pay();
    }
    const TimePoint now = Clock::now();
    if (post(peer, Note::kPing, 0) != Errc::kBusy) {
        it.busy_since = TimePoint{};
        return;
    }
    if (it.busy_since == TimePoint{}) it.busy_since = now;
    // Providers on TCP report the end of a connection to writes on their way alone. To others they
    // say "busy" for as long as they try to connect again. A peer that lives may take no bytes for
    // a while; so it is asked where it takes connections.
    const Presence found = transport_->presence(peer);
    const bool is_gone = found == Presence::kGone;
    const bool refuses = it.greeted && now - it.busy_since >= kRefused;
    if (!is_gone && !(found == Presence::kUnknown && refuses)) return;
    // What it had sent before its end is in this host's buffers, and counts: its goodbye above all.
    // Nothing says which word was the last; so until none has come for a while.
    TimePoint came = now;
    for (TimePoint time = now; time - came < kRest && time - now < kMostRest; time = Clock::now()) {
        if (progress(0) > 0) came = time;
    }
    if (!it.leaving) lose(peer, is_gone);
}

// `since`: the beginning of the wait. `listened`: before the last look for what has come.
Result<void> Links::reason_to_stop(int peer, bool is_over, TimePoint since, TimePoint listened,
                                   TimePoint deadline, const char* step) {
    if (const auto failed = failure()) return *failed;
    if (is_over) return Error{Errc::kPeer, peer, step};
    FABRIC_TRY_VOID(check_());
    const TimePoint now = Clock::now();
    if (now < deadline) return {};
    // By then, and not by now: where this thread stood still since, the answers are unread.
    const auto silent = [&](int other) {
        return !at(other).leaving && at(other).silent(listened, spec_.silence);
    };
    if (silent(peer)) return Error{Errc::kPeer, peer, step};
    // It answers, so it only is late; so is one that has not come yet. What it waits for itself may
    // be a rank that does not: then that one is the cause.
    const bool all_asked = now - since >= spec_.silence + spec_.silence / kAskAllTimes;
    for (int other = 0; all_asked && other < static_cast<int>(peers_.size()); ++other) {
        const bool is_remote = spec_.remote[static_cast<std::size_t>(other)];
        if (is_remote && silent(other)) return Error{Errc::kPeer, other, step};
    }
    return Error{Errc::kTimeout, peer, step};
}

bool Links::Peer::silent(TimePoint now, Duration silence) const noexcept {
    // Relaxed: a time, for the report of a failure alone.
    const std::int64_t heard = heard_ns.load(std::memory_order_relaxed);
    return heard != 0 && std::chrono::nanoseconds(monotonic_ns(now) - heard) >= silence;
}

template <typename Done>
Result<void> Links::wait(int peer, TimePoint deadline, const char* step, const Done& done,
                         bool while_broken) {
    TimePoint since{};
    TimePoint pinged{};
    TimePoint asked{};  // all of them
    int wait_ms = 0;
    const Waiter waiter(waiters_);
    for (int turn = 0;; ++turn) {
        const bool alone = waiter.alone();
        bool is_over = false;
        TimePoint listened{};
        {
            const std::lock_guard lock(mutex_);
            if (done()) return {};
            if (turn >= kQuickTurns) listened = Clock::now();
            const int came = progress(alone ? wait_ms : 0);
            if (done()) return {};
            // Here: once the lock is free another thread may take the peer's last message and its
            // goodbye, one after the other.
            is_over = at(peer).lost || at(peer).leaving;
            // A peer that never stops sending must not keep this one from its deadline.
            if (came > 0 && turn % kTurnsPerLook != 0) continue;
        }
        if (!alone && wait_ms != 0) nap(since);
        if (turn < kQuickTurns) continue;
        const TimePoint now = Clock::now();
        if (since == TimePoint{}) asked = pinged = since = now;
        if (now - since < kLinkPolling) {
            // The peers of this host may need the processor.
            ::sched_yield();
            continue;
        }
        wait_ms = kSliceMs;
        if (while_broken) {
            if (at(peer).lost) return Error{Errc::kPeer, peer, step};
            if (now >= deadline) return Error{Errc::kTimeout, peer, step};
        } else {
            FABRIC_TRY_VOID(reason_to_stop(peer, is_over, since, listened, deadline, step));
        }
        if (now - pinged < kPingEvery) continue;
        pinged = now;
        const std::lock_guard lock(mutex_);
        ping(peer);
        if (now - asked < spec_.silence / kAskAllTimes) continue;
        asked = now;
        for (int other = 0; other < static_cast<int>(peers_.size()); ++other) {
            // One that has not greeted is connected to by greet() alone.
            const bool is_there = at(other).greeted && !at(other).lost && !at(other).leaving;
            if (is_there && other != peer) (void)post(other, Note::kPing, 0);
        }
    }
}

Result<void> Links::greet(TimePoint deadline) {
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
        const auto index = static_cast<std::size_t>(peer);
        if (!spec_.remote[index] || !spec_.greets[index]) continue;
        const std::lock_guard lock(mutex_);
        owe(peer, Note::kHello);
    }
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
        if (!spec_.remote[static_cast<std::size_t>(peer)]) continue;
        FABRIC_TRY_VOID(wait(peer, deadline, "connect", [&] {
            return at(peer).greeted && (at(peer).owes & bit_of(Note::kHello)) == 0;
        }));
    }
    return {};
}

Result<void> Links::send(int peer, const std::byte* from, Bytes bytes, std::uint32_t mark,
                         std::atomic<int>& pending, TimePoint deadline) {
    FABRIC_CHECK(bytes <= max_message());
    Peer& to = at(peer);
    Stream& stream = to.steps;
    const Bytes place = place_of(spec_.ring_bytes, stream.write_at, bytes);
    bool sent = false;
    return wait(peer, deadline, "send", [&] {
        if (sent || to.lost || place + bytes - stream.free_from > spec_.ring_bytes) return sent;
        const Errc code = transport_->write(peer, from, bytes, kDoorHead + place % spec_.ring_bytes,
                                            word_of(spec_, Note::kData, mark), &pending);
        if (code == Errc::kPeer) lose(peer, false);
        if (code != Errc::kOk) return false;
        stream.write_at = place + bytes;
        stream.ends.push_back(stream.write_at);
        to.starved = false;
        sent = true;
        return true;
    });
}

Result<const std::byte*> Links::receive(int peer, Bytes bytes, std::uint32_t mark,
                                        TimePoint deadline) {
    Peer& from = at(peer);
    Stream& stream = from.steps;
    bool matches = true;
    FABRIC_TRY_VOID(wait(peer, deadline, "receive", [&] {
        from.starving = stream.marks.empty();
        from.starving_mark = mark & kValueMask;
        if (from.starving) {
            // It has all that this rank sent, and waits for more: for that of another operation it
            // would wait until its deadline.
            matches = !from.starved || from.starved_mark == from.starving_mark;
            return !matches;
        }
        // Said too late it would be about another wait.
        from.owes &= ~bit_of(Note::kStarved);
        matches = stream.marks.front() == from.starving_mark;
        return true;
    }));
    if (!matches) return Error{Errc::kMismatch, peer, "receive"};
    const Bytes place = place_of(spec_.ring_bytes, stream.read_at, bytes);
    stream.read_at = place + bytes;
    return transport_->memory(peer) + kDoorHead + place % spec_.ring_bytes;
}

void nap(TimePoint since) noexcept {
    const bool is_long = Clock::now() - since > kShortWait;
    const timespec time{0, std::chrono::nanoseconds(is_long ? kLongNap : kNap).count()};
    ::nanosleep(&time, nullptr);
}

void Links::release(int peer) {
    const std::lock_guard lock(mutex_);
    Stream& from = at(peer).steps;
    from.marks.pop_front();
    ++from.taken;
    acknowledge(peer, Note::kCredit);
}

Result<void> Links::settle(const std::atomic<int>& pending, TimePoint deadline) {
    // Acquire, against the release of the write's end: the bytes may be changed from here on.
    const auto done = [&] { return pending.load(std::memory_order_acquire) == 0; };
    if (done()) return {};
    // Which peer has the bytes is not known; any that is there will do for the report. When it
    // leaves meanwhile, another one may have them.
    int last = -1;
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
        if (!spec_.remote[static_cast<std::size_t>(peer)]) continue;
        last = peer;
        if (at(peer).leaving) continue;
        const auto settled = wait(peer, deadline, "send", done);
        if (settled.ok() || !at(peer).leaving || failure()) return settled;
    }
    if (last < 0) return Error{Errc::kPeer, -1, "send"};
    // None is left that could want them: only the end of the write has not been read yet.
    return wait(last, std::min(deadline, deadline_from_now(kGoodbye)), "send", done, true);
}

Result<void> Links::send_control(int peer, int round, const std::vector<std::byte>& text,
                                 TimePoint deadline) {
    FABRIC_CHECK(text.size() <= spec_.control_bytes);
    // Kept: the transport has the bytes until the write ends, which after a failure may be late.
    Control& control = controls_.emplace_back();
    const std::uint64_t length = text.size();
    control.framed.resize(kLengthBytes + text.size());
    std::memcpy(control.framed.data(), &length, kLengthBytes);
    std::copy(text.begin(), text.end(), control.framed.begin() + kLengthBytes);
    if (transport_->lend(control.framed.data(), control.framed.size()) != Errc::kOk) {
        return Error{Errc::kNoMemory, 0, "register memory"};
    }
    const auto word = word_of(spec_, Note::kControl, static_cast<std::uint32_t>(round));
    bool posted = false;
    const auto done = [&] {
        if (!posted && !at(peer).lost) {
            const Errc code = transport_->write(peer, control.framed.data(), control.framed.size(),
                                                control_at(spec_, round), word, &control.pending);
            if (code == Errc::kPeer) lose(peer, false);
            posted = code == Errc::kOk;
        }
        return posted && control.pending.load(std::memory_order_acquire) == 0;
    };
    return wait(peer, deadline, "send", done, true);
}

std::optional<std::vector<std::byte>> Links::control_of(int peer, int round) {
    {
        const std::lock_guard lock(mutex_);
        // Also where a text is there: another one may come in its place.
        const bool there = (at(peer).controls >> round & 1) != 0;
        if (progress(there ? 0 : 1) == 0 && !there) return std::nullopt;
        if ((at(peer).controls >> round & 1) == 0) return std::nullopt;
    }
    const std::byte* box = transport_->memory(peer) + control_at(spec_, round);
    std::uint64_t length = 0;
    std::memcpy(&length, box, kLengthBytes);
    if (length > spec_.control_bytes) return std::nullopt;
    return std::vector<std::byte>(box + kLengthBytes, box + kLengthBytes + length);
}

void Links::spread(Errc code, int rank) noexcept {
    const auto reason =
        static_cast<std::uint64_t>(code) << 32 | static_cast<std::uint64_t>(rank + 1);
    std::uint64_t none = 0;
    failure_.compare_exchange_strong(none, reason);
    const std::lock_guard lock(mutex_);
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
        if (!spec_.remote[static_cast<std::size_t>(peer)] || at(peer).leaving) continue;
        owe(peer, Note::kAbort);
    }
    pay();
}

std::optional<Error> Links::failure() const noexcept {
    // Acquire, against the exchange that set it: what its thread knew of the peer comes with it.
    const std::uint64_t failure = failure_.load(std::memory_order_acquire);
    if (failure == 0) return std::nullopt;
    if (!gives_up(failure, spec_.rank)) return error_in(failure);
    return Error{Errc::kPeer, given_up_by_, kGivenUp};
}

void Links::probe(int peer) noexcept {
    const std::lock_guard lock(mutex_);
    ping(peer);
}

void Links::condemn(int peer) noexcept {
    lose(peer, true);
    transport_->wake();
}

// ---- Pieces of messages

bool PieceLinks::send(int peer, const std::byte* from, Bytes bytes, std::atomic<int>& pending) {
    const std::lock_guard lock(links_.mutex_);
    Links::Peer& to = links_.at(peer);
    Links::Stream& stream = to.pieces;
    const LinksSpec& spec = links_.spec_;
    const Bytes ring = spec.piece_ring_bytes;
    const Bytes place = place_of(ring, stream.write_at, bytes);
    if (to.lost || to.leaving || place + bytes - stream.free_from > ring) return false;
    const auto line = static_cast<std::uint32_t>(place % ring / kLine);
    const Errc code =
        links_.transport_->write(peer, from, bytes, piece_ring_at(spec) + place % ring,
                                 word_of(spec, Note::kPiece, line), &pending);
    if (code == Errc::kPeer) links_.lose(peer, false);
    if (code != Errc::kOk) return false;
    stream.write_at = place + bytes;
    stream.ends.push_back(stream.write_at);
    return true;
}

std::span<const std::byte> PieceLinks::next(int peer) {
    const std::lock_guard lock(links_.mutex_);
    const Links::Stream& stream = links_.at(peer).pieces;
    if (stream.marks.empty()) return {};
    const Bytes ring = links_.spec_.piece_ring_bytes;
    // Of another process: what is behind the ring is not shown, and too short is an error there.
    const Bytes begin = std::min(static_cast<Bytes>(stream.marks.front()) * kLine, ring - kLine);
    return {links_.transport_->memory(peer) + piece_ring_at(links_.spec_) + begin,
            static_cast<std::size_t>(ring - begin)};
}

void PieceLinks::release(int peer, Bytes bytes) {
    const std::lock_guard lock(links_.mutex_);
    Links::Stream& from = links_.at(peer).pieces;
    from.marks.pop_front();
    links_.pieces_.fetch_sub(1, std::memory_order_relaxed);
    ++from.taken;
    from.read_at += round_up(bytes, kLine);
    links_.acknowledge(peer, Note::kPieceCredit);
}

bool PieceLinks::drive(bool may_sleep) {
    const Waiter waiter(links_.waiters_);
    const bool alone = waiter.alone();
    const std::lock_guard lock(links_.mutex_);
    if (links_.progress(may_sleep && alone ? kSliceMs : 0) > 0) return true;
    return may_sleep && alone;
}

Result<void> PieceLinks::well() {
    if (const auto failed = links_.failure()) return *failed;
    return links_.check_();
}

}  // namespace fabricshm::net
