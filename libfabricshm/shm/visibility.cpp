#include "libfabricshm/shm/visibility.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>

namespace fabricshm {

namespace {

constexpr auto kBoth = TouchScope::kBoth;
constexpr auto kApart = TouchScope::kIncoherentOnly;
constexpr auto kTogether = TouchScope::kCoherentOnly;

constexpr TouchRow kTouches[] = {
    // Joining: what the daemon wrote, the ranks' identities, what rank 0 decided.
    {TouchPoint::kBlockFormat, "block.publish", kBoth},
    {TouchPoint::kBlockRead, "block.acquire", kBoth},
    {TouchPoint::kIdentity, "identity.publish", kBoth},
    {TouchPoint::kIdentityRead, "identity.acquire", kBoth},
    {TouchPoint::kTuning, "tuning.publish", kBoth},
    {TouchPoint::kTuningRead, "tuning.acquire", kBoth},
    // Barrier. The line of a clock also holds the signature and the places of the buffers.
    {TouchPoint::kClock, "clock.publish", kBoth},
    {TouchPoint::kClockRead, "clock.acquire", kBoth},
    {TouchPoint::kCommand, "command.publish", kBoth},
    {TouchPoint::kCommandRead, "command.acquire", kBoth},
    {TouchPoint::kBell, "bell.publish", kTogether},
    {TouchPoint::kBellRead, "bell.acquire", kTogether},
    {TouchPoint::kFailure, "failure.publish", kApart},
    {TouchPoint::kFailureRead, "failure.acquire", kApart},
    {TouchPoint::kDead, "dead.publish", kBoth},
    {TouchPoint::kDeadRead, "dead.acquire", kBoth},
    // Posts of small operations and of pieces.
    {TouchPoint::kTiny, "tiny.publish", kBoth},
    {TouchPoint::kTinyRead, "tiny.acquire", kBoth},
    {TouchPoint::kTree, "tree.publish", kTogether},
    {TouchPoint::kTreeRead, "tree.acquire", kTogether},
    {TouchPoint::kSlot, "slot.publish", kBoth},
    {TouchPoint::kSlotRead, "slot.acquire", kBoth},
    // Buffers that lie in the arena.
    {TouchPoint::kInput, "input.publish", kApart},
    {TouchPoint::kInputRead, "input.acquire", kApart},
    {TouchPoint::kResultClean, "result.acquire", kApart},
    {TouchPoint::kShare, "share.publish", kApart},
    {TouchPoint::kShareRead, "share.acquire", kApart},
    {TouchPoint::kDirectRead, "direct.acquire", kTogether},
    {TouchPoint::kDirectWrite, "direct.publish", kTogether},
    {TouchPoint::kRingInputRead, "ring_input.acquire", kBoth},
    {TouchPoint::kRingSum, "ring_sum.publish", kBoth},
    {TouchPoint::kRingSumRead, "ring_sum.acquire", kBoth},
    {TouchPoint::kRingResult, "ring_result.publish", kBoth},
    {TouchPoint::kRingResultRead, "ring_result.acquire", kBoth},
    {TouchPoint::kHostInputRead, "host_input.acquire", kBoth},
    {TouchPoint::kHostResult, "host_result.publish", kBoth},
    {TouchPoint::kHostResultRead, "host_result.acquire", kBoth},
    {TouchPoint::kStagedPost, "staged.publish", kBoth},
    {TouchPoint::kStagedRead, "staged.acquire", kBoth},
    {TouchPoint::kStagedResult, "staged_result.publish", kBoth},
    {TouchPoint::kStagedResultRead, "staged_result.acquire", kBoth},
    // Messages.
    {TouchPoint::kMessage, "message.publish", kBoth},
    {TouchPoint::kMessageRead, "message.acquire", kBoth},
    {TouchPoint::kPiece, "piece.publish", kBoth},
    {TouchPoint::kPieceRead, "piece.acquire", kBoth},
    {TouchPoint::kSent, "sent.publish", kBoth},
    {TouchPoint::kSentRead, "sent.acquire", kBoth},
    {TouchPoint::kTaken, "taken.publish", kBoth},
    {TouchPoint::kTakenRead, "taken.acquire", kBoth},
    // Named tensors, and memory that changes hands.
    {TouchPoint::kTensorHeader, "tensor_header.publish", kBoth},
    {TouchPoint::kTensorHeaderRead, "tensor_header.acquire", kBoth},
    {TouchPoint::kElements, "elements.publish", kBoth},
    {TouchPoint::kElementsRead, "elements.acquire", kBoth},
    {TouchPoint::kVersion, "version.publish", kBoth},
    {TouchPoint::kVersionRead, "version.acquire", kBoth},
    {TouchPoint::kVersionBefore, "version_before.acquire", kApart},
    {TouchPoint::kRetire, "retire.publish", kBoth},
    {TouchPoint::kRegionReturn, "region_return.acquire", kApart},
    // Shared parameters: how far the ranks are in a step, and what a rank reads of the others.
    {TouchPoint::kStep, "step.publish", kTogether},
    {TouchPoint::kStepRead, "step.acquire", kTogether},
    {TouchPoint::kGradientRead, "gradient.acquire", kTogether},
};
static_assert(std::size(kTouches) == static_cast<std::size_t>(kTouchCount));
constexpr bool in_order() {
    for (std::size_t i = 0; i < std::size(kTouches); ++i) {
        if (kTouches[i].touch != static_cast<TouchPoint>(i)) return false;
    }
    return true;
}
static_assert(in_order(), "row_of() finds a row by its number");

// Set before sessions open and read when they map arenas; atomic for programs that do both at once.
std::atomic<VisibilityProvider*> provider_of_process{nullptr};

}  // namespace

const TouchRow& row_of(TouchPoint touch) noexcept {
    return kTouches[static_cast<std::size_t>(touch)];
}

Result<TouchPoint> parse_touch(const char* name) {
    for (const TouchRow& row : kTouches) {
        if (std::strcmp(row.name, name) == 0) return row.touch;
    }
    return Error{Errc::kInvalid, 0, "touch: no such name"};
}

void Visibility::tell(bool publishes, TouchPoint touch, const void* data, Bytes bytes,
                      int peer) const noexcept {
    // Numbers, since pointers into different objects have no order.
    const auto place = reinterpret_cast<std::uintptr_t>(data);
    const auto start = reinterpret_cast<std::uintptr_t>(base_);
    if (bytes == 0 || place < start || place - start >= bytes_) return;
    const Bytes offset = place - start;
    const Access access{touch, base_ + offset, offset, std::min(bytes, bytes_ - offset), peer};
    if (publishes) {
        policy_->publish(access);
    } else {
        policy_->acquire(access);
    }
}

void install_visibility(VisibilityProvider* provider) noexcept {
    // Release, with the acquire below: a thread that sees the provider sees it made.
    provider_of_process.store(provider, std::memory_order_release);
}

VisibilityProvider* installed_visibility() noexcept {
    return provider_of_process.load(std::memory_order_acquire);
}

}  // namespace fabricshm
