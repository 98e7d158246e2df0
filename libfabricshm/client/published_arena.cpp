#include "libfabricshm/client/published_arena.hpp"

#include <grp.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <thread>
#include <utility>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricshm {

namespace {

// Between two attempts to get what a process that was killed a moment ago had.
constexpr Duration kPause = std::chrono::milliseconds(20);
// How long: the daemon notices a death in less than that.
constexpr Duration kMaxPause = std::chrono::seconds(2);
// Until a listing and what it lists belong together.
constexpr int kListings = 64;

// "1000" or "group:NAME" as the daemon reads it: names are looked up here, where a slow name
// service holds up no other.
Result<std::string> reader_of(const std::string& text) {
    constexpr std::string_view kGroup = "group:";
    const Error unknown{Errc::kInvalid, 0, "readers of published arena"};
    if (text.starts_with(kGroup)) {
        const std::string name = text.substr(kGroup.size());
        const struct group* entry = ::getgrnam(name.c_str());
        if (entry == nullptr)
            return explain(unknown, "there is no group '%s' on this host", name.c_str());
        return "g" + std::to_string(entry->gr_gid);
    }
    std::uint32_t uid = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), uid);
    const bool number = read.ec == std::errc() && read.ptr == text.data() + text.size();
    if (!number || text.empty()) {
        return explain(unknown, "'%s' is no reader: a user's number, or group:NAME", text.c_str());
    }
    return "u" + text;
}

Result<std::string> readers_of(const std::vector<std::string>& readers) {
    std::string all;
    for (const std::string& reader : readers) {
        FABRIC_TRY(const std::string entry, reader_of(reader));
        all += (all.empty() ? "" : ",") + entry;
    }
    if (all.size() < proto::kReadersBytes) return all;
    return explain({Errc::kInvalid, 0, "readers of published arena"},
                   "%zu readers are more than fit: name a group", readers.size());
}

MapOptions options_of(const proto::ArenaOpen& opened, bool writable, bool of_device) {
    MapOptions options;
    options.writable = writable;
    options.align = std::max<Bytes>(opened.align, opened.huge_page_bytes);
    options.huge_page_bytes = opened.huge_page_bytes;
    options.is_inherited = !of_device;
    return options;
}

Result<Mapping> map_arena(const Session& session, const Session::KnownArena& known,
                          const proto::ArenaOpen& opened, bool writable) {
    // The session was lost between the answer and here, and the arena with it.
    if (known.descriptor == nullptr) return Error{Errc::kDaemon, 0, "open published arena"};
    const auto others =
        known.others != nullptr ? std::span<const Fd>(*known.others) : std::span<const Fd>();
    const MapOptions options = options_of(opened, writable, is_on_device(session.identity()));
    FABRIC_TRY(Mapping mapping, Mapping::map(*known.descriptor, others, proto::stripes_of(opened),
                                             proto::offset_of(opened), opened.bytes, options));
    if (mapping.size() <= kPublishedHeaderBytes) return Error{Errc::kCorrupt, 0, "published arena"};
    const auto& header = *reinterpret_cast<const PublishedHeader*>(mapping.data());
    // Acquire pairs with the release in Publications::settle().
    if (header.magic.load(std::memory_order_acquire) != kPublishedMagic) {
        return Error{Errc::kCorrupt, 0, "header of published arena"};
    }
    return mapping;
}

// A page whose file is what the daemon says: of a size that can't change, so that no word of it is
// a signal.
Result<Mapping> map_page(const Fd& file, bool writable) {
    MapOptions options;
    options.writable = writable;
    FABRIC_TRY(Mapping page, Mapping::map(file, 0, kPinFileBytes, options));
    return page;
}

void close_arena(Session& session, std::uint64_t id) {
    proto::Message request = proto::make_request(proto::Type::kArenaClose, 0);
    request.arena.arena_id = id;
    session.post(request);
    session.forget_arena(id);
}

bool is_of(const Session& session, std::uint64_t session_id) {
    return !session.is_foreign() && session.identity().id == session_id;
}

// Until the deadline, while the daemon has not noticed the end of the process before.
Result<proto::Message> open_patiently(Session& session, const proto::Message& request,
                                      const char* step, TimePoint deadline) {
    const TimePoint until = std::min(deadline, deadline_from_now(kMaxPause));
    for (;;) {
        auto reply = session.call(request, step, deadline, Retry::kHarmless);
        const bool busy = !reply.ok() && reply.error().code == Errc::kBusy;
        if (!busy || Clock::now() + kPause >= until) return reply;
        std::this_thread::sleep_for(kPause);
    }
}

