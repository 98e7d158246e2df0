// Offer: a message that its sender leaves where it is, in a buffer in the arena, so that it is
// copied once. A line of the channel says where, and what becomes of it:
//
//   kOffered --- receiver ---> kClaimed   it reads the sender's buffer; the sender waits for that
//       |   \--- receiver ---> kShared    likewise, and both copy chunks of it, whichever is first
//       \------- sender -----> kMoved     no receiver was there: the bytes are in the stage, the
//                                         sender has its buffer back
//
// One exchange of one word decides, so exactly one of them happens. Coherent memory only.

#pragma once

#include <cstddef>
#include <cstdint>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/collective/barrier.hpp"
#include "libfabricshm/shm/group_block.hpp"

namespace fabricshm {

/// From here on sender and receiver copy together: below, one of them is done before the other
/// could begin.
inline constexpr Bytes kShareFrom = 128 * kKiB;
/// What is claimed at once.
inline constexpr Bytes kShareChunk = 64 * kKiB;

/// The offer in a line of that kind, or of what becomes of it.
MessageOffer& offer_in(ChannelLine& line) noexcept;

/// What the sender writes before the line is visible; `place` as in MessageOffer.
void write_offer(ChannelLine& line, const MessagePiece& piece, std::uint64_t place) noexcept;

/// The sender, after it has copied the bytes to the place that it wrote. False: the receiver was
/// first.
bool move_offer(ChannelLine& line) noexcept;

/// The receiver, of a line that it found as `what`: kClaimed, or kShared where it names an `output`
/// (kNoOffset: alone). Anything else: what the line has become meanwhile, and nothing was changed.
MessageKind claim_offer(ChannelLine& line, MessageWhat what, std::uint64_t output) noexcept;

/// One side of a message that is shared. Only `claims` and `copied` of the line are believed, and
/// they decide only how much this side copies: what it touches comes from its caller.
class SharedCopy {
  public:
    /// The receiver copies from the front, the sender from the back: of a buffer that is used again
    /// each side mostly has the lines that it touched the last time.
    enum class Side { kReceiver, kSender };

    SharedCopy(ChannelLine& line, Side side, std::byte* to, const std::byte* from, Bytes bytes,
               bool past_cache) noexcept;

    /// Copies a chunk that neither side has claimed. False: there is none.
    bool copy_next() noexcept;

    /// The sender, after each: says that one more is there.
    void show(Barrier& barrier) const noexcept { barrier.raise(word(), own_); }

    /// The receiver, when all are claimed: waits for those of the sender.
    Result<void> await_sender(Barrier& barrier, int peer, TimePoint deadline) const;

    /// The receiver gives up: from here on the sender claims no chunk. Returns how many it will
    /// have copied when it is through.
    std::uint64_t close() const noexcept;

  private:
    Word word() const noexcept;

    MessageOffer& offer_;
    std::byte* to_;
    const std::byte* from_;
    Bytes bytes_;
    std::uint64_t chunks_;
    std::uint64_t own_ = 0;
    Side side_;
    bool past_cache_;
};

}  // namespace fabricshm
