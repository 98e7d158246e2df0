// Regions: regions and tensors. Whose they are, and when their bytes may be given to others.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fabricd/pool/books.hpp"
#include "fabricd/pool/effects.hpp"
#include "fabricd/pool/growth.hpp"
#include "fabricd/pool/image.hpp"
#include "fabricd/pool/journal_guard.hpp"

namespace fabricd {

/// Used by the control thread only.
class Regions {
  public:
    Regions(Books& books, JournalGuard& journal, const Growth& growth)
        : books_(books), journal_(journal), growth_(growth) {}

    // ---- Requests ----------------------------------------------------------------------------

    // The arena is one that the session has open.

    Result<fabricshm::proto::Region> create(SessionId session, Arena& arena, Bytes bytes);
    Result<fabricshm::proto::Region> open(SessionId session,
                                          const fabricshm::proto::Region& request) const;
    /// `generation` of 0: whatever has the number now; else kNotFound for a later owner.
    Result<void> free(SessionId session, ArenaId arena, RegionId region, std::uint64_t generation);
    /// `bytes`: of the elements and the header.
    Result<fabricshm::proto::Tensor> create_tensor(SessionId session, Arena& arena,
                                                   const fabricshm::proto::Tensor& request,
                                                   Bytes bytes, Effects& out);
    /// Whether the name is taken, by a session that stays.
    bool has_tensor(const Arena& arena, const std::string& name) const;
    Result<void> open_tensor(Ticket ticket, const fabricshm::proto::Tensor& request, TimePoint now,
                             Effects& out);

    /// Whether there is a hole for `bytes` more, and whether the quota of the session's device
    /// admits them. If not, what sessions at their end still have may be in the way.
    bool fits(const Arena& arena, Bytes bytes) const;
    bool quota_admits(SessionId session, Bytes bytes) const;
    /// A name that a session at its end still has is free, as if it were gone already.
    void give_up_name(Arena& arena, const std::string& name);

    // ---- For shards and groups ---------------------------------------------------------------

    /// `shard`: whose header or copy it is; its header is kNone for the header itself.
    Result<RegionId> make(Session& session, Arena& arena, Bytes bytes,
                          std::optional<TensorInfo> tensor,
                          std::optional<ShardId> shard = std::nullopt);
    /// For the elements of a shard, counted against `device`.
    Result<RegionId> make_copy(Session& owner, Arena& arena, Bytes bytes, std::string device,
                               ShardId shard);
    /// In its owner's accounts: `change` is +1 or -1.
    void count(Session& session, const Region& region, int change);
    void release(Arena& arena, RegionId region);
    void quarantine(Arena& arena, RegionId region);

    // ---- Giving back -------------------------------------------------------------------------

    /// Gives back, or into quarantine, what the session holds of the arena; lasting tensors go over
    /// to another session that has the arena open, whatever its quota. Returns how many of
    /// `most` are left; there is more when none is.
    int reclaim_some(Session& session, Arena& arena, int most);

    /// Frees what `members` left in quarantine and no group keeps from others, in pieces.
    void sweep_quarantine(Arena& arena, const std::vector<SessionId>& members);
    /// The next piece. Returns how many of `most` are left to be freed elsewhere.
    int free_some(Arena& arena, int most);

    // ---- The journal -------------------------------------------------------------------------

    static Result<void> write(const Arena& arena, RegionId region, JournalSink& sink);
    /// kCorrupt when the journal contradicts itself.
    Result<void> restore(const ArenaImage& image, Arena& arena);

  private:
    Result<void> check_room(Session& session, const Arena& arena, Bytes bytes);
    void undo(Session& session, Arena& arena, RegionId region);
    void reclaim(Session& session, Arena& arena, RegionId region, Session* heir);
    Result<void> make_lasting(Arena& arena, RegionId region);
    Session* heir_of(const Session& session, const Arena& arena);
    void hand_over(Session& from, Session& to, Arena& arena, RegionId region);
    static RegionRecord record_of(const Arena& arena, RegionId region);
    void answer_tensor(Arena& arena, RegionId region, Effects& out);

    Books& books_;
    JournalGuard& journal_;
    const Growth& growth_;
};

}  // namespace fabricd
