// Mailbox: the messages of one rank, to and from all others, over the group's channels.
//
// A channel is a ring of cache lines from one rank to another. A small message is in the ring
// itself; a larger one lies in the arena, and a line says where:
//
//   up to inline_max()   in lines of the ring
//   up to kEager         in the sender's stage, in pieces, before the receiver asks; above
//                        kOfferAbove read where it is, if that is in the arena and the receiver
//                        is there at once (offer.hpp)
//   above                read by the receiver where it is, if it is in the arena, with the sender's
//                        help where that helps; else in pieces through the stage, as the receiver
//                        takes them
//
// Messages of one pair of ranks arrive in the order sent. A receive takes the first message with
// its tag; messages that no receive asks for are kept in this process up to a limit and beyond it
// stay in the channel, so that their sender runs out of room and waits.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "libfabricshm/collective/mailbox_match.hpp"
#include "libfabricshm/collective/message_wait.hpp"
#include "libfabricshm/collective/offer.hpp"
#include "libfabricshm/collective/operation.hpp"
#include "libfabricshm/collective/request.hpp"
#include "libfabricshm/collective/stage.hpp"

namespace fabricshm {

/// Thread-safe. A thread that waits for a message drives all of them.
class Mailbox {
  public:
    explicit Mailbox(GroupState& group);
    /// Waits a moment for receivers of messages that lie in the stage.
    ~Mailbox();
    Mailbox(const Mailbox&) = delete;
    Mailbox& operator=(const Mailbox&) = delete;

    /// Runs a checked call of kind kSend or kRecv on this thread.
    Result<void> run(const Call& call);

    /// Adds such a call; finish_all() drives it.
    std::shared_ptr<PendingRequest> post(const Call& call);

    /// Drives messages until no posted one is left.
    void finish_all();

    /// Ends the receive that was posted as `request`, unless a message has come for it.
    bool cancel(const Request& request);

    /// A sender of no more does not wait for its receiver while there is room: for 16 messages at
    /// least, or for this many bytes.
    static constexpr Bytes kEager = 64 * kKiB;
    /// So that the receiver copies one piece while the sender copies the next.
    static constexpr Bytes kPiece = 32 * kKiB;
    static constexpr Bytes kEagerPiece = 8 * kKiB;
    /// Up to here a copy costs less than to wait for the receiver's.
    static constexpr Bytes kOfferAbove = 4 * kKiB;
    /// After an offer that no receiver was there for, so many messages go without.
    static constexpr int kUnoffered = 16;
    /// Of messages from one peer that no receive asks for: kept while some receive may be waiting
    /// for a later one, and while none is.
    static constexpr Bytes kMaxKept = 64 * kMiB;
    static constexpr Bytes kMaxKeptUnasked = 1 * kMiB;
    /// Stages of one mailbox; from there on an idle one changes its peer.
    static constexpr int kMaxStages = 32;

    /// In a broken group: waits until no sender copies into the buffer of a receive that was given
    /// up. kTimeout names one that may.
    Result<void> await_leaving(TimePoint deadline);

    /// The largest message that lies in the ring itself.
    Bytes inline_max() const noexcept { return inline_max_; }

  private:
    // One call under way: on the stack of the thread that waits for it, or of a request.
    struct Ticket {
        bool is_send = false;
        int peer = 0;
        int tag = 0;
        const std::byte* input = nullptr;
        std::byte* output = nullptr;
        Bytes bytes = 0;
        TimePoint deadline;
        std::shared_ptr<PendingRequest> request;  // empty: a thread waits for `done`

        Link<Ticket> in_order;  // of the sends to a peer, or of all receives
        Link<Ticket> by_tag;    // of the receives that no message has come for
        bool listed = false;
        bool indexed = false;
        std::uint64_t order = 0;

        Bytes published = 0;
        bool in_place = false;        // the receiver reads the caller's buffer
        bool offered = false;         // likewise if it is there at once; else goes to `stage`
        bool lent = false;            // and may be doing so
        bool copied = false;          // this side has no chunk of it to copy any more
        std::byte* stage = nullptr;   // room for what is offered
        std::uint64_t last_line = 0;  // the send in place is over when this is taken

        bool done = false;
        Result<void> result;
        int sender = -1;
    };
    using Tickets = Chain<Ticket, &Ticket::in_order>;

