// HostsMailbox: send and receive between ranks on different hosts, and receives from any rank.
//
// A message crosses in pieces, each behind a line that says what it is (PieceHead). Pieces that no
// receive asks for stay in the ring, where their sender's next ones wait for room; while a receive
// waits for a later message, they are kept aside. A receive from any rank is posted in the pool of
// this host, too; what comes from another host takes it back there.

#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/collective/call.hpp"
#include "libfabricshm/collective/group.hpp"
#include "libfabricshm/collective/request.hpp"
#include "libfabricshm/net/hosts_plan.hpp"
#include "libfabricshm/net/links.hpp"

namespace fabricshm::net {

/// Before the bytes of a piece, in a line of its own.
struct PieceHead {
    std::uint64_t total = 0;   // of the message
    std::uint64_t offset = 0;  // of this piece in it
    std::uint64_t bytes = 0;
    std::int32_t tag = 0;
    std::uint32_t withdrawn = 0;  // 1: the rest of the message does not come
};
static_assert(sizeof(PieceHead) <= kDoorHead);

/// Thread-safe. A thread that waits for a message drives all of them.
class HostsMailbox {
  public:
    static constexpr Bytes kPiece = 32 * kKiB;
    /// A message of 64 KiB, in two pieces, wherever it begins, while some bytes are not credited.
    static constexpr Bytes kRing = 6 * kPiece;
    /// Of messages from one peer that no receive asks for, kept while one waits for a later one;
    /// and while none does.
    static constexpr Bytes kMaxKept = 64 * kMiB;
    static constexpr Bytes kMaxKeptUnasked = 1 * kMiB;
    /// Puts words to an error.
    using Names = std::function<Error(const Error&)>;

    /// `local`: of the ranks of this host, or nullptr when this is the only one. It outlives the
    /// links, whose provider may read from it until they go; between stop() and its end it uses
    /// none of these.
    static Result<std::unique_ptr<HostsMailbox>> make(const HostsPlan& plan, int rank, Links& links,
                                                      Group* local, Names names);
    HostsMailbox(const HostsMailbox&) = delete;
    HostsMailbox& operator=(const HostsMailbox&) = delete;

    /// Runs a checked call of kind kSend or kRecv, with a peer on another host or kAnyPeer.
    Result<void> run(const Call& call);
    /// Adds one; finish_all() drives it.
    std::shared_ptr<PendingRequest> post(const Call& call);
    /// Drives messages until no posted one is left.
    void finish_all();
    /// Ends all of them.
    void stop() noexcept;

  private:
    struct Ticket {
        bool is_send = false;
        int peer = 0;
        int tag = 0;
        const std::byte* input = nullptr;
        std::byte* output = nullptr;
        Bytes bytes = 0;
        TimePoint deadline;
        std::shared_ptr<PendingRequest> request;
        Bytes sent = 0;
        bool begun = false;              // its first piece is sent, or has come
        std::shared_ptr<Request> local;  // of a receive from any rank: the one in the pool
    };
    using TicketPtr = std::shared_ptr<Ticket>;
    using Kept = std::vector<std::byte>;

    struct Outgoing {  // to one peer
        std::deque<TicketPtr> queue;
        std::atomic<int> pending{0};  // whether the provider has the staged piece
        std::byte* room = nullptr;    // for one piece
        Bytes staged = 0;             // bytes in it that have to be sent
        Bytes staged_last = 0;        // of the message, when these are sent
        bool withdraws = false;
    };
    struct Incoming {  // from one peer
        bool active = false;
        TicketPtr receive;     // that gets the message
        bool fits = false;     // and asked for as many bytes
        bool is_kept = false;  // else: it is kept, or thrown away
        Kept kept;
        int tag = 0;
        Bytes total = 0;
        Bytes done = 0;
        Bytes kept_bytes = 0;  // of all kept messages of this peer
        bool corrupt = false;
        bool gone = false;  // when it was last looked at: nothing more comes
    };
    struct Ended {
        std::shared_ptr<PendingRequest> request;
        Result<void> result;
        int peer = -1;
    };

    HostsMailbox(const HostsPlan& plan, int rank, Links& links, Group* local, Names names);
    static TicketPtr ticket_of(const Call& call);
    void add(const TicketPtr& ticket);
    void ask_pool(Ticket& ticket);
    void drive(const Ticket* ticket);
    bool step();
    bool push(int peer);
    static bool stage(Outgoing& out);
    bool pull(int peer);
    bool begin_message(int peer, const PieceHead& head);
    void end_message(int peer);
    void abandon(int peer, const Error& error);
    void corrupt(int peer);
    TicketPtr find_receive(int peer, int tag);
    bool take_from_pool(Ticket& ticket);
    bool collect_from_pool();
    bool take_kept(const TicketPtr& ticket);
    void keep_part(const TicketPtr& receive);
    void look_at_clock(TimePoint now);
    void end_overdue(int peer, TimePoint now);
    std::optional<Error> verdict(const Ticket& ticket, TimePoint now);
    void probe();
    void end(const TicketPtr& ticket, const Result<void>& result, int peer);
    void end_send(int peer, const Error& error);
    void flush(std::unique_lock<std::mutex>& lock);
    template <typename Function>
    void for_each_peer(const Function& function) {
        for (int peer = 0; peer < plan_.world(); ++peer) {
            if (plan_.remote(peer, rank_)) function(peer);
        }
    }
    Outgoing& out(int peer) noexcept { return *out_[static_cast<std::size_t>(peer)]; }
    Incoming& in(int peer) noexcept { return in_[static_cast<std::size_t>(peer)]; }

    const HostsPlan& plan_;
    const int rank_;
    PieceLinks links_;
    Group* const local_;
    const Names names_;
    std::unique_ptr<std::byte[]> rooms_;
    std::mutex mutex_;                            // before those of the links and the pool
    std::vector<std::unique_ptr<Outgoing>> out_;  // [rank]
    std::vector<Incoming> in_;                    // [rank]
    std::list<TicketPtr> receives_;               // in the order posted; no message has come
    std::map<std::pair<int, int>, std::deque<Kept>> kept_;  // by tag and peer
    std::vector<Ended> ended_;                              // to complete without the lock
    int open_ = 0;                                          // tickets that have not ended
    std::optional<Error> failure_;
    TimePoint looked_{};
    TimePoint probed_{};
};

}  // namespace fabricshm::net
