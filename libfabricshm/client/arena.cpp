#include "libfabricshm/client/arena.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/include/fabricshm/fabricshm.h"
#include "libfabricshm/proto/codec.hpp"
#include "libfabricshm/shm/flush_policy.hpp"
#include "libfabricshm/shm/link_policy.hpp"

namespace fabricshm {

namespace {

// Committing memory takes the daemon 0.3 s/GiB on an idle machine; this is for a busy one.
constexpr Duration kClearingPerGib = std::chrono::seconds(2);

// Others wait for the group to break while the daemon is asked which region it was.
constexpr Duration kReportTimeout = std::chrono::seconds(1);

// Rounded up, since a small arena has its gibibyte of address space, too.
Duration clearing_time(Bytes bytes) {
    const Bytes gibibytes = bytes / kGiB + 1;
    return kClearingPerGib * static_cast<std::int64_t>(gibibytes);
}

// The profile that the daemon says its pool has, or that FABRIC_VISIBILITY names: all ranks of a
// job have to be started with the same.
Result<std::shared_ptr<VisibilityPolicy>> policy_of(const SessionIdentity& daemon) {
    const char* name = std::getenv("FABRIC_VISIBILITY");
    if (name == nullptr || *name == '\0') name = daemon.visibility.data();
    if (*name == '\0') return std::shared_ptr<VisibilityPolicy>();
    FABRIC_TRY(const VisibilityProfile profile, find_profile(name));
    return make_policy(profile);
}

// The heap gets and returns its regions through its arena.
class HeapRegions final : public RegionSource {
  public:
    explicit HeapRegions(Arena& arena) : arena_(arena) {}

    Result<HeapRegion> take(Bytes bytes) override {
        const TimePoint deadline = arena_.session().default_deadline();
        auto region = arena_.create_region(bytes);
        // Whether the daemon made it before it died can't be known; asking again may leave one
        // region unused until the session ends. That is better than failing a message or an
        // allocation because of a restart.
        while (!region.ok() && region.error().code == Errc::kDaemon && Clock::now() < deadline) {
            region = arena_.create_region(bytes);
        }
        if (!region.ok()) return region.error();
        const std::lock_guard lock(mutex_);
        if (!arena_.visibility().coherent()) taken_[region->region_id] = region.value();
        return HeapRegion{region->region_id, arena_.base() + region->offset, region->bytes};
    }

    // Nothing waits for the answer: giving back may not fail, nor wait for a daemon that is away.
    void give_back(std::uint64_t region_id) noexcept override {
        publish_last(region_id);
        proto::Message request = proto::make_request(proto::Type::kRegionFree, 0);
        request.region.arena_id = arena_.id();
        request.region.region_id = region_id;
        arena_.session().post(request);
    }

  private:
    void publish_last(std::uint64_t region_id) noexcept {
        const std::lock_guard lock(mutex_);
        const auto found = taken_.find(region_id);
        if (found == taken_.end()) return;
        arena_.publish_before_return(found->second);
        taken_.erase(found);
    }