    struct Kept {  // a message that came before a receive asked for it
        int peer = 0;
        int tag = 0;
        std::vector<std::byte> bytes;
        Link<Kept> of_pair;
        Link<Kept> of_tag;
        Link<Kept> of_all;
    };

    struct Outgoing {             // to one peer
        std::uint64_t sent = 0;   // lines
        std::uint64_t taken = 0;  // as last seen
        Tickets queue;            // the front is being published
        Tickets lent;             // published in place, not taken yet
        Stage stage;
        std::vector<Bytes> head_at;  // the stage's when line n was written, at n % lines
        bool busy = false;           // a thread copies for the front, without the lock
        Ticket* shared = nullptr;    // for this one of `lent` a thread copies, without the lock
        int unoffered = 0;           // so many more messages are not offered
        bool supplying = false;      // a thread makes the stage
    };

    struct Incoming {                        // from one peer
        std::atomic<std::uint64_t> next{0};  // line; changed under the lock
        bool active = false;                 // a message is coming in
        bool busy = false;                   // a thread copies a piece, without the lock
        Ticket* receive = nullptr;           // that gets the message
        std::unique_ptr<Kept> kept;          // or: it is kept. Neither: it is thrown away
        bool fits = false;                   // `receive` asked for as many bytes
        int tag = 0;
        Bytes total = 0;
        Bytes done = 0;
        Bytes kept_bytes = 0;  // of all kept messages, and the one that comes in
        int wanted = 0;        // indexed receives that name this peer
        bool corrupt = false;  // the channel holds garbage: nothing more of it
        // A receive was given up while the sender copied for it, which ends when it has copied so
        // many chunks, as `left_line` says. docs/adr/0008.
        ChannelLine* left_line = nullptr;
        std::uint64_t left_until = 0;
    };

    enum class Pulled { kEmpty, kLeft, kMoved };
    using Lock = std::unique_lock<std::mutex>;
    using Peers = std::array<std::uint64_t, 4>;

    Ticket ticket_of(const Call& call) const;
    std::optional<Error> refusal(const Ticket& ticket) const;
    bool send_at_once(const Call& call, Bytes bytes);
    bool receive_at_once(const Call& call, Bytes bytes);
    Result<void> send(Ticket& ticket);
    Result<void> receive(Ticket& ticket);
    void add_send(Ticket& ticket, Lock& lock);
    bool take_kept(Ticket& ticket);
    void list_receive(Ticket& ticket, bool indexed);

    bool progress(Lock& lock);
    void drive(const Ticket* ticket, Lock& lock);
    bool finished(const Ticket* ticket) const noexcept;
    void look_at_clock(const Ticket* ticket, Lock& lock, MessageWait& wait);
    void sleep(const Ticket* ticket, Lock& lock);
    void settle_ended(Lock& lock);
    bool await_line(int peer) const noexcept;
    void unlist(Ticket& receive) noexcept;

    bool push(int peer, Lock& lock);
    bool publish(int peer, Ticket& send, Lock& lock);
    bool publish_inline(int peer, int tag, const std::byte* input, Bytes bytes);
    bool publish_offer(int peer, Ticket& send);
    bool may_offer(const Ticket& send) const noexcept;
    void await_offer(Ticket& send, Lock& lock);
    bool move_offer(Ticket& send);
    bool share(int peer, Lock& lock);
    bool publish_staged(int peer, Ticket& send, Lock& lock);
    void publish_piece(int peer, int tag, const std::byte* data, MessagePiece piece, bool first);
    void publish_first_line(int peer, const MessageWhat& what, const void* data, Bytes bytes,
                            std::uint64_t lines);
    void show_lines(int peer, const MessageWhat& what, std::uint64_t lines);
    bool has_room(int peer, std::uint64_t lines);
    bool see_taken(int peer);
    void settle_lent(Outgoing& outgoing);
    bool supply(Lock& lock);
    bool take_over_stage(Outgoing& out) noexcept;
    void withdraw(int peer) noexcept;
    bool drained(int peer);

