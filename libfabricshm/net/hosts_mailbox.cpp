#include "libfabricshm/net/hosts_mailbox.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/copy.hpp"
#include "libfabricshm/base/check.hpp"

namespace fabricshm::net {

namespace {

// A thread that waits polls so long before it sleeps.
constexpr Duration kPolling = std::chrono::microseconds(200);
// How often the clock is read for all that waits, and connections are asked whether they are there.
constexpr Duration kLookEvery = std::chrono::milliseconds(2);
constexpr Duration kProbeEvery = std::chrono::milliseconds(50);

constexpr Bytes kHead = kDoorHead;
// What a peer claims to send is not reserved at once.
constexpr Bytes kReserve = 1 * kMiB;

}  // namespace

HostsMailbox::HostsMailbox(const HostsPlan& plan, int rank, Links& links, Group* local, Names names)
    : plan_(plan),
      rank_(rank),
      links_(links),
      local_(local),
      names_(std::move(names)),
      in_(static_cast<std::size_t>(plan.world())) {
    for (int peer = 0; peer < plan.world(); ++peer) out_.push_back(std::make_unique<Outgoing>());
}

Result<std::unique_ptr<HostsMailbox>> HostsMailbox::make(const HostsPlan& plan, int rank,
                                                         Links& links, Group* local, Names names) {
    std::unique_ptr<HostsMailbox> made(
        new HostsMailbox(plan, rank, links, local, std::move(names)));
    constexpr Bytes kRoom = kHead + kPiece;
    Bytes bytes = 0;
    made->for_each_peer([&](int) { bytes += kRoom; });
    // Not touched before a peer is sent to.
    made->rooms_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    if (links.transport().lend(made->rooms_.get(), bytes) != Errc::kOk) {
        return Error{Errc::kNoMemory, 0, "register memory"};
    }
    std::byte* next = made->rooms_.get();
    made->for_each_peer([&](int peer) {
        made->out(peer).room = next;
        next += kRoom;
    });
    return made;
}

// ---- Calls

HostsMailbox::TicketPtr HostsMailbox::ticket_of(const Call& call) {
    auto ticket = std::make_shared<Ticket>();
    ticket->is_send = call.kind == Kind::kSend;
    ticket->peer = call.peer;
    ticket->tag = call.tag;
    ticket->input = call.input;
    ticket->output = call.output;
    ticket->bytes = call.count * kernels::size_of(call.dtype);
    ticket->deadline = call.deadline;
    ticket->request = std::make_shared<PendingRequest>();
    return ticket;
}

Result<void> HostsMailbox::run(const Call& call) {
    const TicketPtr ticket = ticket_of(call);
    add(ticket);
    if (!ticket->request->done()) drive(ticket.get());
    return ticket->request->wait();
}

std::shared_ptr<PendingRequest> HostsMailbox::post(const Call& call) {
    const TicketPtr ticket = ticket_of(call);
    add(ticket);
    return ticket->request;
}

void HostsMailbox::finish_all() {
    drive(nullptr);
}

void HostsMailbox::stop() noexcept {
    std::unique_lock lock(mutex_);
    if (!failure_.has_value()) failure_ = Error{Errc::kBroken, 0, "message"};
    look_at_clock(Clock::now());
    flush(lock);
}

// Once: what came is found by a receive without a timeout, too.
void HostsMailbox::add(const TicketPtr& ticket) {
    links_.begin();
    (void)links_.drive(false);
    {
        std::unique_lock lock(mutex_);
        ++open_;
        if (ticket->is_send) {
            out(ticket->peer).queue.push_back(ticket);
        } else if (!take_kept(ticket)) {
            receives_.push_back(ticket);
            if (ticket->peer == kAnyPeer && local_ != nullptr) ask_pool(*ticket);
        }
        (void)step();
        // What failed before ends at once, and what had come before that is received.
        look_at_clock(Clock::now());
        flush(lock);
    }
    links_.end();
}

void HostsMailbox::ask_pool(Ticket& ticket) {
    Call call;
    call.kind = Kind::kRecv;
    call.dtype = kernels::DType::kU8;
    call.peer = kAnyPeer;
    call.tag = ticket.tag;
    call.output = ticket.output;
    call.count = ticket.bytes;
    call.deadline = ticket.deadline;
    auto started = local_->start(std::move(call));
    // Of a pool's group that is broken the clock hears.
    if (started.ok()) ticket.local = std::move(started).value();
}

void HostsMailbox::drive(const Ticket* ticket) {
    links_.begin();
    TimePoint since{};
    while (true) {
        bool moved = false;
        bool asks_pool = false;
        {
            std::unique_lock lock(mutex_);
            moved = step();
            const TimePoint now = Clock::now();
            if (now - looked_ >= kLookEvery) look_at_clock(now);
            asks_pool = std::ranges::any_of(
                receives_, [](const TicketPtr& it) { return it->local != nullptr; });
            flush(lock);
            if (ticket == nullptr ? open_ == 0 : ticket->request->done()) break;
        }
        if (moved) since = TimePoint{};
        const TimePoint now = Clock::now();
        if (since == TimePoint{}) since = now;
        const bool polls = now - since < kPolling;
        // The pool rings no bell of the network: what may come from there is asked for. And an
        // operation would wait for a thread that sleeps in the transport for what was started.
        const bool may_sleep = !polls && !asks_pool && ticket != nullptr;
        if (links_.drive(may_sleep) || moved) continue;
        if (polls) {
            ::sched_yield();
        } else {
            nap(since);
        }
    }
    links_.end();
}

// Without the lock, as a callback may start the next message.
void HostsMailbox::flush(std::unique_lock<std::mutex>& lock) {
    const std::vector<Ended> ended = std::exchange(ended_, {});
    lock.unlock();
    for (const Ended& one : ended) {
        one.request->complete(one.result.ok() ? one.result : names_(one.result.error()), one.peer);
    }
    lock.lock();
}

void HostsMailbox::end(const TicketPtr& ticket, const Result<void>& result, int peer) {
    --open_;
    ended_.push_back({ticket->request, result, peer});
}

bool HostsMailbox::step() {
    bool moved = collect_from_pool();
    for_each_peer([&](int peer) {
        moved = push(peer) || moved;
        if (links_.has_any()) moved = pull(peer) || moved;
    });
    return moved;
}

// ---- Sending

// The next piece, in memory that the provider may read. False: there is none.
bool HostsMailbox::stage(Outgoing& out) {
    if (out.staged != 0) return true;
    PieceHead head;
    const std::byte* from = nullptr;
    if (out.withdraws) {
        head.withdrawn = 1;
    } else if (!out.queue.empty()) {
        const Ticket& send = *out.queue.front();
        if (send.begun && send.sent == send.bytes) return false;
        head.total = send.bytes;
        head.offset = send.sent;
        head.bytes = std::min(kPiece, send.bytes - send.sent);
        head.tag = send.tag;
        from = send.input + send.sent;
    } else {
        return false;
    }
    std::memcpy(out.room, &head, sizeof head);
    if (head.bytes != 0) kernels::copy(out.room + kHead, from, head.bytes, false);
    out.staged = kHead + head.bytes;
    out.staged_last = head.offset + head.bytes;
    return true;
}

bool HostsMailbox::push(int peer) {
    Outgoing& to = out(peer);
    bool moved = false;
    while (to.withdraws || !to.queue.empty()) {
        // Acquire, against the release of the write's end: the room may be written again.
        if (to.pending.load(std::memory_order_acquire) != 0) return moved;
        if (!stage(to)) {
            // All of it is on its way, and none of it is read from here any more.
            end(to.queue.front(), {}, -1);
            to.queue.pop_front();
            moved = true;
            continue;
        }
        if (!links_.send(peer, to.room, to.staged, to.pending)) return moved;
        moved = true;
        to.staged = 0;
        if (std::exchange(to.withdraws, false)) continue;
        to.queue.front()->begun = true;
        to.queue.front()->sent = to.staged_last;
    }
    return moved;
}

void HostsMailbox::end_send(int peer, const Error& error) {
    Outgoing& to = out(peer);
    const TicketPtr send = to.queue.front();
    to.queue.pop_front();
    // A piece that was not sent is not; one that the provider has stays until it has sent it.
    if (!to.withdraws) to.staged = 0;
    to.withdraws = to.withdraws || (send->begun && send->sent != send->bytes);
    end(send, error, -1);
}

// ---- Receiving

bool HostsMailbox::pull(int peer) {
    Incoming& from = in(peer);
    bool moved = false;
    while (!from.corrupt) {
        const std::span<const std::byte> piece = links_.next(peer);
        if (piece.empty()) return moved;
        PieceHead head;
        std::memcpy(&head, piece.data(), sizeof head);
        // Copied, and believed only as far as it is checked: the peer may write it at any time.
        const bool fits = head.bytes <= kPiece && kHead + head.bytes <= piece.size() &&
                          head.total <= std::numeric_limits<std::uint64_t>::max() / 2 &&
                          head.bytes <= head.total;
        if (!fits || (head.offset != 0 && !from.active)) {
            corrupt(peer);
            return true;
        }
        if (head.withdrawn != 0) {
            abandon(peer, {Errc::kPeer, peer, "receive: the sender gave up"});
        } else {
            if (!from.active && !begin_message(peer, head)) return moved;
            const bool next = head.offset == from.done && head.total == from.total &&
                              head.bytes <= from.total - from.done &&
                              (head.bytes != 0 || from.total == 0);
            if (!next) {
                corrupt(peer);
                return true;
            }
            const std::byte* data = piece.data() + kHead;
            if (from.is_kept) {
                from.kept.insert(from.kept.end(), data, data + head.bytes);
            } else if (from.receive != nullptr && from.fits && head.bytes != 0) {
                kernels::copy(from.receive->output + from.done, data, head.bytes, false);
            }
            from.done += head.bytes;
        }
        links_.release(peer, kHead + head.bytes);
        moved = true;
        if (from.active && from.done == from.total) end_message(peer);
    }
    return moved;
}

// The receive that was posted first of those for this peer and tag.
HostsMailbox::TicketPtr HostsMailbox::find_receive(int peer, int tag) {
    for (auto at = receives_.begin(); at != receives_.end(); ++at) {
        const TicketPtr ticket = *at;
        const bool asks = ticket->peer == peer || ticket->peer == kAnyPeer;
        if (!asks || ticket->tag != tag || !take_from_pool(*ticket)) continue;
        receives_.erase(at);
        return ticket;
    }
    return nullptr;
}

// False: a message of this host has come for it, or is coming.
bool HostsMailbox::take_from_pool(Ticket& ticket) {
    if (ticket.local == nullptr) return true;
    if (!local_->cancel(*ticket.local)) return false;
    ticket.local.reset();
    return true;
}

// Receives from any rank that a rank of this host has served.
bool HostsMailbox::collect_from_pool() {
    bool moved = false;
    for (auto at = receives_.begin(); at != receives_.end();) {
        const TicketPtr ticket = *at;
        if (ticket->local == nullptr || !ticket->local->done()) {
            ++at;
            continue;
        }
        const std::shared_ptr<Request> local = std::exchange(ticket->local, nullptr);
        const Result<void> result = local->wait();
        const auto rank = [&](int number) {
            const auto& here = plan_.ranks_of(plan_.host_of(rank_));
            const bool known = number >= 0 && static_cast<std::size_t>(number) < here.size();
            return known ? here[static_cast<std::size_t>(number)] : -1;
        };
        const int peer = rank(local->peer());
        // That all others of this host are gone, or that it is late, is no end while some other
        // host may send: the clock decides.
        const bool goes_on =
            !result.ok() && peer < 0 &&
            (result.error().code == Errc::kPeer || result.error().code == Errc::kTimeout);
        moved = true;
        if (goes_on) {
            ++at;
            continue;
        }
        Result<void> ended = result;
        if (!ended.ok() && peer >= 0) {
            const Error& error = result.error();
            ended = Error{error.code, peer, error.step};
        }
        at = receives_.erase(at);
        end(ticket, ended, peer);
    }
    return moved;
}

bool HostsMailbox::begin_message(int peer, const PieceHead& head) {
    Incoming& from = in(peer);
    TicketPtr receive = find_receive(peer, head.tag);
    from.is_kept = receive == nullptr;
    if (from.is_kept) {
        const bool asked = std::ranges::any_of(receives_, [&](const TicketPtr& it) {
            return it->peer == peer || it->peer == kAnyPeer;
        });
        const Bytes limit = asked ? kMaxKept : kMaxKeptUnasked;
        if (head.total > limit || from.kept_bytes > limit - head.total) return false;
        from.kept.clear();
        from.kept.reserve(std::min<Bytes>(head.total, kReserve));
        from.kept_bytes += head.total;
    }
    from.active = true;
    from.fits = receive != nullptr && receive->bytes == head.total;
    if (receive != nullptr) receive->begun = true;
    from.receive = std::move(receive);
    from.tag = head.tag;
    from.total = head.total;
    from.done = 0;
    return true;
}

void HostsMailbox::end_message(int peer) {
    Incoming& from = in(peer);
    from.active = false;
    if (const TicketPtr receive = std::exchange(from.receive, nullptr)) {
        if (from.fits) return end(receive, {}, peer);
        return end(receive, Error{Errc::kMismatch, peer, "receive: size"}, peer);
    }
    if (!from.is_kept) return;
    kept_[{from.tag, peer}].push_back(std::exchange(from.kept, {}));
    // A receive for it may have been posted meanwhile, and must not get the next message.
    if (const TicketPtr receive = find_receive(peer, from.tag)) (void)take_kept(receive);
}

// The message that was kept first of those for this receive, which stands in no list.
bool HostsMailbox::take_kept(const TicketPtr& ticket) {
    const bool any = ticket->peer == kAnyPeer;
    auto found = kept_.lower_bound({ticket->tag, any ? 0 : ticket->peer});
    if (found == kept_.end() || found->first.first != ticket->tag) return false;
    const int peer = found->first.second;
    if (!any && peer != ticket->peer) return false;
    const Kept bytes = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) kept_.erase(found);
    in(peer).kept_bytes -= bytes.size();
    if (bytes.size() != ticket->bytes) {
        end(ticket, Error{Errc::kMismatch, peer, "receive: size"}, peer);
        return true;
    }
    if (!bytes.empty()) kernels::copy(ticket->output, bytes.data(), bytes.size(), false);
    end(ticket, {}, peer);
    return true;
}

