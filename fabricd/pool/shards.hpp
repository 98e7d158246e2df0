// Shards: tensors that can move while they are read. Whose they are, which sessions read them, and
// when a copy's bytes are free again. docs/migration.md.

#pragma once

#include <vector>

#include "fabricd/pool/arena_memory.hpp"
#include "fabricd/pool/books.hpp"
#include "fabricd/pool/effects.hpp"
#include "fabricd/pool/image.hpp"
#include "fabricd/pool/journal_guard.hpp"
#include "fabricd/pool/regions.hpp"
#include "libfabricshm/shm/telemetry_page.hpp"

namespace fabricd {

/// A shard of an arena that the session has open.
Result<Shard*> shard_of(Books& books, SessionId session, const fabricshm::proto::Shard& request);

ShardRecord record_of(const Books& books, const Shard& shard);

/// Used by the control thread only.
class Shards {
  public:
    Shards(Books& books, JournalGuard& journal, ArenaMemory& memory, Regions& regions)
        : books_(books), journal_(journal), memory_(memory), regions_(regions) {}

    // ---- Requests ----------------------------------------------------------------------------

    Result<fabricshm::proto::Shard> create(SessionId session,
                                           const fabricshm::proto::Shard& request, Effects& out);
    Result<void> open(Ticket ticket, const fabricshm::proto::Shard& request, TimePoint now,
                      Effects& out);
    Result<void> close(SessionId session, const fabricshm::proto::Shard& request, Effects& out);
    Result<void> free(SessionId session, const fabricshm::proto::Shard& request, Effects& out);

    /// See Registry::shards_open().
    std::uint32_t open_of(SessionId session, const fabricshm::ShardReads* told) const;

    // ---- For moves and arenas ----------------------------------------------------------------

    Result<ArenaSpan> header_of(const Shard& shard) const;
    /// The copy at `place`, which has no readers, and its bytes.
    void drop_copy(Shard& shard, int place, Effects& out);
    /// A session leaves the arena: what it owns there ends, what it reads there it reads no more.
    void leave(SessionId session, ArenaId arena, Effects& out);
    /// The arena is going, and what lies in it: its own regions are no longer counted, and the
    /// record of its end is written, so nothing more is said of them. Returns shards of other
    /// arenas that had a copy in it: when it is gone, go_on_without() ends them.
    std::vector<ShardId> forget(ArenaId arena, Effects& out);
    void go_on_without(const std::vector<ShardId>& lost_a_copy, Effects& out);
    /// The arena's memory is here again after a restart.
    void settle(const Arena& arena, Effects& out);

    // ---- Old copies --------------------------------------------------------------------------

    /// Frees what can have no readers any more.
    void sweep(ShardId id, Effects& out);
    void sweep_all(Effects& out);
    /// sweep_all() when its time has come. A reader gives no sign when it is done, so the daemon
    /// looks: soon at first, since reads are short, then ever less often.
    void sweep_due(TimePoint now, Effects& out);
    /// At the end of a turn.
    void set_next_look(TimePoint now) noexcept;
    /// TimePoint::max() when no old copy is read.
    TimePoint next_look() const noexcept { return due_; }
    /// Something has changed: the next look is soon.
    void look_soon() noexcept;

    // ---- The journal -------------------------------------------------------------------------

    Result<void> write(const Shard& shard, JournalSink& sink) const;
    Result<void> restore(const PoolImage& image);

  private:
    static constexpr Duration kMinPause = std::chrono::milliseconds(1);
    static constexpr Duration kMaxPause = std::chrono::milliseconds(128);

    Result<Shard*> place(Session& owner, Arena& arena, const TensorInfo& info, Bytes bytes,
                         Effects& out);
    Result<void> format(const Shard& shard);
    void format_again(const Shard& shard);
    Result<fabricshm::proto::Shard> open_now(Shard& shard, SessionId session);
    void answer_waiting(Shard& shard, Effects& out);
    void drop_reader(Shard& shard, SessionId session);
    void retire(Shard& shard, Effects& out);
    void end(Shard& shard);
    void release_copy(Shard& shard, int place);
    bool is_read(const Shard& shard, int place) const;
    bool is_endangered(const Shard& shard, ArenaId arena) const;
    void free_orphans(Arena& arena);
    Result<void> restore_shard(const ShardImage& image);
    Result<std::optional<ShardCopy>> restore_copy(const Shard& shard,
                                                  const ShardRecord::Copy& copy);

    Books& books_;
    JournalGuard& journal_;
    ArenaMemory& memory_;
    Regions& regions_;
    TimePoint due_ = TimePoint::max();  // when to look again whether old copies are read
    Duration pause_ = kMinPause;
    bool asked_ = false;  // some old copy is still read: look again
};

}  // namespace fabricd
