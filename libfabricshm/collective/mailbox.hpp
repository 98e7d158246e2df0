// Mailbox: the messages of one rank, to and from all others, over the group's channels.
//
// A message goes to its receiver piece by piece through a ring of two. A sender whose buffer is in
// the arena sends one piece, which the receiver copies from where it is; others copy pieces into
// memory of the arena first, and up to kEager bytes do not wait for the receiver then. Messages of
// one pair of ranks arrive in the order sent; a receive takes the first message with its tag, and
// messages with other tags that stand before it are put aside.

#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "libfabricshm/collective/operation.hpp"
#include "libfabricshm/collective/request.hpp"

namespace fabricshm {

/// Bytes of a message.
inline Bytes bytes_of(const Call& call) noexcept {
    return call.count * kernels::size_of(call.dtype);
}

/// Thread-safe. Whoever waits for a message drives all of them.
class Mailbox {
  public:
    explicit Mailbox(GroupState& group);
    /// Waits a moment for receivers of messages that were sent eagerly.
    ~Mailbox();

    /// Adds a checked call of kind kSend or kRecv.
    std::shared_ptr<PendingRequest> post(const Call& call);

    /// Drives messages until `request` is complete.
    Result<void> finish(PendingRequest& request);

    /// Drives messages until none is left.
    void finish_all();

    /// A message of no more is staged whole, so that its sender may go on at once.
    static constexpr Bytes kEager = 64 * kKiB;
    static constexpr Bytes kPiece = 256 * kKiB;

  private:
    struct Send {
        Call call;
        std::shared_ptr<PendingRequest> request;
        std::byte* staging = nullptr;  // two pieces, or the whole message if it is eager
        Bytes published = 0;
        Bytes wanted = 0;       // of staging, which has to be allocated outside the lock
        bool supplied = false;  // somebody is at it
        bool started = false;
        std::uint64_t last_piece = 0;  // its number, once all is published
    };
    struct Receive {
        Call call;
        std::shared_ptr<PendingRequest> request;
        bool taken = false;  // its message is coming in
    };
    struct Aside {  // a message that came before somebody asked for its tag
        int peer;
        int tag;
        std::vector<std::byte> bytes;
    };
    struct Incoming {  // the message that is coming in from one rank, if any
        bool active = false;
        std::list<Receive>::iterator receive;  // valid unless it goes aside
        bool aside = false;
        bool discard = false;  // its receive gave up: the rest is thrown away
        Aside kept;
        Bytes total = 0;
        Bytes done = 0;
        bool too_long = false;  // does not fit what was asked for
    };

    std::shared_ptr<PendingRequest> unfinished();
    bool progress();
    bool push_pieces(int peer);
    bool publish_piece(int peer, Send& send);
    void retire(int peer);
    bool pull_pieces(int peer);
    bool begin_message(int peer, const ChannelPiece& piece);
    void take_piece(int peer, const ChannelPiece& piece);
    void end_message(int peer);
    void abandon(int peer);
    bool take_aside();
    bool expire(TimePoint now);
    Result<void> check_sender(std::list<Receive>::iterator receive);
    void fail_all(const Error& error);
    void release_all(int peer);
    bool supply();
    Send* find_unsupplied(int* peer);
    void ring(int peer);
    Word bell_of(int rank) const noexcept;
    Result<void> await_news(std::uint64_t turn, std::uint64_t seen, TimePoint deadline);
    void acquire_taken(int peer) const noexcept;
    bool valid(const ChannelPiece& piece) const noexcept;
    TimePoint nearest_deadline() const;
    Channel& to(int peer) const noexcept;
    Channel& from(int peer) const noexcept;

    GroupState& group_;
    std::mutex mutex_;     // never held over an allocation: that may wait for the daemon
    bool hungry_ = false;  // some send in front wants staging
    std::vector<std::deque<Send>> sends_;      // by receiver; the front is being sent
    std::vector<std::deque<Send>> unretired_;  // published, not yet taken in whole
    std::list<Receive> receives_;              // in the order asked for
    std::list<Aside> aside_;                   // in the order arrived
    std::vector<Incoming> incoming_;           // by sender
};

}  // namespace fabricshm
