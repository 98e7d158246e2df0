#include "fabricd/pool/publications.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string_view>

#include "fabricd/pool/refusals.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/page_file.hpp"
#include "libfabricshm/os/reopen.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;
using fabricshm::explain;
using fabricshm::Fd;

namespace {

constexpr std::uint32_t kRoot = 0;

// "u1000" or "g27".
bool admits_by(std::string_view entry, const Peer& peer, const std::vector<std::uint32_t>& groups) {
    if (entry.size() < 2) return false;
    std::uint32_t number = 0;
    const auto read = std::from_chars(entry.data() + 1, entry.data() + entry.size(), number);
    if (read.ec != std::errc() || read.ptr != entry.data() + entry.size()) return false;
    if (entry[0] == 'u') return number == peer.uid;
    return entry[0] == 'g' &&
           (number == peer.gid || std::find(groups.begin(), groups.end(), number) != groups.end());
}

bool admits_by_list(std::string_view readers, const Session& session) {
    while (!readers.empty()) {
        const std::size_t end = std::min(readers.find(','), readers.size());
        if (admits_by(readers.substr(0, end), session.peer, session.groups)) return true;
        readers.remove_prefix(std::min(end + 1, readers.size()));
    }
    return false;
}

void format_page(std::byte* page) noexcept {
    fabricshm::format_pin_page(*reinterpret_cast<fabricshm::PinPage*>(page));
}

// The memory of a page goes back although a process may keep the file: what is stored there from
// now on is that process's own.
void empty(const Fd& file) {
    if (!file) return;
    ::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                static_cast<off_t>(fabricshm::kPinFileBytes));
}

proto::PinPageRef ref_of(ArenaId arena, std::uint64_t number, const PinPageEntry& page) {
    proto::PinPageRef ref{};
    ref.arena_id = raw(arena);
    ref.number = number;
    ref.bytes = fabricshm::kPinFileBytes;
    ref.session_id = raw(page.session);
    ref.pid = page.pid;
    ref.uid = page.uid;
    return ref;
}

PinPageRecord record_of(ArenaId arena, std::uint64_t number, const PinPageEntry& page) {
    PinPageRecord record{};
    record.arena = raw(arena);
    record.number = number;
    record.session = raw(page.session);
    record.device = page.identity.device;
    record.inode = page.identity.inode;
    record.file_bytes = page.identity.bytes;
    record.seals = page.identity.seals;
    record.pid = page.pid;
    record.uid = page.uid;
    return record;
}

ArenaPublishedRecord record_of(const Arena& arena) {
    ArenaPublishedRecord record{};
    record.arena = raw(arena.id);
    const Publication& published = *arena.published;
    record.maker = raw(published.maker != SessionId::kNone ? published.maker : published.former);
    record.maker_pid = record.maker != 0 ? published.maker_pid : 0;
    record.withdrawn = published.withdrawn ? 1 : 0;
    published.readers.copy(record.readers, sizeof record.readers - 1);
    return record;
}

// A file that can have no seals is a device: its node's rights are all that there is.
bool is_device(const Arena& arena) {
    return arena.identity.seals == ~std::uint32_t{0};
}

}  // namespace

// ---- Of arenas ------------------------------------------------------------------------------

Result<void> Publications::check_make(const proto::ArenaOpen& request) const {
    if ((request.flags & proto::kArenaSubscribe) != 0) {
        return explain({Errc::kNotFound, 0, "subscribe to arena"},
                       "no arena '%s' is published here", std::string(request.name).c_str());
    }
    const bool refused = (request.flags & proto::kArenaPublish) != 0 && !refusal_.empty();
    if (!refused) return {};
    return explain({Errc::kUnsupported, 0, "publish arena"}, "%s", refusal_.c_str());
}

