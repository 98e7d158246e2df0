#include "libfabricshm/machine/memfd_backend.hpp"

#include <algorithm>

namespace fabricshm {

namespace {

constexpr Bytes kBytesMax = Bytes{1} << 62;  // so that rounding up cannot overflow

}  // namespace

std::string MemfdBackend::describe() const {
    std::string pages = "4 KiB pages";
    if (plan_.huge_page_bytes != 0) {
        pages = format_bytes(plan_.huge_page_bytes) +
                (plan_.hugetlb ? " reserved huge pages" : " transparent huge pages");
    }
    return "memfd arenas " + plan_.place + ", " + pages;
}

Result<PoolPiece> MemfdBackend::create(std::uint64_t arena_id, const std::string&, std::uint32_t,
                                       Bytes bytes) {
    if (bytes == 0) return Error{Errc::kInvalid, 0, "create arena"};
    if (bytes > kBytesMax) return Error{Errc::kNoMemory, 0, "create arena: small pool"};
    // Whole pages, so that the arena's end can have a huge one.
    const Bytes page = plan_.huge_page_bytes != 0 ? plan_.huge_page_bytes : kPageBytes;
    const Bytes size = round_up(bytes, page);
    if (ledger_.find(arena_id) != nullptr) return Error{Errc::kExists, 0, "create arena"};
    // One that could never be filled.
    if (size > ledger_.capacity()) return Error{Errc::kNoMemory, 0, "create arena: small pool"};
    const Bytes committed = commits_whole() ? size : std::min(size, round_up(kArenaStep, page));
    FABRIC_TRY_VOID(check_room(committed));
    FABRIC_TRY(Fd fd, make_arena_file(arena_id, size, committed, file_options()));
    return ledger_.enter(arena_id, piece_of(std::move(fd), size, size - committed));
}

Result<PoolPiece> MemfdBackend::adopt(std::uint64_t arena_id, Bytes bytes, PresentedFiles presented,
                                      Bytes uncommitted) {
    if (ledger_.find(arena_id) != nullptr) return Error{Errc::kExists, 0, "adopt arena"};
    FABRIC_TRY_VOID(check_arena_file(presented.fd, arena_id, bytes));
    if (uncommitted > bytes) return Error{Errc::kInvalid, 0, "adopt arena"};
    empty_arena_file(presented.fd, bytes - uncommitted, bytes);
    return ledger_.enter(arena_id, piece_of(std::move(presented.fd), bytes, uncommitted));
}

Result<void> MemfdBackend::grow(std::uint64_t arena_id, Bytes to, Bytes need) {
    const ArenaLedger::Held* held = ledger_.find(arena_id);
    if (held == nullptr) return Error{Errc::kNotFound, 0, "grow arena"};
    const bool sound = need >= to && need <= held->bytes;
    if (!sound) return Error{Errc::kInvalid, 0, "grow arena"};
    if (to <= held->committed) return {};
    FABRIC_TRY_VOID(check_room(need - held->committed));
    const auto done = commit_arena_file(held->fd, held->committed, to, file_options());
    if (!done.ok()) {
        // What was committed before the pages ran out.
        empty_arena_file(held->fd, held->committed, to);
        return done;
    }
    ledger_.grown(arena_id, to);
    return {};
}

Result<void> MemfdBackend::shrink(std::uint64_t arena_id, Bytes to) {
    const ArenaLedger::Held* held = ledger_.find(arena_id);
    if (held == nullptr) return Error{Errc::kNotFound, 0, "shrink arena"};
    if (commits_whole()) return Error{Errc::kUnsupported, 0, "shrink arena"};
    const Bytes page = plan_.huge_page_bytes != 0 ? plan_.huge_page_bytes : kPageBytes;
    if (to == 0 || to % page != 0) return Error{Errc::kInvalid, 0, "shrink arena"};
    if (to >= held->committed) return {};
    // First the pages, then the account: what it counts as free has to be free.
    empty_arena_file(held->fd, to, held->bytes);
    ledger_.shrunk(arena_id, to);
    return {};
}

// In the pool, and in the machine: the capacity was right at start-up, but others use memory, too.
// Better a refusal now than the out-of-memory killer in the middle of the commit.
Result<void> MemfdBackend::check_room(Bytes bytes) const {
    FABRIC_TRY_VOID(ledger_.check_room(bytes));
    if (bytes <= plan_.available()) return {};
    return Error{Errc::kNoMemory, 0, "commit arena: machine is full"};
}

ArenaFileOptions MemfdBackend::file_options() const {
    return {plan_.huge_page_bytes, plan_.hugetlb, plan_.bind, plan_.verify};
}

PoolPiece MemfdBackend::piece_of(Fd fd, Bytes bytes, Bytes uncommitted) const {
    PoolPiece piece;
    piece.fd = std::move(fd);
    piece.bytes = bytes;
    piece.uncommitted = uncommitted;
    // A daemon started with other page settings than its predecessor adopts small-page arenas too.
    const bool huge = plan_.huge_page_bytes != 0 && bytes % plan_.huge_page_bytes == 0;
    piece.align = huge ? plan_.huge_page_bytes : kPageBytes;
    piece.huge_page_bytes = huge ? plan_.huge_page_bytes : 0;
    return piece;
}

}  // namespace fabricshm
