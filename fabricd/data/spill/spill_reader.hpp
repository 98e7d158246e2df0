// SpillReader: takes chunks out of the spill, many at a time.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "fabricd/data/spill/spill.hpp"
#include "libfabricshm/os/disk_reader.hpp"

namespace fabricd {

struct ChunkTake {
    ChunkName name;
    Bytes bytes = 0;
    std::byte* into = nullptr;
    Bytes room = 0;         // that may be written there, `bytes` at least
    std::uint64_t tag = 0;  // the caller's
};

struct ChunkTaken {
    std::uint64_t tag = 0;
    bool whole = false;  // else it is not there any more; what was written is no content
};

/// One thread at a time; each thread has its own. Nothing waits but wait().
class SpillReader {
  public:
    /// `memory` may be pinned; chunks go there, or elsewhere.
    SpillReader(Spill& spill, std::span<std::byte> memory);
    /// Waits for what is under way, since the kernel writes into the memory until then.
    ~SpillReader();
    SpillReader(const SpillReader&) = delete;
    SpillReader& operator=(const SpillReader&) = delete;

    bool has_room() const noexcept { return reader_.has_room(); }
    unsigned under_way() const noexcept {
        return reader_.under_way() + static_cast<unsigned>(ended_.size());
    }

    /// False: it is not in the spill. The memory is the reader's until wait() gives the tag.
    bool start(const ChunkTake& take);
    /// What has ended. Waits for the first while any is under way, until `deadline`.
    std::vector<ChunkTaken> wait(TimePoint deadline);
    /// Readable when something has ended, for poll(); -1: start() has done it already.
    int descriptor() const noexcept { return reader_.descriptor(); }

    /// How its reads reach the disk.
    const fabricshm::DiskPath& path() const noexcept { return reader_.path(); }

  private:
    struct Free {
        void operator()(std::byte* bytes) const noexcept { std::free(bytes); }
    };
    // Where a chunk goes first whose place is not made of whole blocks.
    struct Bounce {
        std::unique_ptr<std::byte, Free> bytes;
        Bytes room = 0;
    };
    struct UnderWay {
        ChunkTake take;
        Spill::Pinned pinned;
        Bounce bounce;  // empty: straight into its place
        Bytes skip = 0;
    };

    Bounce take_bounce(Bytes bytes);
    ChunkTaken finish(UnderWay& work, const std::byte* bytes);

    Spill& spill_;
    std::vector<Bounce> idle_;
    std::map<std::uint64_t, UnderWay> under_way_;
    std::uint64_t last_tag_ = 0;
    std::vector<ChunkTaken> ended_;
    fabricshm::DiskReader reader_;
};

}  // namespace fabricd