Result<void> Publications::check_open(const Session& session, const Arena& arena,
                                      std::uint32_t flags, Bytes bytes) const {
    const char* name = arena.name.c_str();
    const bool publishes = (flags & proto::kArenaPublish) != 0;
    const bool subscribes = (flags & proto::kArenaSubscribe) != 0;
    if (!publishes && !subscribes) {
        return explain({Errc::kExists, 0, "open arena"},
                       "arena '%s' is published: its readers subscribe to it", name);
    }
    if (!arena.published) {
        return explain({Errc::kExists, 0, "open arena"}, "arena '%s' is there, and not published",
                       name);
    }
    const Publication& published = *arena.published;
    if (published.withdrawn) {
        return explain({publishes ? Errc::kBusy : Errc::kNotFound, 0, "open arena"},
                       "arena '%s' is published no more; readers still have it", name);
    }
    if (publishes) {
        if (arena.uid != session.peer.uid) {
            return explain({Errc::kDenied, 0, "publish arena"},
                           "arena '%s' is published by another user", name);
        }
        if (published.maker != SessionId::kNone && published.maker != session.id) {
            return explain({Errc::kBusy, 0, "publish arena"},
                           "arena '%s' is published by session %llu", name, shown(published.maker));
        }
        if (published.former != SessionId::kNone && published.maker_pid != session.peer.pid) {
            return explain({Errc::kBusy, 0, "publish arena"},
                           "arena '%s': process %d, which published it and was given up, may live",
                           name, published.maker_pid);
        }
        if (arena.sessions.count(session.id) != 0 && published.maker != session.id) {
            return explain({Errc::kInvalid, 0, "publish arena"}, "arena '%s': the session reads it",
                           name);
        }
        const Bytes wanted = RegionAllocator::rounded(bytes);
        if (bytes != 0 && wanted != arena.bytes && arena.state != ArenaState::kMaking) {
            return explain({Errc::kExists, 0, "publish arena"},
                           "arena '%s' is there with %s: withdraw it, or take it up with that size",
                           name, fabricshm::format_bytes(arena.bytes).c_str());
        }
        return {};
    }
    if (published.maker == session.id) {
        return explain({Errc::kInvalid, 0, "subscribe to arena"},
                       "arena '%s': the session itself publishes it", name);
    }
    const std::uint32_t uid = session.peer.uid;
    const bool trusted = uid == kRoot || uid == books_.limits.own_uid || uid == arena.uid;
    const bool admitted =
        trusted || published.readers.empty() || admits_by_list(published.readers, session);
    if (admitted) return {};
    return explain({Errc::kDenied, 0, "subscribe to arena"},
                   "arena '%s' is not published for user %u", name, uid);
}

Result<void> Publications::settle(Arena& arena, bool is_new) {
    if (!arena.published) return {};
    if (!is_device(arena)) {
        // Before any reader has a descriptor of it; again when it is presented, since a daemon may
        // have been killed in open_writable().
        FABRIC_TRY_VOID(fabricshm::keep_to_owner(arena.files.fd));
        FABRIC_TRY(arena.published->read_only, fabricshm::open_read_only(arena.files.fd));
    }
    fabricshm::PublishedHeader* const header = header_of(arena);
    if (header == nullptr) return Error{Errc::kBusy, 0, "header of published arena"};
    if (is_new) {
        header->newest.store(0, std::memory_order_relaxed);
        header->changes.store(0, std::memory_order_relaxed);
        header->makers.store(0, std::memory_order_relaxed);
    }
    // Pages may have ended while it was away.
    header->changes.fetch_add(1, std::memory_order_seq_cst);
    // Release: a maker that sees the magic sees a header.
    header->magic.store(fabricshm::kPublishedMagic, std::memory_order_release);
    return {};
}

Result<void> Publications::make_writable(fabricshm::PresentedFiles& presented) {
    const int flags = ::fcntl(presented.fd.get(), F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) != O_RDONLY) return {};
    FABRIC_TRY(presented.fd, fabricshm::open_writable(presented.fd));
    return {};
}