// ---- How messages end that cannot complete

// A receive whose deadline passes while its message comes in leaves it to the next one that asks
// for it, beyond the limit of kept messages, too: no peer chose this size.
void HostsMailbox::keep_part(const TicketPtr& receive) {
    for_each_peer([&](int peer) {
        Incoming& from = in(peer);
        if (from.receive != receive) return;
        from.receive.reset();
        if (!from.fits) return;  // it is thrown away as it comes
        from.is_kept = true;
        from.kept.assign(receive->output, receive->output + from.done);
        from.kept_bytes += from.total;
    });
}

void HostsMailbox::abandon(int peer, const Error& error) {
    Incoming& from = in(peer);
    if (!std::exchange(from.active, false)) return;
    if (from.is_kept) from.kept_bytes -= from.total;
    from.kept.clear();
    if (const TicketPtr receive = std::exchange(from.receive, nullptr)) end(receive, error, peer);
}

// What no sender of ours writes: nothing more of that peer is believed.
void HostsMailbox::corrupt(int peer) {
    in(peer).corrupt = true;
    const Error error{Errc::kCorrupt, peer, "message"};
    abandon(peer, error);
    for (auto at = receives_.begin(); at != receives_.end();) {
        const TicketPtr ticket = *at;
        // A receive from any rank may be the one that the garbage was for.
        const bool concerned = ticket->peer == peer || ticket->peer == kAnyPeer;
        if (!concerned || !take_from_pool(*ticket)) {
            ++at;
            continue;
        }
        at = receives_.erase(at);
        end(ticket, error, peer);
    }
}