// Commits the first `bytes` of it: the one region of a published arena is its maker's, and asking
// twice is harmless.
Result<proto::Region> commit(Session& session, std::uint64_t arena, Bytes bytes,
                             TimePoint deadline) {
    proto::Message request = proto::make_request(proto::Type::kRegionCreate, 0);
    request.region.arena_id = arena;
    request.region.bytes = bytes;
    FABRIC_TRY(const proto::Message reply,
               session.call(request, "commit published arena", deadline, Retry::kHarmless));
    const bool whole =
        reply.region.offset == kPublishedHeaderBytes && reply.region.bytes == request.region.bytes;
    if (!whole) return Error{Errc::kCorrupt, 0, "commit published arena"};
    return reply.region;
}

// What was committed stays so.
Result<void> free_region(Session& session, const proto::Region& region, TimePoint deadline) {
    proto::Message request = proto::make_request(proto::Type::kRegionFree, 0);
    request.region.arena_id = region.arena_id;
    request.region.region_id = region.region_id;
    const auto freed = session.call(request, "commit published arena", deadline, Retry::kHarmless);
    // A daemon that was started again in between had freed it.
    const bool is_gone = !freed.ok() && freed.error().code == Errc::kNotFound;
    return freed.ok() || is_gone ? Result<void>() : Result<void>(freed.error());
}

}  // namespace

std::unique_ptr<fork_guard::Hole> hole_of(const Session& session, const Mapping& mapping) {
    if (!is_on_device(session.identity())) return nullptr;
    return std::make_unique<fork_guard::Hole>(mapping.data(), mapping.size());
}

// ---- The maker ------------------------------------------------------------------------------

Result<std::shared_ptr<PublishedArena>> PublishedArena::open(
    std::shared_ptr<Session> session, const std::string& name, Bytes bytes,
    const std::vector<std::string>& readers, TimePoint deadline) {
    proto::Message request = proto::make_request(proto::Type::kArenaOpen, 0);
    FABRIC_TRY_VOID(proto::set_name(request.arena_open.name, name, "name"));
    FABRIC_TRY(const std::string list, readers_of(readers));
    list.copy(request.arena_open.readers, proto::kReadersBytes - 1);
    request.arena_open.flags = proto::kArenaPublish;
    request.arena_open.bytes = bytes;
    FABRIC_TRY(const proto::Message reply,
               open_patiently(*session, request, "publish arena", deadline));
    FAULT_POINT("pins.published");
    const proto::ArenaOpen& opened = reply.arena_open;
    const Session::KnownArena known = session->known_arena(opened.arena_id);
    FABRIC_TRY(Mapping mapping, map_arena(*session, known, opened, true));
    const auto& header = *reinterpret_cast<const PublishedHeader*>(mapping.data());
    // Written before the answer that let this session in.
    const bool is_new = header.makers.load(std::memory_order_relaxed) == 1;
    return std::shared_ptr<PublishedArena>(new PublishedArena(
        std::move(session), known.session_id, opened.arena_id, std::move(mapping), is_new));
}

Result<std::shared_ptr<PublishedArena>> PublishedArena::publish(
    std::shared_ptr<Session> session, const std::string& name, Bytes bytes,
    const std::vector<std::string>& readers, TimePoint deadline) {
    FABRIC_TRY(auto made, open(std::move(session), name, bytes, readers, deadline));
    FABRIC_TRY([[maybe_unused]] const proto::Region all,
               commit(*made->session_, made->id_, made->bytes(), deadline));
    return made;
}

// ---- Elastic --------------------------------------------------------------------------------

Result<std::shared_ptr<PublishedArena>> PublishedArena::publish_elastic(
    std::shared_ptr<Session> session, const std::string& name, Bytes bytes, Bytes floor,
    const std::vector<std::string>& readers, TimePoint deadline) {
    FABRIC_TRY(auto made, open(std::move(session), name, bytes, readers, deadline));
    FABRIC_TRY_VOID(made->commit_elastic(floor, deadline));
    return made;
}

Result<void> PublishedArena::commit_elastic(Bytes floor, TimePoint deadline) {
    // A daemon, or a pool, that takes nothing back has said nothing here.
    is_elastic_ = elastic().target.load(std::memory_order_acquire) != 0;
    floor = std::min(round_up(floor, kPageBytes), bytes());
    const bool has_enough = is_elastic_ && !is_new_ && committed() >= floor;
    for (Bytes wanted = bytes(); !has_enough;) {
        const auto region = commit(*session_, id_, wanted, deadline);
        const bool is_full = !region.ok() && region.error().code == Errc::kNoMemory;
        if (is_full && is_elastic_ && wanted > floor) {
            wanted = std::max(floor, round_up(wanted / 2, kPageBytes));
            continue;
        }
        if (!region.ok()) return region.error();
        if (is_elastic_) FABRIC_TRY_VOID(free_region(*session_, *region, deadline));
        break;
    }
    // Behind the region, which the daemon would not take a byte of.
    if (is_elastic_) {
        elastic().floor.store(floor + kPublishedHeaderBytes, std::memory_order_release);
    }
    return {};
}

