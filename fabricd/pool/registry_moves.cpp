// Registry: how a shard moves. Copy, publish, swap; docs/migration.md says why no reader waits and
// why a crash anywhere leaves one valid copy.

#include <algorithm>
#include <charconv>

#include "fabricd/pool/registry.hpp"
#include "libfabricshm/base/fault_point.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;
using fabricshm::ShardHeader;
using fabricshm::ShardWord;

namespace {

// An owner that publishes during every copy makes all of them useless. Then the move is given up
// rather than training slowed down.
constexpr int kMaxCopies = 8;

// Above it are no nodes on any machine that Linux runs on.
constexpr int kMaxNodes = 1024;

// What stands behind "KIND:"; nothing when `text` is of another kind.
std::optional<std::string> argument_of(const std::string& text, const std::string& kind) {
    if (text.compare(0, kind.size() + 1, kind + ":") != 0) return std::nullopt;
    return text.substr(kind.size() + 1);
}

}  // namespace

Result<void> Registry::ask_move(SessionId session, const proto::Shard& request) {
    FABRIC_TRY(Shard * shard, shard_of(session, request));
    if (shard->owner != session) return Error{Errc::kDenied, 0, "move shard of another session"};
    FABRIC_TRY_VOID(check_move(*shard));
    FABRIC_TRY(const MoveTarget target, parse_target(*shard, request.target));
    return begin_move(*shard, target, request.bytes_per_second, nullptr);
}

Result<void> Registry::move_shard(const MoveOrder& order, MoveDone done) {
    const auto named = shard_named(order.shard);
    if (!named) {
        return fabricshm::explain(
            {Errc::kNotFound, 0, "migrate"},
            "there is no shard '%s' (fabricctl shards lists them, as ARENA/NAME)",
            order.shard.c_str());
    }
    Shard& shard = *find_shard(*named);
    FABRIC_TRY(const MoveTarget wanted, parse_target(shard, order.target));
    return begin_move(shard, wanted, order.bytes_per_second, std::move(done));
}

std::optional<ShardId> Registry::shard_named(const std::string& name) const {
    // Both names may hold a slash: the one that makes the two known is meant.
    const std::size_t slash = name.find('/');
    if (slash == std::string::npos) return std::nullopt;
    const auto arena = arena_names_.find(name.substr(0, slash));
    if (arena == arena_names_.end()) return std::nullopt;
    const Arena& home = arenas_.at(arena->second);
    const auto named = home.shards.find(name.substr(slash + 1));
    if (named == home.shards.end()) return std::nullopt;
    return ShardId{home.id, named->second};
}

std::optional<ShardView> Registry::shard(const std::string& name) const {
    const auto named = shard_named(name);
    if (!named) return std::nullopt;
    return view_shard(shards_.at(*named));
}

Result<MoveTarget> Registry::parse_target(const Shard& shard, const std::string& text) const {
    MoveTarget target;
    target.arena = shard.copies[shard.current]->arena;
    if (text == "here") return target;
    if (const auto name = argument_of(text, "arena")) {
        const auto found = arena_names_.find(*name);
        if (found == arena_names_.end()) {
            return fabricshm::explain({Errc::kNotFound, 0, "migrate"},
                                      "there is no arena '%s' (fabricctl arenas lists them)",
                                      name->c_str());
        }
        target.arena = found->second;
    } else if (const auto device = argument_of(text, "device")) {
        FABRIC_TRY(target.node, node_of_device(*device));
        target.device = *device;
    } else if (const auto node = argument_of(text, "node")) {
        const char* end = node->data() + node->size();
        const auto [stop, bad] = std::from_chars(node->data(), end, target.node);
        const bool sound = bad == std::errc{} && stop == end && target.node >= 0;
        if (!sound || target.node >= kMaxNodes) return Error{Errc::kInvalid, 0, "node"};
        if (!has_node(target.node)) return Error{Errc::kNotFound, 0, "NUMA node of the target"};
    } else {
        return Error{Errc::kInvalid, 0, "target: here, arena:NAME, device:NAME or node:N"};
    }
    return target;
}

bool Registry::has_node(int node) const {
    return copies_ == nullptr || copies_->knows_node(node);
}