// Why a ticket can't go on, if so.
std::optional<Error> HostsMailbox::verdict(const Ticket& ticket, TimePoint now) {
    if (failure_.has_value()) return failure_;
    const char* step = ticket.is_send ? "send" : "receive";
    const bool any = ticket.peer == kAnyPeer;
    if (!any && in(ticket.peer).corrupt) return Error{Errc::kCorrupt, ticket.peer, "message"};
    if (!any && in(ticket.peer).gone) return Error{Errc::kPeer, ticket.peer, step};
    if (any && ticket.local == nullptr) {
        int gone = -1;
        bool some_live = false;
        for_each_peer([&](int peer) {
            if (in(peer).gone) gone = peer;
            some_live = some_live || !in(peer).gone;
        });
        if (!some_live) return Error{Errc::kPeer, gone, step};
    }
    if (now < ticket.deadline) return std::nullopt;
    const bool silent = !any && links_.silent(ticket.peer, now);
    return Error{silent ? Errc::kPeer : Errc::kTimeout, ticket.peer, step};
}

// Ends what is past its deadline, and what waits for a rank that is gone.
void HostsMailbox::look_at_clock(TimePoint now) {
    looked_ = now;
    if (open_ == 0) return;
    if (!failure_.has_value()) {
        const auto well = links_.well();
        // One of this host that is gone concerns messages with it alone, which the pool has.
        const bool here = !well.ok() && well.error().code == Errc::kPeer &&
                          well.error().detail >= 0 && !plan_.remote(well.error().detail, rank_);
        if (!well.ok() && !here) failure_ = well.error();
    }
    probe();
    // In this order: what a rank had sent before its end was seen is there, and counts.
    for_each_peer([&](int peer) { in(peer).gone = links_.ended(peer); });
    (void)step();
    for (auto at = receives_.begin(); at != receives_.end();) {
        const TicketPtr ticket = *at;
        const auto error = verdict(*ticket, now);
        // One that a message of this host is coming for ends with that.
        if (!error.has_value() || !take_from_pool(*ticket)) {
            ++at;
            continue;
        }
        at = receives_.erase(at);
        end(ticket, *error, -1);
    }
    for_each_peer([&](int peer) { end_overdue(peer, now); });
}

