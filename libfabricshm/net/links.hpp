// Links: streams of messages to and from the ranks on other hosts, and what is known of these.
//
// A stream is a ring in the receiver's memory, written by its sender alone. Both know the lengths
// of the messages, so that their places need not be sent: a message begins at a multiple of 64
// bytes and does not cross the ring's end. A word of 32 bits comes with each: the sender, the kind,
// and a mark by which ranks that called different operations notice it. Bytes that were consumed
// are credited to the sender, which never writes over others.
//
// Next to it there is a second ring for send and receive, whose pieces come when no operation asks
// for them: there the word says where a piece begins, and its bytes how long it is.

#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/collective/worker.hpp"
#include "libfabricshm/net/transport.hpp"

namespace fabricshm::net {

/// What crosses in the word of a write.
enum class Note : std::uint8_t {
    kData,
    kCredit,   // so many messages were consumed, since the beginning
    kHello,    // the connection works in this direction
    kAbort,    // the group failed: code and rank
    kLeave,    // the last that comes
    kLeft,     // the answer: all before kLeave has come
    kControl,  // a text in the control box
    kPing,     // value 0: answer it; 1: the answer
    kPiece,    // of a message
    kPieceCredit,
    kStarved,  // it has consumed all, and waits for more with this mark
};

struct LinksSpec {
    int rank = 0;
    std::vector<bool> remote;  // [rank]
    std::vector<bool> greets;  // [rank]: this side connects first
    Bytes ring_bytes = 0;
    Bytes control_bytes = 0;  // the longest text
    Bytes piece_ring_bytes = 0;
    // A peer of which nothing came for so long although it was asked is gone, or cut off.
    Duration silence = std::chrono::seconds(1);
};

/// Before each message and ring: a line for words that are written for their notes alone.
inline constexpr Bytes kDoorHead = 64;
/// Texts that a peer may get in an epoch: those of one shrink.
inline constexpr int kControlRounds = 4;
constexpr Bytes door_bytes(const LinksSpec& spec) noexcept {
    return kDoorHead + spec.ring_bytes + kControlRounds * round_up(spec.control_bytes + 8, 64) +
           spec.piece_ring_bytes;
}

/// The step of an error by which the others gave up the rank that gets it.
inline constexpr const char* kGivenUp = "given up";

/// Threads: lost(), condemn(), begin(), end(), and what is for messages, from any; everything else
/// by the thread that runs an operation.
class Links {
  public:
    /// Asked at least every 10 ms of a wait: why it has to end, if so.
    using Check = std::function<Result<void>()>;
    /// Called once when a peer reports that the group failed, by the thread that reads it, with the
    /// failure as the peer put it and the peer. Must not call back.
    using OnAbort = std::function<void(const Error& failure, int reporter)>;

    Links(LinksSpec spec, std::unique_ptr<Transport> transport, Check check, OnAbort on_abort = {});
    /// Says goodbye, and waits a moment until all have heard it.
    ~Links();
    Links(const Links&) = delete;
    Links& operator=(const Links&) = delete;

    Transport& transport() noexcept { return *transport_; }
    Bytes max_message() const noexcept { return spec_.ring_bytes / 4; }

    /// Makes all connections. kPeer and kTimeout name a rank.
    Result<void> greet(TimePoint deadline);

    /// An operation begins, or ends: between two of them a thread of its own serves the peers.
    void begin() noexcept;
    void end() noexcept;

    /// Sends at most max_message() bytes, which stay as they are until `pending` is 0 again.
    Result<void> send(int peer, const std::byte* from, Bytes bytes, std::uint32_t mark,
                      std::atomic<int>& pending, TimePoint deadline);
    /// The next message of `peer`, of `bytes` bytes; valid until release(). One at a time. The mark
    /// is compared with the sender's; and, when each waits for the other, with that of its wait.
    Result<const std::byte*> receive(int peer, Bytes bytes, std::uint32_t mark, TimePoint deadline);
    void release(int peer);
    /// Waits until `pending` is 0.
    Result<void> settle(const std::atomic<int>& pending, TimePoint deadline);

    /// One text for each round and peer; also when the group has failed.
    Result<void> send_control(int peer, int round, const std::vector<std::byte>& text,
                              TimePoint deadline);
    /// Nothing: it has not come. Makes progress, for a few milliseconds if there is nothing to do.
    std::optional<std::vector<std::byte>> control_of(int peer, int round);

    /// All that can be reached learn that the group failed. Once; never waits for long.
    void spread(Errc code, int rank) noexcept;
    /// What a peer spread, or a connection that was lost. Where the peers gave up this rank, the
    /// one that said so is what is gone for it: the error names that peer, with the step kGivenUp.
    std::optional<Error> failure() const noexcept;

    /// Nothing that it writes lands from now on. Thread-safe.
    void fence(int peer) noexcept { transport_->fence(peer); }
    /// Asks whether its connection is still there; the answer comes later, as lost().
    void probe(int peer) noexcept;
    /// This peer is dead, as something outside says. Fences it.
    void condemn(int peer) noexcept;
    /// Its connection ended, or it is condemned.
    bool lost(int peer) const noexcept { return at(peer).lost; }
    /// It is known to be dead, and not only out of reach.
    bool dead(int peer) const noexcept { return at(peer).dead; }

