#include "libfabricshm/collective/offer.hpp"

#include <algorithm>
#include <bit>
#include <new>

#include "kernels/copy.hpp"
#include "libfabricshm/base/check.hpp"

namespace fabricshm {

namespace {

std::uint64_t word_of(MessageWhat what, MessageKind kind) noexcept {
    what.kind = kind;
    return std::bit_cast<std::uint64_t>(what);
}

MessageWhat what_of(std::uint64_t word) noexcept {
    return std::bit_cast<MessageWhat>(word);
}

}  // namespace

MessageOffer& offer_in(ChannelLine& line) noexcept {
    return *reinterpret_cast<MessageOffer*>(line.data);
}

void write_offer(ChannelLine& line, const MessagePiece& piece, std::uint64_t place) noexcept {
    static_assert(sizeof(MessageOffer) <= sizeof line.data);
    static_assert(offsetof(ChannelLine, data) % alignof(MessageOffer) == 0);
    MessageOffer& offer = offer_in(line);
    offer.piece = piece;
    // Relaxed, all of them: the line's number, with release, comes after.
    offer.place.store(place, std::memory_order_relaxed);
    offer.copied.store(0, std::memory_order_relaxed);
    offer.sleepers.store(0, std::memory_order_relaxed);
    offer.claims.store(0, std::memory_order_relaxed);
}

bool move_offer(ChannelLine& line) noexcept {
    std::uint64_t found = line.what.load(std::memory_order_relaxed);
    if (what_of(found).kind != MessageKind::kOffered) return false;
    // Release: a receiver that sees it moved sees the bytes where they are now.
    return line.what.compare_exchange_strong(found, word_of(what_of(found), MessageKind::kMoved),
                                             std::memory_order_acq_rel, std::memory_order_acquire);
}

MessageKind claim_offer(ChannelLine& line, MessageWhat what, std::uint64_t output) noexcept {
    const bool shares = output != kNoOffset;
    // Only a line that will be claimed is shared: there is no place in it that the sender needs.
    if (shares) offer_in(line).place.store(output, std::memory_order_relaxed);
    const MessageKind wanted = shares ? MessageKind::kShared : MessageKind::kClaimed;
    std::uint64_t found = word_of(what, MessageKind::kOffered);
    // Release for the place of the output, acquire for what the sender has moved.
    const bool first = line.what.compare_exchange_strong(
        found, word_of(what, wanted), std::memory_order_acq_rel, std::memory_order_acquire);
    return first ? wanted : what_of(found).kind;
}

SharedCopy::SharedCopy(ChannelLine& line, Side side, std::byte* to, const std::byte* from,
                       Bytes bytes, bool past_cache) noexcept
    : offer_(offer_in(line)),
      to_(to),
      from_(from),
      bytes_(bytes),
      chunks_((bytes + kShareChunk - 1) / kShareChunk),
      side_(side),
      past_cache_(past_cache) {}

bool SharedCopy::copy_next() noexcept {
    // Whatever the peer makes of the word, this side ends.
    if (own_ == chunks_) return false;
    // Relaxed: it only decides which side copies; `copied` and the credit order the bytes.
    if (offer_.claims.fetch_add(1, std::memory_order_relaxed) >= chunks_) return false;
    const Bytes at = (side_ == Side::kReceiver ? own_ : chunks_ - 1 - own_) * kShareChunk;
    FABRIC_DCHECK(own_ < chunks_ && at < bytes_);
    kernels::copy(to_ + at, from_ + at, std::min(kShareChunk, bytes_ - at), past_cache_);
    ++own_;
    return true;
}

Word SharedCopy::word() const noexcept {
    return {offer_.copied, offer_.sleepers, TouchPoint::kMessage, TouchPoint::kMessageRead};
}

Result<void> SharedCopy::await_sender(Barrier& barrier, int peer, TimePoint deadline) const {
    if (own_ == chunks_) return {};
    return barrier.await(word(), chunks_ - own_, peer, deadline);
}

std::uint64_t SharedCopy::close() const noexcept {
    const std::uint64_t claimed =
        offer_.claims.fetch_add(static_cast<std::uint32_t>(chunks_), std::memory_order_relaxed);
    return std::min(claimed, chunks_) - std::min(own_, claimed);
}

}  // namespace fabricshm