Bytes PublishedArena::committed() const noexcept {
    if (!is_elastic_) return bytes();
    // Acquire: those pages are there.
    const Bytes all = elastic().committed.load(std::memory_order_acquire);
    return std::min(all, mapping_.size()) - std::min(all, kPublishedHeaderBytes);
}

// The word of a maker of before counts while its target does: behind that the daemon takes pages
// away. Once another target is there, none of it goes before this maker has answered.
Bytes PublishedArena::usable() const noexcept {
    if (!is_elastic_) return bytes();
    const ElasticWord target = unpack_elastic(elastic().target.load(std::memory_order_acquire));
    const ElasticWord kept = unpack_elastic(elastic().kept.load(std::memory_order_relaxed));
    const Bytes all = committed();
    if (kept.serial != target.serial || kept.bytes <= kPublishedHeaderBytes) return all;
    return std::min(all, kept.bytes - kPublishedHeaderBytes);
}

std::optional<ElasticTarget> PublishedArena::target() const noexcept {
    if (!is_elastic_) return std::nullopt;
    // Acquire: what is committed was so before.
    const ElasticWord word = unpack_elastic(elastic().target.load(std::memory_order_acquire));
    if (word.serial == answered_ || word.bytes <= kPublishedHeaderBytes) return std::nullopt;
    return ElasticTarget{word, std::min(word.bytes - kPublishedHeaderBytes, committed())};
}

void PublishedArena::keep(const ElasticTarget& target, Bytes bytes) noexcept {
    if (bytes <= target.bytes) answered_ = target.word.serial;
    const ElasticWord kept{target.word.serial, bytes + kPublishedHeaderBytes};
    // Release: the daemon that sees it takes the pages, behind all that was done with them here.
    elastic().kept.store(pack(kept), std::memory_order_release);
}

void PublishedArena::report(const ElasticUse& use) noexcept {
    const std::uint64_t words[] = {use.hits, use.misses, use.stall_ns, use.refetched,
                                   use.near, use.used,   use.readers};
    static_assert(sizeof words == sizeof use);
    // Relaxed: figures of one moment, none of which depends on another.
    for (std::size_t i = 0; i < kElasticUseWords; ++i) {
        elastic().use[i].store(words[i], std::memory_order_relaxed);
    }
}

bool PublishedArena::is_held() const noexcept {
    return is_of(*session_, session_id_);
}

bool PublishedArena::knows_all() const noexcept {
    // Sequentially consistent: behind the fence of PinScan, see Publications::make_page(). The
    // second word may be old: it says that a page is over, which holds nothing.
    return newest_ == header().newest.load(std::memory_order_seq_cst) &&
           changes_ == header().changes.load(std::memory_order_seq_cst) && changes_ != 0;
}

Result<void> PublishedArena::fetch_page(std::uint64_t number, TimePoint deadline) {
    proto::Message request = proto::make_request(proto::Type::kPinPage, 0);
    request.pin_page.arena_id = id_;
    request.pin_page.number = number;
    FABRIC_TRY(const proto::Message reply,
               session_->call(request, "pin page", deadline, Retry::kHarmless));
    const auto file = session_->known_arena(id_).pins->take(id_, number);
    if (file == nullptr) return Error{Errc::kDaemon, 0, "pin page"};
    FABRIC_TRY(Mapping page, map_page(*file, false));
    const auto* const pins = reinterpret_cast<const PinPage*>(page.data());
    pages_[number] = {{number, reply.pin_page.pid, reply.pin_page.uid, pins}, std::move(page)};
    return {};
}

