// Groups: how ranks meet, leave, die and go on as a smaller group.

#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fabricd/pool/arena_memory.hpp"
#include "fabricd/pool/books.hpp"
#include "fabricd/pool/effects.hpp"
#include "fabricd/pool/growth.hpp"
#include "fabricd/pool/image.hpp"
#include "fabricd/pool/journal_guard.hpp"
#include "fabricd/pool/losses.hpp"
#include "fabricd/pool/regions.hpp"
#include "fabricd/pool/shards.hpp"

namespace fabricd {

/// Used by the control thread only.
class Groups {
  public:
    struct Needs {
        Books& books;
        JournalGuard& journal;
        ArenaMemory& memory;
        Growth& growth;
        Losses& losses;
        Regions& regions;
        Shards& shards;
    };

    explicit Groups(const Needs& needs)
        : books_(needs.books),
          journal_(needs.journal),
          memory_(needs.memory),
          growth_(needs.growth),
          losses_(needs.losses),
          regions_(needs.regions),
          shards_(needs.shards) {}

    // ---- Requests ----------------------------------------------------------------------------

    /// What is returned is complete with this rank, and form() is to be called, in the same turn,
    /// when its block has all the room that it can get.
    Result<std::optional<WaitKey>> join(Ticket ticket, const fabricshm::proto::Group& request,
                                        TimePoint now, Effects& out);
    /// Makes the group of those that wait and answers them all.
    void form(const WaitKey& key, Effects& out);
    Result<void> leave(SessionId session, const fabricshm::proto::Group& request, Effects& out);
    Result<void> shrink(Ticket ticket, const fabricshm::proto::Group& request, TimePoint now,
                        Effects& out);

    // ---- For arenas --------------------------------------------------------------------------

    /// The session leaves the arena. Its ranks are dead at once; what that ends is ended by
    /// leave_all(), when the session has given back what it held. `may_write`: its process may be
    /// storing still; see give_up().
    void mark_dead(SessionId session, Arena& arena, bool may_write, Effects& out);
    /// Its host is silent: the others go on without it, and no byte of their groups is granted
    /// until mark_dead() says that it writes no more.
    void give_up(SessionId session, Arena& arena, Effects& out);
    void leave_all(SessionId session, Arena& arena, Effects& out);
    /// The arena's memory is here again after a restart.
    void settle(Arena& arena, Effects& out);

    // ---- The journal -------------------------------------------------------------------------

    static Result<void> write(const Arena& arena, JournalSink& sink);
    /// kCorrupt when the journal contradicts itself.
    Result<void> restore(const ArenaImage& image, Arena& arena);

  private:
    Result<void> check_name(const Arena& arena, const std::string& name,
                            std::optional<SessionId> joins = std::nullopt) const;
    Result<void> check_forming(const WaitKey& key, const fabricshm::proto::Group& request) const;
    bool answer_again(const Arena& arena, Ticket ticket, const fabricshm::proto::Group& request,
                      Effects& out);
    void form_group(Arena& arena, const std::string& name, const std::vector<WaitId>& by_rank,
                    GroupId shrunk_from, Effects& out);
    Result<Group*> make(Arena& arena, const std::string& name,
                        const std::vector<SessionId>& by_rank, GroupId shrunk_from, Effects& out);
    Result<std::uint64_t> place_block(Arena& arena, Bytes bytes,
                                      const fabricshm::GroupBlockInfo& info, Effects& out);
    std::pair<Arena*, Group*> find(SessionId session, const fabricshm::proto::Group& request);
    void set_member(Arena& arena, Group& group, int rank, MemberState state);
    bool answer_shrink_again(const Group* successor, Ticket ticket, Effects& out);
    void check_shrink(Arena& arena, GroupId group, Effects& out);
    bool shrink_is_complete(const Arena& arena, GroupId group) const;
    void shrink_now(ArenaId arena, GroupId group, Effects& out);
    void reopen_shrink(Arena& arena, const Group& gone, Effects& out);
    void after_member_change(Arena& arena, GroupId group, Effects& out);
    void finish_members(Arena& arena, Effects& out);
    void sweep(Arena& arena, const std::vector<SessionId>& members, Effects& out);

    Books& books_;
    JournalGuard& journal_;
    ArenaMemory& memory_;
    Growth& growth_;
    Losses& losses_;
    Regions& regions_;
    Shards& shards_;
};

}  // namespace fabricd
