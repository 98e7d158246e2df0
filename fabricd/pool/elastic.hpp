// Elastic: published arenas whose makers give memory back when others need it, and get it again
// when it is free. A cache is the most elastic tenant of a pool: a request that finds the pool full
// waits until it has given way. docs/pool.md, libfabricshm/shm/elastic_words.hpp.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "fabricd/pool/arena_memory.hpp"
#include "fabricd/pool/books.hpp"
#include "fabricd/pool/effects.hpp"
#include "fabricd/pool/journal_guard.hpp"
#include "fabricd/pool/pool_work.hpp"
#include "fabricd/pool/snapshot.hpp"
#include "libfabricshm/shm/pin_page.hpp"

namespace fabricd {

/// Bytes go from one arena to another in two phases: the maker's word that it keeps to a target is
/// written down, then the pages go back, and only then the pool counts them as free. Used by the
/// control thread only.
class Elastic {
  public:
    /// `is_able`: arenas of this pool can lose pages at their end (not those of a device, nor of
    /// reserved huge pages).
    Elastic(Books& books, JournalGuard& journal, ArenaMemory& memory, PoolWork& work, bool is_able)
        : books_(books), journal_(journal), memory_(memory), work_(work), is_able_(is_able) {}

    // ---- Requests that the pool had no room for -----------------------------------------------

    /// What the making of an arena came to. True: the pool was full, others give way, and it is
    /// tried again once there is room, or once in vain when kWait is over. False: it is over, well
    /// or not.
    bool waits_for_room(ArenaId arena, const Result<fabricshm::PoolPiece>& piece);
    /// The same for an arena that grows, which goes on to count as growing. `need`: of its
    /// requests.
    bool waits_for_room(Arena& arena, Bytes to, Bytes need, const Result<void>& done);

    // ---- Arenas -------------------------------------------------------------------------------

    /// Its memory is here, made (`is_new`) or presented; before any session is answered.
    void settle(ArenaId arena, bool is_new);
    /// More of it is committed.
    void grown(Arena& arena);
    /// True: what ended were pages that went back, those from `to` on. False: it was a growth.
    bool shrunk(Arena& arena, Bytes to, const Result<void>& done, Effects& out);

    /// What makers said since; requests that wait; memory that is free. Call when it is due.
    void poll(TimePoint now);
    TimePoint next_poll() const noexcept { return next_poll_; }

    /// What caches may have at most, whatever is free, as the control loop decides: all of it or
    /// nothing. kNotFound: no elastic arena is called so. kBusy: a quota is not what it was.
    Result<void> shift(const std::vector<QuotaShift>& shifts);
    /// Whether these are quotas of caches: "cache:ARENA".
    static bool is_about_caches(const std::vector<QuotaShift>& shifts);

    std::vector<CacheView> views() const;
    /// What requests waited for so far, and what of that was refused in the end.
    PoolDemand demand() const noexcept { return demand_; }
    template <typename Picture>
    void add_to(Picture& picture) const {
        picture.caches = views();
        picture.demand = demand_;
        const fabricshm::PoolTotals totals = work_.totals();
        picture.pool.capacity_bytes = totals.capacity;
        picture.pool.used_bytes = totals.used;
    }

    /// A request waits no longer than this, which is less than clients wait for an answer.
    static constexpr Duration kWait = std::chrono::seconds(3);
    /// Free memory goes to a cache when no request has needed any for so long.
    static constexpr Duration kRest = std::chrono::seconds(2);
    static constexpr Duration kLongRest = std::chrono::seconds(30);

  private:
    /// Another attempt at what the pool had no room for.
    using Retry = std::function<void()>;
    struct Taker {
        Bytes more = 0;
        Bytes beyond = 0;  // what the pool had free when it refused: the machine has less
        TimePoint until = TimePoint::min();  // min: not seen by a poll() yet
        bool is_over = false;
        bool is_trying = false;
        Retry retry;
    };

    Arena* cache_named(const std::string& subject) const;
    bool wait_for_room(ArenaId taker, Bytes more, Retry retry);
    fabricshm::ElasticWords* words_of(const Arena& arena) const;
    Bytes least_of(const Arena& arena) const;
    Bytes givable(const Arena& arena) const;
    Bytes quota_of(const Arena& arena) const;
    Bytes usable_of(const Arena& arena) const;
    Bytes missing() const;
    void ask();
    void set_target(Arena& arena, Bytes bytes);
    void take_answer(Arena& arena);
    void let_grow(TimePoint now);
    void serve(TimePoint now);

    Books& books_;
    JournalGuard& journal_;
    ArenaMemory& memory_;
    PoolWork& work_;
    const bool is_able_;
    std::map<ArenaId, Taker> takers_;
    TimePoint next_poll_ = TimePoint::max();
    TimePoint rests_until_ = TimePoint::min();
    bool has_demand_ = false;  // since the last poll
    bool has_failed_ = false;  // likewise: what the pool counts as free is not
    PoolDemand demand_;
};

}  // namespace fabricd
