#include "fabricd/pool/moves.hpp"

#include <charconv>

#include "fabricd/pool/view.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"

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

// What a move under way has, from grant_copy() to end(): the valid copy and the one being filled.
bool has_two_copies(const Shard& shard) {
    return shard.move && shard.copies[0] && shard.copies[1];
}

// What stands behind "KIND:"; nothing when `text` is of another kind.
std::optional<std::string> argument_of(const std::string& text, const std::string& kind) {
    if (text.compare(0, kind.size() + 1, kind + ":") != 0) return std::nullopt;
    return text.substr(kind.size() + 1);
}

}  // namespace

Result<void> Moves::ask(SessionId session, const proto::Shard& request, Effects& out) {
    FABRIC_TRY(Shard * shard, shard_of(books_, session, request));
    if (shard->owner != session) return Error{Errc::kDenied, 0, "move shard of another session"};
    FABRIC_TRY_VOID(check(*shard));
    FABRIC_TRY(const MoveTarget target, parse_target(*shard, request.target));
    return begin(*shard, target, request.bytes_per_second, nullptr, out);
}

Result<void> Moves::order(const MoveOrder& order, MoveDone done, Effects& out) {
    const auto named = shard_named(books_, order.shard);
    if (!named) {
        return fabricshm::explain(
            {Errc::kNotFound, 0, "migrate"},
            "there is no shard '%s' (fabricctl shards lists them, as ARENA/NAME)",
            order.shard.c_str());
    }
    Shard& shard = books_.shard(*named);
    FABRIC_TRY(const MoveTarget wanted, parse_target(shard, order.target));
    return begin(shard, wanted, order.bytes_per_second, std::move(done), out);
}