    Pulled pull(int peer, Lock& lock, Ticket* candidate);
    bool begin_message(int peer, const MessageWhat& what, Bytes total, Ticket* candidate);
    Pulled pull_inline(int peer, const MessageWhat& what, Ticket* candidate);
    Pulled pull_piece(int peer, const MessageWhat& what, Lock& lock, Ticket* candidate);
    Pulled pull_withdrawn(int peer, const MessageWhat& what, Ticket* candidate);
    Ticket* find_receive(int peer, int tag, Ticket* candidate) const noexcept;
    bool copy_lines(int peer, std::uint64_t first, std::byte* output, Bytes bytes) const;
    bool copy_whole_piece(const ChannelLine& line, std::byte* output, Bytes bytes);
    void store_bytes(Incoming& in, const std::byte* data, Bytes bytes);
    Pulled take_piece(int peer, MessageKind kind, const MessagePiece& piece, Lock& lock);
    Result<void> copy_shared(int peer, ChannelLine& line, const std::byte* data,
                             std::uint64_t* left_until);
    std::uint64_t shared_output(const Incoming& in) const noexcept;
    bool past_cache(Bytes bytes) const noexcept;
    bool is_asked(int peer, const Ticket* candidate) const noexcept;
    void advance(int peer, std::uint64_t lines);
    void end_message(int peer);
    void abandon(int peer, const Error& error);
    Ticket* asked_for(int peer, int tag) const noexcept;
    void corrupt(int peer, const char* step);

    void complete(Ticket& ticket, const Result<void>& result, int sender);
    void end_send(Ticket& send, const Error& error);
    void end_receive(Ticket& receive, const Result<void>& result, int sender);
    void keep_part(const Ticket& receive);
    void expire(TimePoint now, bool looks_at_peers, Lock& lock);
    void drain_ended_peers(Lock& lock);
    Result<void> verdict(const Ticket& ticket, TimePoint now, bool looks_at_peers);
    Result<void> check_source(const Ticket& receive);
    const Result<void>& checked(int peer);
    template <typename Function>
    void for_each_send(int peer, Function function);
    void fail_all(const Error& error);

    bool is_being_copied(const Ticket& ticket) const noexcept;
    void notify(int peer) noexcept;
    void call(int peer) noexcept;
    void collect_calls() noexcept;
    Word bell_of(int rank) const noexcept;
    ChannelLine& line_to(int peer, std::uint64_t number) const noexcept;
    ChannelLine& line_from(int peer, std::uint64_t number) const noexcept;
    bool is_there(int peer) const noexcept;
    const Visibility& view() const noexcept { return group_.barrier.view(); }
    Outgoing& out(int peer) noexcept { return out_[static_cast<std::size_t>(peer)]; }
    Incoming& in(int peer) noexcept { return in_[static_cast<std::size_t>(peer)]; }
    const Incoming& in(int peer) const noexcept { return in_[static_cast<std::size_t>(peer)]; }

    GroupState& group_;
    const int rank_;
    const int world_;
    const std::uint64_t lines_;  // of a ring
    const Bytes inline_max_;
    const bool uses_calls_;

    std::mutex mutex_;  // never held over an allocation in the arena, or the copy of a piece
    std::vector<Outgoing> out_;
    std::vector<Incoming> in_;
    Tickets receives_;  // all that are under way, but for one that a single poll satisfies
    MatchIndex<Ticket, &Ticket::by_tag> asked_;
    MatchIndex<Kept, &Kept::of_pair> kept_;
    MatchIndex<Kept, &Kept::of_tag> kept_of_any_;  // all peers under kAnyPeer
    Chain<Kept, &Kept::of_all> all_kept_;          // these, for their end
    int any_wanted_ = 0;                           // indexed receives from any peer
    int posted_ = 0;                               // tickets of requests that are not done
    std::atomic<int> unsettled_{0};  // receives listed and messages kept; 0: await_line() is enough
    Peers everyone_{};               // but this rank
    Peers sending_{};                // peers with something in `queue` or `lent`
    Peers pending_{};                // peers whose channel may have something
    int first_pulled_ = 0;           // rotates, so that no peer is always last
    std::uint64_t polls_ = 0;
    std::uint64_t order_ = 0;
    int drivers_ = 0;      // threads inside a call
    bool hungry_ = false;  // some send in front lacks a stage
    int stages_ = 0;
    TimePoint next_deadline_ = TimePoint::max();        // of what waits; may be too early
    std::vector<std::unique_ptr<Ticket>> ended_;        // requests to complete without the lock
    std::vector<std::optional<Result<void>>> checked_;  // peers that expire() has checked
    std::optional<Error> failure_;                      // of the group: ends everything
};

}  // namespace fabricshm