    Arena& arena_;
    std::mutex mutex_;
    std::map<std::uint64_t, proto::Region> taken_;  // where memory is not coherent: their places
};

// The ranks of arenas that are opened one after the other are counted in places so far apart.
constexpr std::uint32_t kSlotsApart = 5;

proto::Message close_request(std::uint64_t arena_id) {
    proto::Message request = proto::make_request(proto::Type::kArenaClose, 0);
    request.arena.arena_id = arena_id;
    return request;
}

// The policy of an arena with a link page. The page is mapped once more: another policy may have
// put memory of its own where the arena is mapped, and the links are shared by all.
// Links work on top of whatever else the arena's memory needs, which is `inner`. `pool`: the page
// on which all arenas charge their accesses as well, or nullptr.
Result<std::shared_ptr<VisibilityPolicy>> policy_of_links(const Fd& file, const Fd* pool,
                                                          const proto::ArenaOpen& opened,
                                                          std::shared_ptr<VisibilityPolicy> inner,
                                                          bool is_inherited) {
    MapOptions options;
    options.align = opened.align;
    options.is_inherited = is_inherited;
    FABRIC_TRY(Mapping page, Mapping::map(file, opened.file_offset,
                                          round_up(kLinkPageBytes, opened.align), options));
    Mapping shared;
    if (pool != nullptr) {
        FABRIC_TRY(shared, Mapping::map(*pool, 0, kLinkPageBytes, {}));
    }
    FABRIC_TRY(std::shared_ptr<LinkPolicy> policy,
               LinkPolicy::open(std::move(page), std::move(inner), std::move(shared),
                                static_cast<std::uint32_t>(opened.arena_id) * kSlotsApart));
    return std::shared_ptr<VisibilityPolicy>(std::move(policy));
}

}  // namespace

Result<std::shared_ptr<Arena>> Arena::open(std::shared_ptr<Session> session,
                                           const std::string& name, Bytes bytes,
                                           std::uint32_t flags) {
    proto::Message request = proto::make_request(proto::Type::kArenaOpen, 0);
    FABRIC_TRY_VOID(proto::set_name(request.arena_open.name, name, "name"));
    request.arena_open.bytes = bytes;
    request.arena_open.flags = flags;
    // Asked again, an exclusive open could find the arena that its first attempt made.
    const bool exclusive = (flags & FABRICSHM_ARENA_EXCLUSIVE) != 0;
    const Retry retry = exclusive ? Retry::kNever : Retry::kHarmless;
    // Some pools commit a new arena whole before the daemon answers; `bytes` of 0, its default,
    // gets one gibibyte's time.
    const TimePoint deadline = deadline_after(session->default_deadline(), clearing_time(bytes));
    FABRIC_TRY(const proto::Message reply, session->call(request, "open arena", deadline, retry));

    FAULT_POINT("arena.granted");
    auto arena = map(session, reply.arena_open, name);
    if (arena.ok()) return arena;
    // Another handle may use it; else the next open of its name comes after this.
    const std::uint64_t id = reply.arena_open.arena_id;
    if (session->forget_arena(id, true)) session->post(close_request(id));
    if (arena.error().code != Errc::kNoMemory) return arena;
    return explain(arena.error(),
                   "this process has no room for another mapping of %s (RLIMIT_AS, "
                   "vm.max_map_count)",
                   format_bytes(reply.arena_open.bytes).c_str());
}

Result<std::shared_ptr<Arena>> Arena::map(const std::shared_ptr<Session>& session,
                                          const proto::ArenaOpen& opened, const std::string& name) {
    const Session::KnownArena known = session->known_arena(opened.arena_id);
    // The session was lost between the answer and here, and the arena with it.
    if (known.descriptor == nullptr) return Error{Errc::kDaemon, 0, "open arena"};
    MapOptions options;
    // Both, so that huge pages of the file can be huge pages of the mapping.
    options.align = std::max<Bytes>(opened.align, opened.huge_page_bytes);
    options.huge_page_bytes = opened.huge_page_bytes;
    options.is_inherited = !is_on_device(session->identity());
    const Stripes stripes = proto::stripes_of(opened);
    const std::uint64_t offset = proto::offset_of(opened);
    const auto others =
        known.others != nullptr ? std::span<const Fd>(*known.others) : std::span<const Fd>();
    FABRIC_TRY(Mapping mapping,
               Mapping::map(*known.descriptor, others, stripes, offset, opened.bytes, options));
    std::shared_ptr<VisibilityPolicy> policy;
    // An installed provider is a test's or an emulator's, and goes before the environment.
    if (VisibilityProvider* provider = installed_visibility(); provider != nullptr) {
        // It is given one file.
        if (!stripes.is_one_file()) return Error{Errc::kUnsupported, 0, "open arena: visibility"};
        FABRIC_TRY(policy, provider->policy_for(*known.descriptor, opened.file_offset,
                                                mapping.data(), mapping.size()));
    } else {
        FABRIC_TRY(policy, policy_of(session->identity()));
    }
    if (opened.link_bytes != 0) {
        FABRIC_TRY(policy, policy_of_links(*known.descriptor, known.links.get(), opened,
                                           std::move(policy), options.is_inherited));
    }
    // A policy may show something else than the file at these addresses: nothing is put back then.
    const PoisonWatch::Source source{policy == nullptr ? known.descriptor : nullptr,
                                     offset,
                                     opened.align,
                                     true,
                                     known.others,
                                     stripes,
                                     options.is_inherited};
    std::shared_ptr<Arena> arena(new Arena(session, known, opened.arena_id, name,
                                           std::move(mapping), std::move(policy), source));
    // Before the arena can be used: news of a loss that came earlier would have no receiver.
    session->watch_losses(opened.arena_id, arena->watch_);
    return arena;
}

Arena::Arena(std::shared_ptr<Session> session, const Session::KnownArena& known, std::uint64_t id,
             std::string name, Mapping mapping, std::shared_ptr<VisibilityPolicy> policy,
             PoisonWatch::Source source)
    : session_(std::move(session)),
      session_id_(known.session_id),
      stay_(known.stay),
      id_(id),
      name_(std::move(name)),
      mapping_(std::move(mapping)),
      hole_(source.is_inherited ? nullptr : std::make_unique<fork_guard::Hole>(base(), bytes())),
      policy_(std::move(policy)),
      watch_(std::make_shared<PoisonWatch>(mapping_.data(), mapping_.size(), std::move(source))),
      heap_(std::make_unique<ArenaHeap>(std::make_unique<HeapRegions>(*this), mapping_.size())) {}

void Arena::close() noexcept {
    // A session that is not the one which opened it: the daemon has given that one's arenas back
    // already, and the id may be another arena's.
    if (session_->is_foreign() || session_->identity().id != session_id_) return;
    session_->post(close_request(id_));
    session_->forget_arena(id_);
}

Result<proto::Message> Arena::call(const proto::Message& request, const char* step,
                                   TimePoint deadline, Retry retry) {
    if (session_->is_foreign()) return Error{Errc::kClosed, 0, step};
    if (session_->identity().id != session_id_) return Error{Errc::kNotFound, 0, step};
    return session_->call(request, step, deadline, retry);
}

// Whatever the daemon answers is checked again here: what lies outside of the mapping would be a
// crash far from its cause.
Result<proto::Region> Arena::region_call(proto::Message request, const char* step,
                                         TimePoint deadline, Retry retry) {
    request.region.arena_id = id_;
    FABRIC_TRY(const proto::Message reply, call(request, step, deadline, retry));
    const proto::Region& region = reply.region;
    const bool sound = region.arena_id == id_ && holds(region.offset, region.bytes);
    if (!sound) return Error{Errc::kCorrupt, 0, step};
    return region;
}

void Arena::note_tensor(const proto::Region& region) {
    const std::lock_guard lock(tensors_mutex_);
    tensors_[region.region_id] = region.generation;
}

std::optional<std::uint64_t> Arena::tensor_generation(std::uint64_t region_id) const {
    const std::shared_lock lock(tensors_mutex_);
    const auto found = tensors_.find(region_id);
    if (found == tensors_.end()) return std::nullopt;
    return found->second;
}

TimePoint Arena::deadline_for(Bytes bytes) const {
    return deadline_after(session_->default_deadline(), clearing_time(bytes));
}

Result<proto::Region> Arena::create_region(Bytes bytes) {
    proto::Message request = proto::make_request(proto::Type::kRegionCreate, 0);
    request.region.bytes = bytes;
    // Never asked again: a second region would have no owner. Callers that can live with that ask
    // again themselves (HeapRegions).
    auto region = region_call(request, "create region", deadline_for(bytes), Retry::kNever);
    FAULT_POINT("region.granted");
    return region;
}

Result<proto::Region> Arena::open_region(std::uint64_t region_id) {
    proto::Message request = proto::make_request(proto::Type::kRegionOpen, 0);
    request.region.region_id = region_id;
    return region_call(request, "open region", session_->default_deadline(), Retry::kHarmless);
}

Result<void> Arena::commit() {
    proto::Message request = proto::make_request(proto::Type::kArenaCommit, 0);
    request.arena.arena_id = id_;
    const char* const step = "commit arena";
    if (!knows(session_->identity(), proto::type_of(request.header))) {
        return explain({Errc::kVersion, 0, step},
                       "fabricd is of a version that can't commit an arena (arena_commit): start "
                       "the one of this library's version");
    }
    FABRIC_TRY([[maybe_unused]] const proto::Message reply,
               call(request, step, deadline_for(bytes()), Retry::kHarmless));
    return {};
}

void Arena::publish_before_return(const proto::Region& region) const noexcept {
    // acquire() and not publish(): the lines are written back and dropped, so that none of them can
    // come back later.
    visibility().acquire(TouchPoint::kRegionReturn, base() + region.offset, region.bytes);
}

Result<void> Arena::free_region(std::uint64_t region_id) {
    if (!visibility().coherent()) {
        // The daemon knows how large the region is; asking costs a round trip that coherent memory
        // spares.
        FABRIC_TRY(const proto::Region region, open_region(region_id));
        publish_before_return(region);
    }
    proto::Message request = proto::make_request(proto::Type::kRegionFree, 0);
    request.region.arena_id = id_;
    request.region.region_id = region_id;
    FAULT_POINT("region.before_free");
    FABRIC_TRY([[maybe_unused]] const proto::Message reply,
               // A second attempt after a restart could free what another process has got since
               // under that id.
               call(request, "free region", session_->default_deadline(), Retry::kNever));
    return {};
}

std::uint64_t Arena::report_lost(std::uint64_t offset) noexcept {
    proto::Message request = proto::make_request(proto::Type::kPoisoned, 0);
    request.region.arena_id = id_;
    // The page at least.
    request.region.offset = offset / kPageBytes * kPageBytes;
    request.region.bytes = kPageBytes;
    for (const LostRange& lost : watch_->lost()) {  // the handler knows how much it was
        if (offset < lost.offset || offset - lost.offset >= lost.bytes) continue;
        request.region.offset = lost.offset;
        request.region.bytes = lost.bytes;
    }
    const TimePoint deadline = deadline_after(Clock::now(), kReportTimeout);
    const auto reply = call(request, "report lost memory", deadline, Retry::kHarmless);
    if (reply.ok()) return reply->region.region_id;
    session_->post(request);  // delivered once the daemon is back
    return 0;
}

}  // namespace fabricshm
