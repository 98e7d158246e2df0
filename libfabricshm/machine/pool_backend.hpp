// PoolBackend: where arenas come from. One implementation per kind of memory (docs/architecture.md,
// "The pool"); fabricd/main.cpp is the only place that chooses one.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "libfabricshm/os/stripes.hpp"

namespace fabricshm {

/// One arena's memory. The descriptor is what clients get; for devdax it is the device's, and
/// `file_offset` says where the arena starts in it.
struct PoolPiece {
    Fd fd;
    std::uint64_t file_offset = 0;
    Bytes bytes = 0;            // a multiple of align
    Bytes uncommitted = 0;      // the last of them that have no pages yet; see PoolBackend::grow()
    Bytes align = 4096;         // of mappings
    Bytes huge_page_bytes = 0;  // 0: small pages only
    // Of an arena on several devices: those after `fd`. `file_offset` is one of the striped space.
    std::vector<Fd> others = {};
    Stripes stripes = {};

    /// All of it.
    Result<Mapping> map() const {
        const MapOptions options{true, align, huge_page_bytes};
        return Mapping::map(fd, others, stripes, file_offset, bytes, options);
    }
};

/// What a session presents after a restart as the files of an arena: one, or one for each device.
struct PresentedFiles {
    PresentedFiles() = default;
    PresentedFiles(Fd first) : fd(std::move(first)) {}  // NOLINT: most arenas are one file

    Fd fd;
    std::vector<Fd> others = {};  // of an arena on several devices: those after `fd`, in order
    // Not 0: the number of the first that is no file of the pool, by a look from afar. None is
    // here.
    std::size_t strange = 0;
};

/// An arena that outlived a restart of the daemon (devdax: from the device's catalogue).
struct PoolLeftover {
    std::uint64_t arena_id = 0;
    std::string name;
    std::uint32_t uid = 0;
    PoolPiece piece;
};

struct PoolTotals {
    Bytes capacity = 0;
    Bytes used = 0;  // committed, also by arenas that are expected
};

/// What an arena that grows has at first, at least, and by how much it grows, at least: some 5 ms
/// of clearing, enough for a small job's buffers, and whole huge pages.
inline constexpr Bytes kArenaStep = 16 * kMiB;

/// Makes and destroys arenas. Used by the daemon's control thread only; not thread-safe.
class PoolBackend {
  public:
    virtual ~PoolBackend() = default;

    /// "emu", "numa" or "dax", and one line for people on where the memory is.
    virtual const char* kind() const noexcept = 0;
    virtual std::string describe() const = 0;

    /// The UUID of the device that arenas are cut from; zeros: the host's ordinary memory.
    virtual std::array<std::uint8_t, 16> uuid() const noexcept { return {}; }

    /// True when arenas are committed whole when they are made, since nothing can be gained by
    /// doing it later (a device) or the pages are set aside anyway (reserved huge pages). Else
    /// create() commits the first kArenaStep bytes, and grow() the others.
    virtual bool commits_whole() const noexcept { return true; }

    /// True when arenas lie in the host's ordinary memory, next to its processors.
    virtual bool is_local() const noexcept { return false; }

    /// Makes an arena of at least `bytes`, all zero. kNoMemory when the pool is full, or smaller
    /// than that; nothing stays behind then.
    virtual Result<PoolPiece> create(std::uint64_t arena_id, const std::string& name,
                                     std::uint32_t uid, Bytes bytes) = 0;

    /// Counts `committed` bytes of an arena of before a restart as used, until it is adopted or
    /// destroyed: its pages exist, and nothing else here shows it. Nothing to do for a device,
    /// whose catalogue has its arenas.
    virtual void expect(std::uint64_t arena_id, Bytes committed) {
        (void)arena_id, (void)committed;
    }

    /// Adopts an arena that a session presents after a restart. `presented` comes from a client:
    /// kCorrupt unless they are the files of the kind and size that create() made. The last
    /// `uncommitted` bytes lose their pages, if they have any: a daemon that was killed while it
    /// committed them reported them to no session.
    virtual Result<PoolPiece> adopt(std::uint64_t arena_id, Bytes bytes, PresentedFiles presented,
                                    Bytes uncommitted = 0) = 0;

    /// Commits the arena's first `to` bytes; those that are committed stay as they are. `need`, at
    /// least `to`, is what the growths that belong together will come to: kNoMemory when the pool
    /// has no room for that, and nothing changes. About 0.3 s/GiB.
    virtual Result<void> grow(std::uint64_t arena_id, Bytes to, Bytes need) {
        (void)arena_id, (void)to, (void)need;
        return Error{Errc::kUnsupported, 0, "grow arena"};
    }

    /// The arena's pages from `to` on go back to the pool, also while processes map them: what is
    /// touched there again is zero and charged to the process that touches it. Nothing to do when
    /// no more than that is committed. kUnsupported: this backend's arenas stay whole
    /// (commits_whole()).
    virtual Result<void> shrink(std::uint64_t arena_id, Bytes to) {
        (void)arena_id, (void)to;
        return Error{Errc::kUnsupported, 0, "shrink arena"};
    }

    /// Returns the arena's memory to the pool. Idempotent.
    virtual void destroy(std::uint64_t arena_id) noexcept = 0;

    /// Arenas found at start-up that have no owner yet.
    virtual Result<std::vector<PoolLeftover>> list() = 0;

    virtual PoolTotals totals() const noexcept = 0;
};

}  // namespace fabricshm