Result<void> Publications::enter(const Session& session, Arena& arena, std::uint32_t flags,
                                 const std::string& readers) {
    if ((flags & proto::kArenaPublish) == 0) return {};
    Publication& published = *arena.published;
    std::string before = std::exchange(published.readers, readers);
    const SessionId maker = std::exchange(published.maker, session.id);
    const SessionId former = std::exchange(published.former, SessionId::kNone);
    const std::int32_t pid = std::exchange(published.maker_pid, session.peer.pid);
    const auto written = journal_.add(record_of(arena));
    if (!written.ok()) {
        published.readers = std::move(before);
        published.maker = maker;
        published.former = former;
        published.maker_pid = pid;
        return written;
    }
    auto* const header = header_of(arena);
    const bool other = maker != session.id;
    if (header != nullptr && other) header->makers.fetch_add(1, std::memory_order_relaxed);
    return {};
}

void Publications::withdraw(Arena& arena) {
    arena.published->withdrawn = true;
    journal_.note(record_of(arena));
}

void Publications::leave(const Session& session, Arena& arena) {
    if (!arena.published) return;
    if (arena.published->maker == session.id) {
        arena.published->maker = SessionId::kNone;
        if (session.may_live) arena.published->former = session.id;
        journal_.note(record_of(arena));
    }
    const std::uint64_t number = arena.published->page_of(session.id);
    if (number == 0) return;
    // A process that is stopped, say: it may go on to read what it has pinned.
    if (session.may_live) {
        arena.published->pages.at(number).is_orphan = true;
        return;
    }
    end_page(arena, number);
}

void Publications::end_page(Arena& arena, std::uint64_t number) {
    const auto found = arena.published->pages.find(number);
    const std::uint32_t uid = found->second.uid;
    FAULT_POINT("pins.before_end");
    journal_.note(PinPageEndRecord{raw(arena.id), number});
    FAULT_POINT("pins.after_end");
    empty(found->second.file);
    arena.published->pages.erase(found);
    if (--books_.pin_pages[uid] <= 0) books_.pin_pages.erase(uid);
    // Release: the maker that sees it asks, and finds the page gone.
    auto* const header = header_of(arena);
    if (header != nullptr) header->changes.fetch_add(1, std::memory_order_release);
}

void Publications::forget(const Arena& arena) {
    if (!arena.published) return;
    for (const auto& [number, page] : arena.published->pages) {
        if (--books_.pin_pages[page.uid] <= 0) books_.pin_pages.erase(page.uid);
    }
}

fabricshm::PublishedHeader* Publications::header_of(const Arena& arena) const {
    if (arena.state == ArenaState::kAway) return nullptr;
    const auto span = memory_.span(arena.id, 0, fabricshm::kPublishedHeaderBytes);
    if (!span.ok()) return nullptr;
    return reinterpret_cast<fabricshm::PublishedHeader*>(span->data);
}

// ---- Requests -------------------------------------------------------------------------------

Result<PinPageGrant> Publications::page(SessionId session, ArenaId id, std::uint64_t number) {
    FABRIC_TRY(Arena * arena, books_.arena_held_by(session, id));
    if (!arena->published) return Error{Errc::kInvalid, 0, "pin page: the arena is not published"};
    if (arena->state != ArenaState::kHere) return Error{Errc::kBusy, 0, "pin page: arena is away"};
    Publication& published = *arena->published;
    const bool is_maker = published.maker == session;
    if (!is_maker && number == 0) return make_page(books_.session(session), *arena);
    if (!is_maker) return Error{Errc::kDenied, 0, "pin page of another session"};
    const auto found = published.pages.find(number);
    if (found == published.pages.end()) return Error{Errc::kNotFound, 0, "pin page"};
    if (!found->second.file) {
        return explain({Errc::kBusy, 0, "pin page"},
                       "the reader (pid %d) has not presented its page since fabricd was started",
                       found->second.pid);
    }
    FABRIC_TRY(Fd descriptor, fabricshm::open_read_only(found->second.file));
    return PinPageGrant{ref_of(id, number, found->second), std::move(descriptor)};
}

