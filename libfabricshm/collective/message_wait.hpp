// MessageWait: a thread's wait for a message, or for the receiver of one, named and shown as the
// waits of collectives are (long_wait.hpp).

#pragma once

#include <algorithm>
#include <optional>

#include "libfabricshm/collective/barrier.hpp"
#include "libfabricshm/collective/long_wait.hpp"

namespace fabricshm {

/// Of one thread that drives messages. Costs a look at the clock now and then.
class MessageWait {
  public:
    /// What is waited for.
    struct Message {
        std::uint64_t order = 0;  // which one it is, of this rank's
        bool is_send = false;
        bool moves = false;  // it is coming in
        int peer = 0;        // kAnyPeer: any rank
        Bytes bytes = 0;
        Bytes published = 0;  // of a send
    };

    /// `barrier` outlives this.
    explicit MessageWait(const Barrier& barrier) noexcept : barrier_(barrier) {}

    /// True every kPeerPeriod: for what a daemon would have announced.
    bool is_due(TimePoint now) noexcept;
    /// Since the last call the thread has waited for this message; another one, or one that moved,
    /// begins a new wait.
    void look(const Message& message, TimePoint now) noexcept;

    /// The same of a mailbox's ticket (nullptr: of none), which `incoming` may be filling.
    template <typename Ticket, typename Incoming>
    void look(const Ticket* ticket, const Incoming& incoming, TimePoint now) noexcept {
        if (ticket == nullptr || ticket->done) return wait_.reset();
        const bool moves =
            std::ranges::any_of(incoming, [&](const auto& from) { return from.receive == ticket; });
        look(
            {ticket->order, ticket->is_send, moves, ticket->peer, ticket->bytes, ticket->published},
            now);
    }

  private:
    static constexpr Duration kPeerPeriod = std::chrono::milliseconds(10);

    const Barrier& barrier_;
    TimePoint next_look_{};
    std::uint64_t order_ = 0;
    Bytes published_ = 0;
    std::optional<LongWait> wait_;
};

}  // namespace fabricshm
