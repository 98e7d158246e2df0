// Publications: the rules of published arenas and of their readers' pages. docs/pool.md.

#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fabricd/pool/arena_memory.hpp"
#include "fabricd/pool/books.hpp"
#include "fabricd/pool/effects.hpp"
#include "fabricd/pool/image.hpp"
#include "fabricd/pool/journal_guard.hpp"
#include "libfabricshm/shm/pin_page.hpp"

namespace fabricd {

/// A page as its reader or the arena's maker gets it.
struct PinPageGrant {
    fabricshm::proto::PinPageRef page;
    fabricshm::Fd descriptor;
};

/// Of all pages that a session ever gets, and of those of a user that are in force at one time:
/// each is 36 KiB of memory and a descriptor of the daemon's.
inline constexpr int kPinPagesOfSession = 32;
inline constexpr int kPinPagesOfUser = 1024;

/// Used by the control thread only.
class Publications {
  public:
    /// `refusal`: why this daemon publishes no arenas; "": it does.
    Publications(Books& books, JournalGuard& journal, ArenaMemory& memory, std::string refusal)
        : books_(books), journal_(journal), memory_(memory), refusal_(std::move(refusal)) {}

    // ---- Of arenas, for Arenas ---------------------------------------------------------------

    /// Whether the request may make an arena: kNotFound for a subscription.
    Result<void> check_make(const fabricshm::proto::ArenaOpen& request) const;
    /// Whether the session may have the arena that is there, in the role that `flags` say.
    Result<void> check_open(const Session& session, const Arena& arena, std::uint32_t flags,
                            Bytes bytes) const;
    /// Its memory is here, made (`is_new`) or presented: it is closed to other users' writing.
    Result<void> settle(Arena& arena, bool is_new);
    /// The files that a session presents, from which a reader's are made writable again.
    static Result<void> make_writable(fabricshm::PresentedFiles& presented);
    /// The session has been let in; a maker is written down.
    Result<void> enter(const Session& session, Arena& arena, std::uint32_t flags,
                       const std::string& readers);
    /// The maker closes it: no session subscribes any more.
    void withdraw(Arena& arena);
    /// The session is out of the arena. Its page is over, or waits for the end of its process.
    void leave(const Session& session, Arena& arena);
    /// The arena goes.
    void forget(const Arena& arena);

    Result<void> restore(const ArenaImage& image, Arena& arena);
    Result<void> write(const Arena& arena, JournalSink& sink) const;

    // ---- Requests ----------------------------------------------------------------------------

    /// A reader's own page (`number` 0), made when it has none; or, for the maker, that of a
    /// reader. kBusy: the arena or the page was not presented yet since the daemon was started.
    Result<PinPageGrant> page(SessionId session, ArenaId arena, std::uint64_t number);
    /// For the maker: the numbers of the pages in force above `above`, as many as fit.
    Result<fabricshm::proto::PinPages> list(SessionId session,
                                            const fabricshm::proto::PinPages& request);
    /// A reader that is back presents its page. kCorrupt unless it is the file that it was given.
    Result<void> adopt(SessionId session, ArenaId arena, std::uint64_t number, fabricshm::Fd file);

    // ---- Processes ---------------------------------------------------------------------------

    /// The process of a session that is over has ended: its pages are, too.
    void process_ended(SessionId session, Effects& out);
    /// Sessions that are over, and whose pages or arena wait for the ends of their processes.
    std::vector<std::pair<SessionId, std::int32_t>> orphans() const;
    bool has_orphans(SessionId session) const;

  private:
    Result<PinPageGrant> make_page(const Session& session, Arena& arena);
    Result<void> check_counts(const Session& session) const;
    void end_page(Arena& arena, std::uint64_t number);
    fabricshm::PublishedHeader* header_of(const Arena& arena) const;

    Books& books_;
    JournalGuard& journal_;
    ArenaMemory& memory_;
    const std::string refusal_;
};

}  // namespace fabricd