// The message that is coming from a peer, and those that go there.
void HostsMailbox::end_overdue(int peer, TimePoint now) {
    if (const TicketPtr receive = in(peer).receive) {
        std::optional<Error> error = verdict(*receive, now);
        if (!error.has_value() && in(peer).gone) error = Error{Errc::kPeer, peer, "receive"};
        if (error.has_value()) {
            if (error->code == Errc::kTimeout) keep_part(receive);
            in(peer).receive.reset();
            end(receive, *error, peer);
        }
    }
    auto& queue = out(peer).queue;
    for (std::size_t i = 0; i < queue.size();) {
        const TicketPtr send = queue[i];
        const auto error = verdict(*send, now);
        if (!error.has_value()) {
            ++i;
        } else if (i == 0) {
            end_send(peer, *error);
        } else {
            queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(i));
            end(send, *error, -1);
        }
    }
}

// Whether the connections are there of those that messages wait for.
void HostsMailbox::probe() {
    if (looked_ - probed_ < kProbeEvery) return;
    probed_ = looked_;
    const bool any =
        std::ranges::any_of(receives_, [](const TicketPtr& it) { return it->peer == kAnyPeer; });
    for_each_peer([&](int peer) {
        const bool waits =
            any || in(peer).receive != nullptr || !out(peer).queue.empty() ||
            std::ranges::any_of(receives_, [&](const TicketPtr& it) { return it->peer == peer; });
        if (waits) links_.probe(peer);
    });
}

}  // namespace fabricshm::net