Result<void> Publications::check_counts(const Session& session) const {
    if (session.pin_pages >= kPinPagesOfSession) {
        return refuse_count("pin pages", "this session", "pin pages", kPinPagesOfSession, "");
    }
    const auto used = books_.pin_pages.find(session.peer.uid);
    if (used == books_.pin_pages.end() || used->second < kPinPagesOfUser) return {};
    return refuse_count("pin pages", "user " + std::to_string(session.peer.uid), "pin pages",
                        kPinPagesOfUser, "");
}

// Asked twice, a session gets the same page again. One that it was never given, since the daemon
// was killed before it answered, is replaced: else its reader would have presented it.
Result<PinPageGrant> Publications::make_page(const Session& session, Arena& arena) {
    Publication& published = *arena.published;
    if (const std::uint64_t known = published.page_of(session.id); known != 0) {
        PinPageEntry& page = published.pages.at(known);
        if (page.file) {
            Fd copy(::fcntl(page.file.get(), F_DUPFD_CLOEXEC, 0));
            if (!copy) return fabricshm::error_from_errno(errno, "pin page");
            return PinPageGrant{ref_of(arena.id, known, page), std::move(copy)};
        }
        end_page(arena, known);
    }
    FABRIC_TRY_VOID(check_counts(session));
    FABRIC_TRY(auto file,
               fabricshm::make_page_file("fabric-pins", fabricshm::kPinFileBytes,
                                         fabricshm::PageAccess::kReadWrite, format_page));
    PinPageEntry page;
    page.session = session.id;
    page.pid = session.peer.pid;
    page.uid = session.peer.uid;
    FABRIC_TRY(page.identity, identity_of(file.descriptor));
    page.file = Fd(::fcntl(file.descriptor.get(), F_DUPFD_CLOEXEC, 0));
    if (!page.file) return fabricshm::error_from_errno(errno, "pin page");
    auto* const header = header_of(arena);
    if (header == nullptr) return Error{Errc::kBusy, 0, "pin page: arena is away"};
    const std::uint64_t number = books_.next_id();
    FAULT_POINT("pins.before_page");
    FABRIC_TRY_VOID(journal_.add(record_of(arena.id, number, page)));
    FAULT_POINT("pins.after_page");
    ++books_.session(session.id).pin_pages;
    ++books_.pin_pages[page.uid];
    // Before the reader is answered, and sequentially consistent. The maker stores a line's word,
    // then loads this (a fence between, PinScan), then scans the pages up to it. When its load
    // comes before this store, so does its word before everything that the reader does with its
    // page: the reader's second load of the word, in pin(), finds it changed. Else the maker learns
    // of the page before it scans. tests/models/pin.pml has both, and finds an answer that goes
    // first.
    header->newest.store(number, std::memory_order_seq_cst);
    const auto ref = ref_of(arena.id, number, page);
    published.pages.emplace(number, std::move(page));
    return PinPageGrant{ref, std::move(file.descriptor)};
}

Result<proto::PinPages> Publications::list(SessionId session, const proto::PinPages& request) {
    const ArenaId id{request.arena_id};
    FABRIC_TRY(Arena * arena, books_.arena_held_by(session, id));
    if (!arena->published || arena->published->maker != session) {
        return Error{Errc::kDenied, 0, "pin pages: not the maker"};
    }
    const auto* const header = header_of(*arena);
    if (header == nullptr) return Error{Errc::kBusy, 0, "pin pages: arena is away"};
    const auto& pages = arena->published->pages;
    proto::PinPages listed{};
    listed.arena_id = request.arena_id;
    listed.above = request.above;
    // The control thread is the only one to change either.
    listed.newest = header->newest.load(std::memory_order_relaxed);
    listed.changes = header->changes.load(std::memory_order_relaxed);
    listed.total = static_cast<std::uint32_t>(pages.size());
    for (auto at = pages.upper_bound(request.above);
         at != pages.end() && listed.count < proto::kPinPagesListed; ++at) {
        listed.numbers[listed.count++] = at->first;
    }
    return listed;
}