  private:
    friend class PieceLinks;
    struct Stream {
        std::uint64_t credited = 0;  // messages that the peer has consumed
        Bytes write_at = 0;          // position in the stream: never wraps
        Bytes free_from = 0;         // what is before is consumed
        std::deque<Bytes> ends;      // of messages that are not credited
        std::uint64_t taken = 0;     // messages that arrived and were consumed
        std::uint64_t acknowledged = 0;
        Bytes acknowledged_at = 0;
        Bytes read_at = 0;
        std::deque<std::uint32_t> marks;  // of messages that arrived and are not taken

        void credit(std::uint32_t value) noexcept;
    };
    struct Peer {
        Stream steps;
        Stream pieces;  // `marks`: where they are, in lines
        // Whether this rank waits for it, and it for this rank, with which marks.
        bool starving = false;
        bool starved = false;
        std::uint32_t starving_mark = 0;
        std::uint32_t starved_mark = 0;
        bool greeted = false;
        std::atomic<bool> leaving{false};  // it sent kLeave
        bool left = false;                 // it answered ours
        TimePoint busy_since{};            // it takes no ping since then
        unsigned controls = 0;             // bits of rounds
        unsigned owes = 0;                 // bits of notes that could not be sent yet
        std::atomic<bool> lost{false};
        std::atomic<bool> dead{false};
        std::atomic<std::int64_t> heard_ns{0};

        /// It was asked and has not answered for so long.
        bool silent(TimePoint now, Duration silence) const noexcept;
    };

    Peer& at(int peer) noexcept { return *peers_[static_cast<std::size_t>(peer)]; }
    const Peer& at(int peer) const noexcept { return *peers_[static_cast<std::size_t>(peer)]; }
    Errc post(int peer, Note note, std::uint32_t value) noexcept;
    void owe(int peer, Note note) noexcept;
    void pay() noexcept;
    void acknowledge(int peer, Note credit) noexcept;
    void handle_word(std::uint32_t word) noexcept;
    void lose(int peer, bool dead) noexcept;
    int progress(int wait_ms) noexcept;
    void ping(int peer) noexcept;
    void serve();
    // Why a wait for `peer`, of which nothing more comes if it `is_over`, has to end, if so.
    Result<void> reason_to_stop(int peer, bool is_over, TimePoint since, TimePoint listened,
                                TimePoint deadline, const char* step);
    template <typename Done>
    Result<void> wait(int peer, TimePoint deadline, const char* step, const Done& done,
                      bool while_broken = false);

    struct Control {
        std::vector<std::byte> framed;
        std::atomic<int> pending{0};
    };

    const LinksSpec spec_;
    std::atomic<int> notes_{0};     // that the transport still has
    std::deque<Control> controls_;  // before the transport, which may have them to its end
    const std::unique_ptr<Transport> transport_;
    const Check check_;
    OnAbort on_abort_;  // never empty
    std::vector<std::unique_ptr<Peer>> peers_;
    std::atomic<std::uint64_t> failure_{0};  // code << 32 | rank + 1
    // The peer that called this rank gone; set before the failure, which failure() acquires first.
    std::atomic<int> given_up_by_{-1};
    std::atomic<bool> owing_{false};
    std::atomic<bool> closing_{false};
    std::atomic<int> pieces_{0};   // that came and were not released
    std::atomic<int> waiters_{0};  // threads in wait() and drive()

    std::mutex mutex_;            // of the transport and the peers
    std::atomic<int> active_{0};  // operations and messages under way
    std::mutex ending_mutex_;
    std::condition_variable ending_changed_;
    bool ending_ = false;
    Worker server_;  // last: it uses all of the above
};

/// The pieces of messages that go over links, and what messages ask of these. Thread-safe; nothing
/// here waits but drive().
class PieceLinks {
  public:
    explicit PieceLinks(Links& links) noexcept : links_(links) {}

    /// False: there is no room yet, or the peer is lost. The bytes stay until `pending` is 0 again.
    bool send(int peer, const std::byte* from, Bytes bytes, std::atomic<int>& pending);
    /// The next one of `peer`, until release(); empty: none. Longer than the piece, which says
    /// itself how long it is.
    std::span<const std::byte> next(int peer);
    void release(int peer, Bytes bytes);
    /// Relaxed: a guess.
    bool has_any() const noexcept { return links_.pieces_.load(std::memory_order_relaxed) != 0; }

    void begin() noexcept { links_.begin(); }
    void end() noexcept { links_.end(); }
    Transport& transport() noexcept { return links_.transport(); }
    void probe(int peer) noexcept { links_.probe(peer); }
    /// Makes progress; with `may_sleep`, unless other threads wait too, it waits a moment when
    /// nothing comes. False: nothing came, and it did not wait.
    bool drive(bool may_sleep);
    /// Why no operation of the group can go on, if so.
    Result<void> well();
    /// It was asked and has not answered for long.
    bool silent(int peer, TimePoint now) const noexcept {
        return links_.at(peer).silent(now, links_.spec_.silence);
    }
    /// Its connection ended, or it has left: what it had sent is all that comes.
    bool ended(int peer) const noexcept { return links_.at(peer).lost || links_.at(peer).leaving; }

  private:
    Links& links_;
};

/// Sleeps without the transport: for 50 us, or for 0.5 ms in a wait that began long ago.
void nap(TimePoint since) noexcept;

}  // namespace fabricshm::net
