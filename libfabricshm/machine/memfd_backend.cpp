#include "libfabricshm/machine/memfd_backend.hpp"

#include "libfabricshm/machine/arena_file.hpp"

namespace fabricshm {

namespace {

constexpr Bytes kBytesMax = Bytes{1} << 62;  // so that rounding up cannot overflow
constexpr Bytes kSmallPage = 4096;

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
    if (bytes == 0 || bytes > kBytesMax) return Error{Errc::kInvalid, 0, "create arena"};
    // Whole pages, so that the arena's end can have a huge one.
    const Bytes page = plan_.huge_page_bytes != 0 ? plan_.huge_page_bytes : kSmallPage;
    const Bytes size = round_up(bytes, page);
    FABRIC_TRY_VOID(ledger_.check_room(arena_id, size));
    // The capacity was right at start-up, but others use memory too: better a refusal now than the
    // out-of-memory killer in the middle of the commit.
    if (size > plan_.available()) {
        return Error{Errc::kNoMemory, 0, "create arena: machine is full"};
    }
    ArenaFileOptions options{plan_.huge_page_bytes, plan_.hugetlb, plan_.bind, plan_.verify};
    FABRIC_TRY(Fd fd, make_arena_file(arena_id, size, options));
    return ledger_.enter(arena_id, piece_of(std::move(fd), size));
}

Result<PoolPiece> MemfdBackend::adopt(std::uint64_t arena_id, Bytes bytes, Fd presented) {
    if (ledger_.holds(arena_id)) return Error{Errc::kExists, 0, "adopt arena"};
    FABRIC_TRY_VOID(check_arena_file(presented, arena_id, bytes));
    return ledger_.enter(arena_id, piece_of(std::move(presented), bytes));
}

PoolPiece MemfdBackend::piece_of(Fd fd, Bytes bytes) const {
    const Bytes align = plan_.huge_page_bytes != 0 ? plan_.huge_page_bytes : kSmallPage;
    // A daemon started with other page settings than its predecessor adopts small-page arenas too.
    if (bytes % align != 0) return PoolPiece{std::move(fd), 0, bytes, kSmallPage, 0};
    return PoolPiece{std::move(fd), 0, bytes, align, plan_.huge_page_bytes};
}

}  // namespace fabricshm
