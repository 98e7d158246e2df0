#include "libfabricshm/optim/snapshot_stage.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/os/disk_writer.hpp"

namespace fabricshm {

namespace {

// What a step waits for at most when the other thread is in the middle of it: a few microseconds of
// copying. Larger ones would make it longer, smaller ones cost more words.
constexpr std::uint64_t kPieceElements = 16 * kLogElements;
static_assert(kPieceElements % kBlockElements == 0);

enum State : std::uint8_t { kWaiting, kTaken, kSaved };

}  // namespace

SnapshotStage::SnapshotStage(std::vector<const float*> arrays, ElementRange shard)
    : arrays_(std::move(arrays)),
      shard_(shard),
      pieces_((shard.count() + kPieceElements - 1) / kPieceElements) {}

// Where everything goes, as distances from the start of the stage; make() has memory for it later.
void SnapshotStage::place(const SnapshotPlan& plan, const ParameterLayout& layout) {
    Bytes used = 0;
    for (std::size_t f = 0; f < plan.files.size(); ++f) {
        const PlannedFile& file = plan.files[f];
        for (std::size_t t = 0; t < file.tensors.size(); ++t) {
            const PlannedTensor& tensor = file.tensors[t];
            const ElementRange& whole = layout.pieces[tensor.parameter];
            const ElementRange own{std::max(whole.begin, shard_.begin),
                                   std::min(whole.end, shard_.end)};
            if (own.begin >= own.end) continue;
            const Bytes bytes = own.count() * sizeof(float);
            const Bytes offset =
                file.header + tensor.begin + (own.begin - whole.begin) * sizeof(float);
            const bool continues = !extents_.empty() && extents_.back().file == f &&
                                   extents_.back().offset + extents_.back().bytes == offset;
            if (!continues) {
                used = round_up(used, kDiskBlock) + offset % kDiskBlock;
                extents_.push_back({f, offset, 0, nullptr});
            }
            // From here on a distance, see above.
            parts_.push_back({f, t, tensor.array, own, memory_.data() + used});
            if (extents_.back().bytes == 0) extents_.back().data = memory_.data() + used;
            extents_.back().bytes += bytes;
            used += bytes;
        }
    }
    FABRIC_CHECK(used <= memory_.size());
    for (int array = 0; array <= static_cast<int>(arrays_.size()); ++array) {
        firsts_.push_back(static_cast<std::size_t>(
            std::ranges::lower_bound(parts_, array, {}, &Part::array) - parts_.begin()));
    }
}

Result<std::shared_ptr<SnapshotStage>> SnapshotStage::make(const SnapshotPlan& plan,
                                                           const ParameterLayout& layout,
                                                           std::vector<const float*> arrays,
                                                           ElementRange shard,
                                                           SnapshotStage* before) {
    auto stage = std::shared_ptr<SnapshotStage>(new SnapshotStage(std::move(arrays), shard));
    // An extent begins within its first block, and each file and array begins one at most.
    const Bytes extents = plan.files.size() + stage->arrays_.size();
    const Bytes bytes =
        round_up(shard.count() * sizeof(float) * stage->arrays_.size() + 2 * extents * kDiskBlock,
                 kPageBytes);
    if (before != nullptr && before->mapping_.size() >= bytes) {
        stage->mapping_ = std::move(before->mapping_);
    } else {
        FABRIC_TRY(stage->mapping_, Mapping::own(bytes));
    }
    stage->memory_ = {stage->mapping_.data(), stage->mapping_.size()};
    stage->place(plan, layout);
    return stage;
}

void SnapshotStage::copy(ElementRange range) noexcept {
    for (std::size_t array = 0; array < arrays_.size(); ++array) {
        const auto end = parts_.begin() + static_cast<std::ptrdiff_t>(firsts_[array + 1]);
        auto part = std::upper_bound(
            parts_.begin() + static_cast<std::ptrdiff_t>(firsts_[array]), end, range.begin,
            [](std::uint64_t at, const Part& each) { return at < each.elements.end; });
        for (; part != end && part->elements.begin < range.end; ++part) {
            const std::uint64_t first = std::max(part->elements.begin, range.begin);
            const std::uint64_t last = std::min(part->elements.end, range.end);
            std::memcpy(part->data + (first - part->elements.begin) * sizeof(float),
                        arrays_[array] + first, (last - first) * sizeof(float));
        }
    }
}

void SnapshotStage::save_staged(const std::byte* begin, const std::byte* end) noexcept {
    // The last part that begins at or before `begin`, and those behind it: parts are in the order
    // of their places.
    auto part = std::ranges::upper_bound(parts_, begin, {}, &Part::data);
    if (part != parts_.begin()) --part;
    for (; part != parts_.end() && part->data < end; ++part) {
        const Bytes bytes = part->elements.count() * sizeof(float);
        const Bytes first = begin > part->data ? static_cast<Bytes>(begin - part->data) : Bytes{0};
        const Bytes last = std::min(bytes, static_cast<Bytes>(end - part->data));
        if (first >= last) continue;
        save({part->elements.begin + first / sizeof(float),
              part->elements.begin + (last + sizeof(float) - 1) / sizeof(float)});
    }
}

bool SnapshotStage::save(ElementRange range) noexcept {
    range = {std::max(range.begin, shard_.begin), std::min(range.end, shard_.end)};
    bool copied = false;
    for (std::uint64_t at = range.begin; at < range.end;) {
        const std::uint64_t index = (at - shard_.begin) / kPieceElements;
        const std::uint64_t begin = shard_.begin + index * kPieceElements;
        std::atomic<std::uint8_t>& state = pieces_[index];
        at = begin + kPieceElements;
        std::uint8_t expected = kWaiting;
        // Acquire, here and below: once it is saved the copy's reads are over, and the step may
        // overwrite what they read.
        if (state.load(std::memory_order_acquire) == kSaved) continue;
        if (state.compare_exchange_strong(expected, kTaken, std::memory_order_acquire)) {
            copy({begin, std::min(at, shard_.end)});
            // Release: the copy comes before it, for the step and for the thread that writes it.
            state.store(kSaved, std::memory_order_release);
            copied = true;
            continue;
        }
        // Yields: the other thread may be waiting for this processor.
        while (state.load(std::memory_order_acquire) != kSaved) std::this_thread::yield();
    }
    return copied;
}

}  // namespace fabricshm