Result<MoveTarget> Moves::parse_target(const Shard& shard, const std::string& text) const {
    FABRIC_CHECK(!shard.retired && shard.copies[shard.current]);  // retired ones have no name
    MoveTarget target;
    target.arena = shard.copies[shard.current]->arena;
    if (text == "here") return target;
    if (const auto name = argument_of(text, "arena")) {
        const auto found = books_.arena_names.find(*name);
        if (found == books_.arena_names.end()) {
            return fabricshm::explain({Errc::kNotFound, 0, "migrate"},
                                      "there is no arena '%s' (fabricctl arenas lists them)",
                                      name->c_str());
        }
        if (books_.arena(found->second).published) {
            return fabricshm::explain({Errc::kInvalid, 0, "migrate"},
                                      "arena '%s' is published: no shard moves there",
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

bool Moves::has_node(int node) const {
    return copies_ == nullptr || copies_->knows_node(node);
}

// Where the pages of a shard go that is given to the device. Without that a move would change whose
// quota counts them, and no read would be faster for it.
Result<int> Moves::node_of_device(const std::string& device) const {
    if (!books_.devices.knows(device)) {
        return fabricshm::explain({Errc::kNotFound, 0, "migrate"},
                                  "there is no device '%s' (fabricctl devices lists them)",
                                  device.c_str());
    }
    const int node = books_.devices.node_of(device);
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
Result<void> Moves::check(const Shard& shard) const {
    // Its readers keep it here, perhaps without its elements and without its owner.
    if (shard.retired) return Error{Errc::kNotFound, 0, "move shard"};
    if (copies_ == nullptr) return Error{Errc::kUnsupported, 0, "move shard"};
    if (shard.fixed) {
        return Error{Errc::kUnsupported, 0, "the shard's memory is not coherent with the daemon's"};
    }
    // Its owner can't be asked to stop writing for a moment.
    const Session* owner = books_.find_session(shard.owner);
    if (owner != nullptr && owner->given_up) return Error{Errc::kBusy, 0, "move shard"};
    const bool two = shard.copies[0] && shard.copies[1];
    if (shard.move || two || !shard.settled) return Error{Errc::kBusy, 0, "move shard"};
    if (journal_.behind()) return journal_.refusal();
    return {};
}

// When the target has room, or can't have any.
Result<void> Moves::begin(Shard& shard, const MoveTarget& target, Bytes bytes_per_second,
                          MoveDone done, Effects& out) {
    FABRIC_TRY_VOID(check(shard));
    Session& owner = books_.session(shard.owner);
    Arena& arena = books_.arena(target.arena);
    // The owner holds the copy, so it must have the arena: no other would present it after a
    // restart of the daemon.
    if (arena.sessions.count(owner.id) == 0) {
        return Error{Errc::kDenied, 0, "the owner has not opened the target's arena"};
    }
    const ShardCopy& old = *shard.copies[shard.current];
    const Region& from = books_.arena(old.arena).regions.at(old.region);
    const auto later = [this, id = shard.id, target, bytes_per_second, done](Effects& then) {
        Shard* const still = books_.find_shard(id);
        const Result<void> begun = still != nullptr
                                       ? grant_copy(*still, target, bytes_per_second, done, then)
                                       : Error{Errc::kNotFound, 0, "move shard"};
        if (!begun.ok() && done) then.moved.push_back({done, begun});
    };
    if (growth_.park(arena, from.bytes, later)) return {};
    return grant_copy(shard, target, bytes_per_second, std::move(done), out);
}

// Grants the new copy's bytes and has them filled. Nothing else changes before the copy is done.
Result<void> Moves::grant_copy(Shard& shard, const MoveTarget& target, Bytes bytes_per_second,
                               MoveDone done, Effects& out) {
    FABRIC_TRY_VOID(check(shard));
    Session& owner = books_.session(shard.owner);
    Arena* const target_arena = books_.find_arena(target.arena);
    if (target_arena == nullptr || target_arena->sessions.count(owner.id) == 0) {
        return Error{Errc::kDenied, 0, "the owner has not opened the target's arena"};
    }
    Arena& arena = *target_arena;
    const ShardCopy& old = *shard.copies[shard.current];
    const Region& from = books_.arena(old.arena).regions.at(old.region);
    const std::string device = target.device.value_or(from.device);
    FABRIC_TRY(const RegionId region,
               regions_.make_copy(owner, arena, from.bytes, device, shard.id));
    const int place = 1 - shard.current;
    FABRIC_CHECK(!shard.move && !shard.copies[place]);  // see check(): one copy, and it is valid
    shard.copies[place] = {arena.id, region, arena.leases.find(region)->epoch};
    books_.loose_shards.insert(shard.id);
    shard.move =
        ShardMove{target, bytes_per_second, 0, std::make_shared<CopyProgress>(), std::move(done)};
    // Written before the copy can become the valid one.
    Result<void> begun = journal_.add(record_of(books_, shard));
    FAULT_POINT("move.begun");
    if (begun.ok()) begun = start_copy(shard);
    if (begun.ok()) return {};
    shard.move.reset();
    shards_.drop_copy(shard, place, out);
    return begun;
}

Result<void> Moves::start_copy(Shard& shard) {
    const auto span_of = [&](const ShardCopy& copy) {
        const Region& region = books_.arena(copy.arena).regions.at(copy.region);
        return memory_.distant(copy.arena, region.offset, region.bytes);
    };
    FABRIC_CHECK(has_two_copies(shard));
    FABRIC_CHECK(shard.move->attempts < kMaxCopies);
    const int place = 1 - shard.current;
    CopyJob job;
    job.shard = shard.id;
    FABRIC_TRY(job.header, shards_.header_of(shard));
    FABRIC_TRY(job.from, span_of(*shard.copies[shard.current]));
    FABRIC_TRY(job.to, span_of(*shard.copies[place]));
    job.bytes = shard.bytes;
    job.bytes_per_second = shard.move->bytes_per_second;
    job.node = shard.move->target.node;
    job.progress = shard.move->progress;
    // Nothing reads there: the copy that was there before had no readers left when it went.
    const ShardCopy& copy = *shard.copies[place];
    const Region& region = books_.arena(copy.arena).regions.at(copy.region);
    FABRIC_CHECK(region.bytes >= shard.bytes);  // make_copy() made it as long as the valid one
    fabricshm::set_place(header_in(job.header), place, raw(copy.arena), region.offset);
    ++shard.move->attempts;
    count_copying(shard, +1);
    copies_->copy(std::move(job));
    return {};
}

// Both ends of the copy, and the home: were that dropped, the shard would be forgotten, and the
// bytes that the copier writes to be granted to others.
void Moves::count_copying(const Shard& shard, int change) {
    const auto count = [change](Arena& arena) {
        arena.copying += change;
        FABRIC_CHECK(arena.copying >= 0);
    };
    for (const auto& end : shard.copies) count(books_.arena(end->arena));
    count(books_.arena(shard.id.arena));
}

void Moves::copied(ShardId id, Result<ShardWord> seen, Effects& out) {
    // A shard that is being copied is not forgotten, unless its journal was of another mind.
    Shard* const found = books_.find_shard(id);
    if (found == nullptr || !found->move) return;
    Shard& shard = *found;
    FABRIC_CHECK(has_two_copies(shard));  // both ends were kept while the copier had them
    // The arenas may be dropped again. A shard that was retired meanwhile gives its bytes back.
    count_copying(shard, -1);
    if (shard.retired) return end(shard, Error{Errc::kNotFound, 0, "move shard"}, out);
    const auto header = shards_.header_of(shard);
    if (seen.ok() && !header.ok()) seen = header.error();
    const bool again = seen.ok() || seen.error().code == Errc::kBusy;
    if (!again) return end(shard, seen.error(), out);
    FAULT_POINT("move.copied");
    if (seen.ok() && fabricshm::swap_places(header_in(*header), seen.value())) {
        // Since that instruction the new copy is the valid one, whatever happens to us: a daemon
        // that is started after a crash here reads it from the word.
        FAULT_POINT("move.swapped");
        shard.current = 1 - shard.current;
        FABRIC_CHECK(shard.copies[shard.current]);
        ++shard.moves;
        journal_.note(record_of(books_, shard));
        return end(shard, {}, out);
    }
    if (shard.move->attempts >= kMaxCopies) {
        return end(shard, Error{Errc::kBusy, 0, "the owner writes too often"}, out);
    }
    if (const auto begun = start_copy(shard); !begun.ok()) end(shard, begun.error(), out);
}

// What is not the valid copy goes: at once, or when its last reader is done.
void Moves::end(Shard& shard, const Result<void>& how, Effects& out) {
    FABRIC_CHECK(has_two_copies(shard));
    const ShardId id = shard.id;
    out.left.push_back(id.arena);
    for (const auto& copy : shard.copies) out.left.push_back(copy->arena);
    const MoveDone done = std::move(shard.move->done);
    const int attempts = shard.move->attempts;
    shard.move.reset();
    fabricshm::log(fabricshm::LogLevel::kInfo, "shard %llu/%s: move after %d copies: %s",
                   shown(id.arena), shard.info.name.c_str(), attempts,
                   how.ok() ? "done" : describe(how.error()).c_str());
    shards_.look_soon();
    shards_.sweep(id, out);
    if (done) out.moved.push_back({done, how});
}

}  // namespace fabricd