// The numbers of all that are in force, and in newest_ and changes_ of when that was so.
Result<std::vector<std::uint64_t>> PublishedArena::list_pages(TimePoint deadline) {
    for (int listing = 0; listing < kListings; ++listing) {
        std::vector<std::uint64_t> numbers;
        std::uint64_t newest = 0, changes = 0;
        bool same = true;
        for (bool first = true;; first = false) {
            proto::Message request = proto::make_request(proto::Type::kPinPages, 0);
            request.pin_pages.arena_id = id_;
            request.pin_pages.above = numbers.empty() ? 0 : numbers.back();
            FABRIC_TRY(const proto::Message reply,
                       session_->call(request, "pin pages", deadline, Retry::kHarmless));
            const proto::PinPages& listed = reply.pin_pages;
            if (first) newest = listed.newest, changes = listed.changes;
            same = same && newest == listed.newest && changes == listed.changes;
            numbers.insert(numbers.end(), listed.numbers, listed.numbers + listed.count);
            if (!same || listed.count < proto::kPinPagesListed) break;
        }
        if (!same) continue;
        newest_ = newest;
        changes_ = changes;
        return numbers;
    }
    return Error{Errc::kBusy, 0, "pin pages: readers come and go"};
}

Result<void> PublishedArena::sync_pages(TimePoint deadline) {
    if (!is_held()) return Error{Errc::kClosed, 0, "pin pages"};
    newest_ = changes_ = 0;
    FABRIC_TRY(const std::vector<std::uint64_t> numbers, list_pages(deadline));
    const std::uint64_t newest = std::exchange(newest_, 0);
    const std::uint64_t changes = std::exchange(changes_, 0);
    std::erase_if(pages_, [&](const auto& known) {
        return !std::binary_search(numbers.begin(), numbers.end(), known.first);
    });
    Result<void> fetched;
    for (const std::uint64_t number : numbers) {
        if (pages_.count(number) != 0) continue;
        const auto one = fetch_page(number, deadline);
        // It has ended since: the next listing lacks it.
        const bool over = !one.ok() && one.error().code == Errc::kNotFound;
        if (!one.ok() && !over) fetched = one;
    }
    readers_.clear();
    for (const auto& [number, known] : pages_) readers_.push_back(known.reader);
    if (!fetched.ok()) return fetched;
    // Only now: until all of them are here, knows_all() has to be false.
    newest_ = newest;
    changes_ = changes;
    return {};
}

Result<void> PublishedArena::scan_all(PinScan& scan, TimePoint deadline) {
    for (;;) {
        if (!is_held()) return Error{Errc::kClosed, 0, "scan pins"};
        if (knows_all()) break;
        FABRIC_TRY_VOID(sync_pages(deadline));
        if (Clock::now() >= deadline && !knows_all()) return Error{Errc::kTimeout, 0, "scan pins"};
    }
    for (const ArenaReader& reader : readers_) {
        if (scan.all()) break;
        scan.page(*reader.page);
    }
    return {};
}

void PublishedArena::unpublish() noexcept {
    if (is_held()) close_arena(*session_, id_);
}

// ---- The reader -----------------------------------------------------------------------------

Result<std::shared_ptr<SubscribedArena>> SubscribedArena::subscribe(
    std::shared_ptr<Session> session, const std::string& name, TimePoint deadline) {
    proto::Message request = proto::make_request(proto::Type::kArenaOpen, 0);
    FABRIC_TRY_VOID(proto::set_name(request.arena_open.name, name, "name"));
    request.arena_open.flags = proto::kArenaSubscribe;
    FABRIC_TRY(const proto::Message reply,
               session->call(request, "subscribe to arena", deadline, Retry::kHarmless));
    const proto::ArenaOpen& opened = reply.arena_open;
    const Session::KnownArena known = session->known_arena(opened.arena_id);
    FABRIC_TRY(Mapping mapping, map_arena(*session, known, opened, false));
    FAULT_POINT("pins.subscribed");

    proto::Message ask = proto::make_request(proto::Type::kPinPage, 0);
    ask.pin_page.arena_id = opened.arena_id;
    FABRIC_TRY([[maybe_unused]] const proto::Message page,
               open_patiently(*session, ask, "pin page", deadline));
    const auto file = known.pins->own(opened.arena_id);
    if (file == nullptr) return Error{Errc::kDaemon, 0, "pin page"};
    FABRIC_TRY(Mapping pins, map_page(*file, true));
    FABRIC_TRY_VOID(check_pin_page(*reinterpret_cast<const PinPage*>(pins.data())));
    return std::shared_ptr<SubscribedArena>(
        new SubscribedArena(std::move(session), known.session_id, opened.arena_id,
                            std::move(mapping), std::move(pins)));
}

SubscribedArena::~SubscribedArena() {
    // First the mappings: the daemon lets the pins go then.
    hole_.reset();
    mapping_.reset();
    page_.reset();
    if (is_held()) close_arena(*session_, id_);
}

bool SubscribedArena::is_held() const noexcept {
    return is_of(*session_, session_id_);
}

}  // namespace fabricshm
