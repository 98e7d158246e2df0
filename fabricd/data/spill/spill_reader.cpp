#include "fabricd/data/spill/spill_reader.hpp"

#include <cstring>
#include <utility>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using namespace std::chrono_literals;
using fabricshm::kDiskBlock;
using fabricshm::round_up;

namespace {

constexpr unsigned kInFlight = 16;

}  // namespace

SpillReader::SpillReader(Spill& spill, std::span<std::byte> memory)
    : spill_(spill), reader_(memory, kInFlight) {}

SpillReader::~SpillReader() {
    while (!under_way_.empty()) static_cast<void>(wait(fabricshm::Clock::now() + 1s));
}

SpillReader::Bounce SpillReader::take_bounce(Bytes bytes) {
    Bounce bounce;
    if (!idle_.empty()) {
        bounce = std::move(idle_.back());
        idle_.pop_back();
    }
    if (bounce.room < bytes) {
        bounce.bytes.reset(static_cast<std::byte*>(std::aligned_alloc(kDiskBlock, bytes)));
        FABRIC_CHECK(bounce.bytes != nullptr);
        bounce.room = bytes;
    }
    return bounce;
}

bool SpillReader::start(const ChunkTake& take) {
    FABRIC_CHECK(has_room() && take.bytes <= take.room);
    auto pinned = spill_.pin(take.name);
    if (!pinned) return false;
    UnderWay work{take, std::move(*pinned), {}, 0};
    // The catalogue said another size than the silo does now: not that file's.
    if (work.pinned.place.bytes != take.bytes) {
        spill_.unpin(work.pinned, Spill::Verdict::kCorrupt);
        return false;
    }
    if (work.pinned.staged) {
        ended_.push_back(finish(work, work.pinned.staged->bytes() + work.pinned.place.offset));
        return true;
    }
    work.skip = work.pinned.offset % kDiskBlock;
    const Bytes blocks = round_up(work.skip + take.bytes, kDiskBlock);
    const bool fits_place = work.skip == 0 && blocks <= take.room &&
                            reinterpret_cast<std::uintptr_t>(take.into) % kDiskBlock == 0;
    if (!fits_place) work.bounce = take_bounce(blocks);
    std::byte* const into = fits_place ? take.into : work.bounce.bytes.get();
    const std::uint64_t tag = ++last_tag_;
    reader_.start({work.pinned.fd, into, blocks, work.pinned.offset - work.skip, tag});
    under_way_.emplace(tag, std::move(work));
    return true;
}

// `bytes`: nullptr when they could not be read.
ChunkTaken SpillReader::finish(UnderWay& work, const std::byte* bytes) {
    const ChunkTake& take = work.take;
    const bool whole =
        bytes != nullptr && fabricshm::crc32c(bytes, take.bytes) == work.pinned.place.checksum;
    if (whole && bytes != take.into) std::memcpy(take.into, bytes, take.bytes);
    spill_.unpin(work.pinned, whole ? Spill::Verdict::kWhole : Spill::Verdict::kCorrupt);
    return {take.tag, whole};
}

std::vector<ChunkTaken> SpillReader::wait(TimePoint deadline) {
    const auto read = reader_.wait(ended_.empty() ? deadline : fabricshm::kNoWait);
    auto ended = std::exchange(ended_, {});
    for (const auto& done : read) {
        const auto found = under_way_.find(done.tag);
        FABRIC_CHECK(found != under_way_.end());
        UnderWay& work = found->second;
        if (done.error != 0) {
            spill_.switch_off(
                fabricshm::describe(fabricshm::error_of_disk(done.error, "read spill")));
        }
        const bool is_read = done.error == 0 && done.bytes >= work.skip + work.take.bytes;
        const std::byte* const begin = work.bounce.bytes ? work.bounce.bytes.get() : work.take.into;
        ended.push_back(finish(work, is_read ? begin + work.skip : nullptr));
        if (work.bounce.bytes) idle_.push_back(std::move(work.bounce));
        under_way_.erase(found);
    }
    return ended;
}

}  // namespace fabricd
