// Moves: how a shard moves. Copy, publish, swap; docs/migration.md says why no reader waits and why
// a crash anywhere leaves one valid copy.

#pragma once

#include <string>

#include "fabricd/pool/arena_memory.hpp"
#include "fabricd/pool/books.hpp"
#include "fabricd/pool/effects.hpp"
#include "fabricd/pool/growth.hpp"
#include "fabricd/pool/journal_guard.hpp"
#include "fabricd/pool/regions.hpp"
#include "fabricd/pool/shards.hpp"

namespace fabricd {

/// Used by the control thread only.
class Moves {
  public:
    struct Needs {
        Books& books;
        JournalGuard& journal;
        ArenaMemory& memory;
        Growth& growth;
        Regions& regions;
        Shards& shards;
        CopyWork* copies;  // nullptr: shards don't move
    };

    explicit Moves(const Needs& needs)
        : books_(needs.books),
          journal_(needs.journal),
          memory_(needs.memory),
          growth_(needs.growth),
          regions_(needs.regions),
          shards_(needs.shards),
          copies_(needs.copies) {}

    /// Its owner asks; see Registry::ask_move().
    Result<void> ask(SessionId session, const fabricshm::proto::Shard& request, Effects& out);
    /// People or the control loop do; see Registry::move_shard().
    Result<void> order(const MoveOrder& order, MoveDone done, Effects& out);
    /// See Registry::shard_copied().
    void copied(ShardId id, Result<fabricshm::ShardWord> seen, Effects& out);

  private:
    Result<MoveTarget> parse_target(const Shard& shard, const std::string& text) const;
    bool has_node(int node) const;
    Result<int> node_of_device(const std::string& device) const;
    Result<void> check(const Shard& shard) const;
    Result<void> begin(Shard& shard, const MoveTarget& target, Bytes bytes_per_second,
                       MoveDone done, Effects& out);
    Result<void> grant_copy(Shard& shard, const MoveTarget& target, Bytes bytes_per_second,
                            MoveDone done, Effects& out);
    Result<void> start_copy(Shard& shard);
    void count_copying(const Shard& shard, int change);
    void end(Shard& shard, const Result<void>& how, Effects& out);

    Books& books_;
    JournalGuard& journal_;
    ArenaMemory& memory_;
    Growth& growth_;
    Regions& regions_;
    Shards& shards_;
    CopyWork* copies_;
};

}  // namespace fabricd