// Where the pages of a shard go that is given to the device. Without that a move would change whose
// quota counts them, and no read would be faster for it.
Result<int> Registry::node_of_device(const std::string& device) const {
    if (!devices_.knows(device)) {
        return fabricshm::explain({Errc::kNotFound, 0, "migrate"},
                                  "there is no device '%s' (fabricctl devices lists them)",
                                  device.c_str());
    }
    const int node = devices_.node_of(device);
    if (node < 0) {
        return Error{Errc::kUnsupported, 0,
                     "the target has no numa_node in the device file: the bytes would not move"};
    }
    if (!has_node(node)) {
        return Error{Errc::kNotFound, 0, "NUMA node of the target, numa_node in the device file"};
    }
    return node;
}

// Whether it can be moved now.
Result<void> Registry::check_move(const Shard& shard) const {
    // Its readers keep it here, perhaps without its elements and without its owner.
    if (shard.retired) return Error{Errc::kNotFound, 0, "move shard"};
    if (copies_ == nullptr) return Error{Errc::kUnsupported, 0, "move shard"};
    if (shard.fixed) {
        return Error{Errc::kUnsupported, 0, "the shard's memory is not coherent with the daemon's"};
    }
    const bool two = shard.copies[0] && shard.copies[1];
    if (shard.move || two || !shard.settled) return Error{Errc::kBusy, 0, "move shard"};
    if (journal_.behind()) return journal_.refusal();
    return {};
}

// When the target has room, or can't have any.
Result<void> Registry::begin_move(Shard& shard, const MoveTarget& target, Bytes bytes_per_second,
                                  MoveDone done) {
    FABRIC_TRY_VOID(check_move(shard));
    Session& owner = *find_session(shard.owner);
    Arena& arena = *find_arena(target.arena);
    // The owner holds the copy, so it must have the arena: who else would present it after a
    // restart of the daemon?
    if (arena.sessions.count(owner.id) == 0) {
        return Error{Errc::kDenied, 0, "the owner has not opened the target's arena"};
    }
    const ShardCopy& old = *shard.copies[shard.current];
    const Region& from = find_arena(old.arena)->regions.at(old.region);
    const auto later = [this, id = shard.id, target, bytes_per_second, done] {
        Shard* const still = find_shard(id);
        const Result<void> begun = still != nullptr
                                       ? grant_copy(*still, target, bytes_per_second, done)
                                       : Error{Errc::kNotFound, 0, "move shard"};
        if (!begun.ok() && done) done(begun);
    };
    if (park(arena, from.bytes, later)) return {};
    return grant_copy(shard, target, bytes_per_second, std::move(done));
}

// Grants the new copy's bytes and has them filled. Nothing else changes before the copy is done.
Result<void> Registry::grant_copy(Shard& shard, const MoveTarget& target, Bytes bytes_per_second,
                                  MoveDone done) {
    FABRIC_TRY_VOID(check_move(shard));
    Session& owner = *find_session(shard.owner);
    Arena* const target_arena = find_arena(target.arena);
    if (target_arena == nullptr || target_arena->sessions.count(owner.id) == 0) {
        return Error{Errc::kDenied, 0, "the owner has not opened the target's arena"};
    }
    Arena& arena = *target_arena;
    const ShardCopy& old = *shard.copies[shard.current];
    const Region& from = find_arena(old.arena)->regions.at(old.region);
    const std::string device = target.device.value_or(from.device);
    FABRIC_TRY(const RegionId region, make_copy(owner, arena, from.bytes, device, shard.id));
    const int place = 1 - shard.current;
    shard.copies[place] = {arena.id, region, arena.leases.find(region)->epoch};
    loose_shards_.insert(shard.id);
    shard.move =
        ShardMove{target, bytes_per_second, 0, std::make_shared<CopyProgress>(), std::move(done)};
    // Written before the copy can become the valid one.
    Result<void> begun = journal_.add(record_of(shard));
    FAULT_POINT("move.begun");
    if (begun.ok()) begun = start_copy(shard);
    if (begun.ok()) return {};
    shard.move.reset();
    drop_copy(shard, place);
    return begun;
}

