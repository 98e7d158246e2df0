#include "fabricd/pool/arena_memory.hpp"

#include <sys/mman.h>

#include <cerrno>

#include "libfabricshm/base/log.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace fabricd {

namespace {

// A client can punch holes into the arena's file. On reserved huge pages that are all in use
// elsewhere, touching the hole would be a SIGBUS; here it is an error.
Result<void> make_present(std::byte* data, Bytes bytes) {
    // Whole pages around the bytes.
    const auto start = reinterpret_cast<std::uintptr_t>(data);
    const auto first = start / fabricshm::kPageBytes * fabricshm::kPageBytes;
    const auto last = fabricshm::round_up(start + bytes, fabricshm::kPageBytes);
    if (::madvise(reinterpret_cast<void*>(first), last - first, MADV_POPULATE_WRITE) == 0)
        return {};
    if (errno == EINVAL) return {};  // the kernel is older than 5.14
    return fabricshm::error_from_errno(errno, "touch arena");
}

}  // namespace

Result<void> ArenaSpan::make_present(Bytes offset, Bytes bytes) const {
    return fabricd::make_present(data + offset, bytes);
}

// The mapping is of the daemon's own descriptor, which no client can close; a memfd is sealed
// against truncation, too.
Result<void> MappedArenas::add(ArenaId arena, const fabricshm::PoolPiece& piece) {
    // For all of the arena, once: mapping parts on demand would put system calls into every group's
    // forming.
    FABRIC_TRY(fabricshm::Mapping mapping, piece.map());
    // Nothing is put back in place of a lost page: the daemon only writes, and its later writes
    // there may as well go nowhere.
    auto watch = std::make_unique<fabricshm::PoisonWatch>(
        mapping.data(), mapping.size(),
        fabricshm::PoisonWatch::Source{nullptr, 0, piece.align, true});
    mappings_.insert_or_assign(
        arena, std::make_shared<Mapped>(Mapped{std::move(mapping), std::move(watch)}));
    return {};
}

void MappedArenas::remove(ArenaId arena) noexcept {
    mappings_.erase(arena);
}

Result<void> MappedArenas::format_links(ArenaId arena, const fabricshm::LinkImage& links) {
    FABRIC_TRY(std::byte * page, writable(arena, 0, fabricshm::kLinkPageBytes));
    fabricshm::format_links(page, links);
    return {};
}

Result<void> MappedArenas::format_group(ArenaId arena, std::uint64_t offset,
                                        const fabricshm::GroupBlockInfo& info) {
    const Bytes bytes = fabricshm::group_block_bytes(info.world);
    FABRIC_TRY(std::byte * block, writable(arena, offset, bytes));
    // From here to its end a lost page is counted instead of being a signal that ends the daemon.
    const fabricshm::PoisonGuard guard;
    fabricshm::format_group_block(block, info, view_of(arena));
    // Also what the format leaves as it was: a line of this host's must not come out of its caches
    // later, over what a rank of another one stores there.
    view_of(arena).acquire(fabricshm::TouchPoint::kRegionReturn, block, bytes);
    if (guard.hit()) return Error{Errc::kPoisoned, 0, "format group"};
    return {};
}

void MappedArenas::mark_dead(ArenaId arena, std::uint64_t offset, int world, int rank) noexcept {
    const auto block = writable(arena, offset, fabricshm::group_block_bytes(world));
    if (!block.ok()) {
        // The peers still find out by themselves within a slice of their sleep; they only lose the
        // immediate wake.
        fabricshm::log(fabricshm::LogLevel::kError, "arena %llu: rank %d is dead, but: %s",
                       shown(arena), rank, describe(block.error()).c_str());
        return;
    }
    // A page that is lost here is lost to the ranks as well: they meet it themselves.
    const fabricshm::PoisonGuard guard;
    fabricshm::mark_rank_dead(block.value(), world, rank, view_of(arena));
}

// Other hosts don't see this one's caches.
fabricshm::Visibility MappedArenas::view_of(ArenaId arena) const {
    const fabricshm::Mapping& mapping = mappings_.at(arena)->mapping;
    return {policy_.get(), mapping.data(), mapping.size()};
}

Result<ArenaSpan> MappedArenas::span(ArenaId arena, std::uint64_t offset, Bytes bytes) {
    FABRIC_TRY(const ArenaSpan span, distant(arena, offset, bytes));
    FABRIC_TRY_VOID(span.make_present(0, bytes));
    return span;
}

Result<ArenaSpan> MappedArenas::distant(ArenaId arena, std::uint64_t offset, Bytes bytes) {
    const auto found = mappings_.find(arena);
    if (found == mappings_.end()) return Error{Errc::kBusy, 0, "arena is not here yet"};
    // The offset is the daemon's own, but a journal may have brought it here.
    const fabricshm::Mapping& mapping = found->second->mapping;
    if (!mapping.holds(offset, bytes)) return Error{Errc::kCorrupt, 0, "touch arena"};
    // The mapping is held by the copy: the arena may be dropped meanwhile.
    return ArenaSpan{found->second, mapping.data() + offset};
}

Result<std::byte*> MappedArenas::writable(ArenaId arena, std::uint64_t offset, Bytes bytes) {
    FABRIC_TRY(const ArenaSpan there, span(arena, offset, bytes));
    return there.data;
}

}  // namespace fabricd
