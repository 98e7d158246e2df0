// The code that emu and numa share: a pool whose arenas are memfds (arena_file.hpp).

#pragma once

#include <functional>
#include <string>

#include "libfabricshm/machine/arena_file.hpp"
#include "libfabricshm/machine/arena_ledger.hpp"
#include "libfabricshm/machine/pool_backend.hpp"

namespace fabricshm {

enum class HugePages {
    kTransparent,  // asked for, taken as far as the kernel has them
    kReserved,     // from the hugetlb pool; no arena without them
    kOff,
};

/// What makes one memfd pool different from the next.
struct MemfdPlan {
    const char* kind = "emu";
    std::string place;  // for describe(): "in ordinary memory"
    Bytes capacity = 0;
    Bytes huge_page_bytes = 0;  // 0: small pages
    bool hugetlb = false;
    bool local = false;  // PoolBackend::is_local()

    /// What can be committed now; asked before each commit.
    std::function<Bytes()> available;
    /// Binds a fresh file to its node or nodes (may be empty), and checks where committed pages
    /// are.
    std::function<Result<void>(void* data, Bytes bytes)> bind;
    std::function<Result<void>(void* data, Bytes bytes)> verify;
};

class MemfdBackend final : public PoolBackend {
  public:
    explicit MemfdBackend(MemfdPlan plan) : plan_(std::move(plan)), ledger_(plan_.capacity) {}

    const char* kind() const noexcept override { return plan_.kind; }
    std::string describe() const override;
    Result<PoolPiece> create(std::uint64_t arena_id, const std::string& name, std::uint32_t uid,
                             Bytes bytes) override;
    /// Reserved pages are taken for a whole mapping when it is made, and not page by page.
    bool commits_whole() const noexcept override { return plan_.hugetlb; }
    bool is_local() const noexcept override { return plan_.local; }
    void expect(std::uint64_t arena_id, Bytes committed) override {
        ledger_.expect(arena_id, committed);
    }
    Result<PoolPiece> adopt(std::uint64_t arena_id, Bytes bytes, PresentedFiles presented,
                            Bytes uncommitted) override;
    Result<void> grow(std::uint64_t arena_id, Bytes to, Bytes need) override;
    Result<void> shrink(std::uint64_t arena_id, Bytes to) override;
    void destroy(std::uint64_t arena_id) noexcept override { ledger_.drop(arena_id); }
    /// Always empty: a memfd has no name to be found by. What lives on is presented (adopt).
    Result<std::vector<PoolLeftover>> list() override { return std::vector<PoolLeftover>{}; }
    PoolTotals totals() const noexcept override { return ledger_.totals(); }

  private:
    PoolPiece piece_of(Fd fd, Bytes bytes, Bytes uncommitted) const;
    ArenaFileOptions file_options() const;
    Result<void> check_room(Bytes bytes) const;

    MemfdPlan plan_;
    ArenaLedger ledger_;
};

}  // namespace fabricshm