Result<void> Registry::start_copy(Shard& shard) {
    const auto span_of = [&](const ShardCopy& copy) {
        const Region& region = find_arena(copy.arena)->regions.at(copy.region);
        return memory_->distant(copy.arena, region.offset, region.bytes);
    };
    const int place = 1 - shard.current;
    CopyJob job;
    job.shard = shard.id;
    FABRIC_TRY(job.header, header_of(shard));
    FABRIC_TRY(job.from, span_of(*shard.copies[shard.current]));
    FABRIC_TRY(job.to, span_of(*shard.copies[place]));
    job.bytes = shard.bytes;
    job.bytes_per_second = shard.move->bytes_per_second;
    job.node = shard.move->target.node;
    job.progress = shard.move->progress;
    // Nobody reads there: the copy that was there before had no readers left when it went.
    const ShardCopy& copy = *shard.copies[place];
    const Region& region = find_arena(copy.arena)->regions.at(copy.region);
    fabricshm::set_place(header_in(job.header), place, raw(copy.arena), region.offset);
    ++shard.move->attempts;
    count_copying(shard, +1);
    copies_->copy(std::move(job));
    return {};
}

// Both ends of the copy, and the home: were that dropped, the shard would be forgotten, and the
// bytes that the copier writes to be granted to others.
void Registry::count_copying(const Shard& shard, int change) {
    for (const auto& end : shard.copies) find_arena(end->arena)->copying += change;
    find_arena(shard.id.arena)->copying += change;
}

void Registry::shard_copied(ShardId id, Result<ShardWord> seen) {
    // A shard that is being copied is not forgotten, unless its journal was of another mind.
    Shard* const found = find_shard(id);
    if (found == nullptr || !found->move) return;
    Shard& shard = *found;
    // The arenas may be dropped again. A shard that was retired meanwhile gives its bytes back.
    count_copying(shard, -1);
    if (shard.retired) return end_move(shard, Error{Errc::kNotFound, 0, "move shard"});
    const auto header = header_of(shard);
    if (seen.ok() && !header.ok()) seen = header.error();
    const bool again = seen.ok() || seen.error().code == Errc::kBusy;
    if (!again) return end_move(shard, seen.error());
    FAULT_POINT("move.copied");
    if (seen.ok() && fabricshm::swap_places(header_in(*header), seen.value())) {
        // Since that instruction the new copy is the valid one, whatever happens to us: a daemon
        // that is started after a crash here reads it from the word.
        FAULT_POINT("move.swapped");
        shard.current = 1 - shard.current;
        ++shard.moves;
        journal_.note(record_of(shard));
        return end_move(shard, {});
    }
    if (shard.move->attempts >= kMaxCopies) {
        return end_move(shard, Error{Errc::kBusy, 0, "the owner writes too often"});
    }
    if (const auto begun = start_copy(shard); !begun.ok()) end_move(shard, begun.error());
}

// What is not the valid copy goes: at once, or when its last reader is done.
void Registry::end_move(Shard& shard, const Result<void>& outcome) {
    const ShardId id = shard.id;
    std::vector<ArenaId> arenas{id.arena};
    for (const auto& copy : shard.copies) arenas.push_back(copy->arena);
    const MoveDone done = std::move(shard.move->done);
    const int attempts = shard.move->attempts;
    shard.move.reset();
    fabricshm::log(fabricshm::LogLevel::kInfo, "shard %llu/%s: move after %d copies: %s",
                   shown(id.arena), shard.info.name.c_str(), attempts,
                   outcome.ok() ? "done" : describe(outcome.error()).c_str());
    shards_pause_ = kMinShardPause;
    shards_due_ = TimePoint::max();
    sweep_shard(id);
    for (const ArenaId arena : arenas) drop_if_unused(arena);
    if (done) done(outcome);
}

ShardView Registry::view_shard(const Shard& shard) const {
    const Arena& arena = arenas_.at(shard.id.arena);
    ShardView view;
    view.arena_id = raw(arena.id);
    view.id = raw(shard.id.header);
    view.name = arena.name + "/" + shard.info.name;
    view.owner_session = raw(shard.owner);
    view.bytes = shard.bytes;
    view.readers = static_cast<std::uint32_t>(shard.readers.size());
    view.moves = shard.moves;
    const bool two = shard.copies[0] && shard.copies[1];
    const char* still = shard.fixed ? "fixed" : "here";
    view.state = shard.retired ? "retired" : shard.move ? "moving" : two ? "draining" : still;
    // Relaxed: a picture may be a little old.
    if (shard.move) view.moved_bytes = shard.move->progress->done.load(std::memory_order_relaxed);
    const auto& copy = shard.copies[shard.current];
    if (!copy) return view;
    const Arena& home = arenas_.at(copy->arena);
    const Region& region = home.regions.at(copy->region);
    view.home_arena = home.name;
    view.offset = region.offset;
    view.home_device = region.device;
    return view;
}

}  // namespace fabricd