Result<void> Publications::adopt(SessionId session, ArenaId id, std::uint64_t number, Fd file) {
    FABRIC_TRY(Arena * arena, books_.arena_held_by(session, id));
    if (!arena->published) return Error{Errc::kInvalid, 0, "adopt pin page: not published"};
    const auto found = arena->published->pages.find(number);
    const bool own = found != arena->published->pages.end() && found->second.session == session;
    if (!own) return Error{Errc::kNotFound, 0, "adopt pin page"};
    FABRIC_TRY(const FileIdentity identity, identity_of(file));
    if (!(identity == found->second.identity)) {
        return Error{Errc::kCorrupt, 0, "adopt pin page: another file"};
    }
    found->second.file = std::move(file);
    return {};
}

// ---- Processes ------------------------------------------------------------------------------

void Publications::process_ended(SessionId session, Effects& out) {
    for (auto& [id, arena] : books_.arenas) {
        if (!arena.published) continue;
        if (arena.published->former == session) {
            arena.published->former = SessionId::kNone;
            journal_.note(record_of(arena));
        }
        const std::uint64_t number = arena.published->page_of(session);
        if (number == 0 || !arena.published->pages.at(number).is_orphan) continue;
        end_page(arena, number);
        out.left.push_back(id);
    }
}

std::vector<std::pair<SessionId, std::int32_t>> Publications::orphans() const {
    std::vector<std::pair<SessionId, std::int32_t>> all;
    for (const auto& [id, arena] : books_.arenas) {
        if (!arena.published) continue;
        const Publication& published = *arena.published;
        if (published.former != SessionId::kNone) {
            all.emplace_back(published.former, published.maker_pid);
        }
        for (const auto& [number, page] : published.pages) {
            if (page.is_orphan) all.emplace_back(page.session, page.pid);
        }
    }
    return all;
}

bool Publications::has_orphans(SessionId session) const {
    const auto all = orphans();
    return std::any_of(all.begin(), all.end(),
                       [&](const auto& orphan) { return orphan.first == session; });
}

// ---- The journal ----------------------------------------------------------------------------

Result<void> Publications::restore(const ArenaImage& image, Arena& arena) {
    if (!image.published) return {};
    Publication& published = arena.published.emplace();
    published.readers = image.published->readers;
    published.withdrawn = image.published->withdrawn != 0;
    const SessionId maker{image.published->maker};
    published.maker_pid = image.published->maker_pid;
    // One that has left said so, unless its process may live.
    (arena.sessions.count(maker) != 0 ? published.maker : published.former) = maker;
    // The daemon's own, at its start.
    if (!arena.space.reserve(0, fabricshm::kPublishedHeaderBytes)) return kContradiction;
    for (const auto& [number, record] : image.pin_pages) {
        PinPageEntry page;
        page.session = SessionId{record.session};
        page.pid = record.pid;
        page.uid = record.uid;
        page.identity = {record.device, record.inode, record.file_bytes, record.seals};
        page.is_orphan = arena.sessions.count(page.session) == 0;
        if (published.page_of(page.session) != 0) return kContradiction;
        ++books_.pin_pages[page.uid];
        published.pages.emplace(number, std::move(page));
    }
    return {};
}

Result<void> Publications::write(const Arena& arena, JournalSink& sink) const {
    if (!arena.published) return {};
    FABRIC_TRY_VOID(sink.add(record_of(arena)));
    for (const auto& [number, page] : arena.published->pages) {
        FABRIC_TRY_VOID(sink.add(record_of(arena.id, number, page)));
    }
    return {};
}

}  // namespace fabricd
