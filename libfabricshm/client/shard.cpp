#include "libfabricshm/client/shard.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/proto/codec.hpp"

namespace fabricshm {

namespace {

// How often a read is begun again because the shard moved on while the arena that it had moved to
// was being opened.
constexpr int kChases = 8;

}  // namespace

Result<std::unique_ptr<Shard>> Shard::create(std::shared_ptr<Arena> arena, const std::string& name,
                                             std::uint32_t dtype,
                                             std::span<const std::int64_t> shape,
                                             OpenArena open_arena) {
    FABRIC_TRY(const Bytes bytes, proto::tensor_bytes(dtype, shape));
    proto::Message request = proto::make_request(proto::Type::kShardCreate, 0);
    FABRIC_TRY_VOID(proto::set_name(request.shard.name, name, "name"));
    request.shard.header.arena_id = arena->id();
    request.shard.dtype = dtype;
    request.shard.ndim = static_cast<std::uint32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), request.shard.shape);
    // The swap is one instruction on a word that owner and daemon share: that needs memory which is
    // coherent between them.
    if (!arena->visibility().coherent()) request.shard.flags = proto::kShardFixed;
    FABRIC_TRY(const proto::Message reply,
               arena->call(request, "create shard", arena->deadline_for(bytes), Retry::kNever));
    return made_of(std::move(arena), reply.shard, true, std::move(open_arena));
}

Result<std::unique_ptr<Shard>> Shard::open(std::shared_ptr<Arena> arena, const std::string& name,
                                           TimePoint deadline, OpenArena open_arena) {
    proto::Message request = proto::make_request(proto::Type::kShardOpen, 0);
    FABRIC_TRY_VOID(proto::set_name(request.shard.name, name, "name"));
    request.shard.header.arena_id = arena->id();
    FABRIC_TRY(const proto::Message reply,
               arena->call(request, "open shard", deadline, Retry::kHarmless));
    return made_of(std::move(arena), reply.shard, false, std::move(open_arena));
}

// What the daemon said about a shard, as far as it fits the arena.
Result<std::unique_ptr<Shard>> Shard::made_of(std::shared_ptr<Arena> arena,
                                              const proto::Shard& reply, bool owner,
                                              OpenArena open_arena) {
    const proto::Region& region = reply.header;
    const std::span shape(reply.shape, std::min<std::size_t>(reply.ndim, proto::kDimsMax));
    FABRIC_TRY(const Bytes bytes, proto::tensor_bytes(reply.dtype, shape));
    const bool sound = region.arena_id == arena->id() &&
                       arena->holds(region.offset, region.bytes) &&
                       region.bytes >= kShardHeaderBytes && region.offset % kPageBytes == 0 &&
                       reply.slot < kShardReadersMax;
    if (!sound) return Error{Errc::kCorrupt, 0, "open shard"};
    std::unique_ptr<Shard> shard(new Shard);
    shard->header_ = reinterpret_cast<ShardHeader*>(arena->base() + region.offset);
    shard->key_ = {region.region_id, region.generation};
    shard->name_ = proto::text_of(reply.name);
    shard->bytes_ = bytes;
    shard->dtype_ = reply.dtype;
    shard->ndim_ = static_cast<std::uint32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), shard->shape_.begin());
    shard->slot_ = reply.slot;
    shard->session_id_ = arena->session().identity().id;
    shard->owner_ = owner;
    shard->open_arena_ = std::move(open_arena);
    shard->meter_ = arena->session().count_shard(arena->id(), region.region_id);
    shard->arena_ = std::move(arena);
    return shard;
}

Shard::~Shard() {
    if (arena_ == nullptr || arena_->session().is_foreign()) return;
    arena_->session().tell_shards();
    arena_->session().post(request(proto::Type::kShardClose));
}

proto::Message Shard::request(proto::Type type) const {
    proto::Message message = proto::make_request(type, 0);
    message.shard.header.arena_id = arena_->id();
    message.shard.header.region_id = key_.region_id;
    return message;
}

Result<ShardAccess> Shard::begin_read(std::uint64_t version, TimePoint deadline) {
    const Visibility view = arena_->visibility();
    for (int chase = 0;; ++chase) {
        FABRIC_TRY(const ShardPin pin,
                   pin_shard(*header_, key_, slot_, session_id_, version, deadline, view));
        FAULT_POINT("shard.pinned");
        auto data = locate(pin, deadline);
        if (data.ok()) {
            view.acquire(TouchPoint::kElementsRead, data.value(), bytes_);
            return ShardAccess{data.value(), pin};
        }
        unpin_shard(*header_, slot_, session_id_, pin, view);
        const bool moved_on = data.error().code == Errc::kBusy && chase < kChases;
        if (!moved_on) return data.error();
    }
}

// The place comes from shared memory: it is followed only where it lies inside a mapping.
Result<std::byte*> Shard::locate(const ShardPin& pin, TimePoint deadline) {
    if (pin.arena_id == arena_->id()) {
        if (!arena_->holds(pin.offset, bytes_)) return Error{Errc::kCorrupt, 0, "find shard"};
        return arena_->base() + pin.offset;
    }
    FABRIC_TRY(const std::shared_ptr<Arena> other, arena_of(pin, deadline));
    if (!other->holds(pin.offset, bytes_)) return Error{Errc::kCorrupt, 0, "find shard"};
    return other->base() + pin.offset;
}

// The arena that the shard has moved to. Its number is known from the header, its name from the
// daemon; kBusy when the shard has moved on meanwhile.
Result<std::shared_ptr<Arena>> Shard::arena_of(const ShardPin& pin, TimePoint deadline) {
    {
        const std::lock_guard lock(mutex_);
        const auto found = others_.find(pin.arena_id);
        if (found != others_.end()) return found->second;
    }
    // Not under the lock: reads in an arena that is open do not wait for this. Two threads that ask
    // at once open it twice, and both are given back with the handle.
    proto::Message question = proto::make_request(proto::Type::kShardOpen, 0);
    FABRIC_TRY_VOID(proto::set_name(question.shard.name, name_, "name"));
    question.shard.header.arena_id = arena_->id();
    FABRIC_TRY(const proto::Message reply,
               arena_->call(question, "find shard", deadline, Retry::kHarmless));
    // That was an open more than there are handles: of this shard, or of one that has its name now
    // that this one is gone.
    proto::Message close = proto::make_request(proto::Type::kShardClose, 0);
    close.shard.header = reply.shard.header;
    arena_->session().post(close);
    const proto::Region& header = reply.shard.header;
    if (header.region_id != key_.region_id || header.generation != key_.generation) {
        return Error{Errc::kNotFound, 0, "find shard"};
    }
    const std::string target(reply.shard.target, ::strnlen(reply.shard.target, proto::kNameBytes));
    // One that is open is not opened again: a peer that scribbles over the place could have that
    // done at every read.
    std::shared_ptr<Arena> other = known_arena(target);
    if (other == nullptr) {
        FABRIC_TRY(other, open_arena_(target));
        const std::lock_guard lock(mutex_);
        others_[other->id()] = other;
    }
    const std::uint64_t id = other->id();
    if (id != pin.arena_id) return Error{Errc::kBusy, 0, "find shard"};
    return other;
}

std::shared_ptr<Arena> Shard::known_arena(const std::string& name) {
    if (arena_->name() == name) return arena_;
    const std::lock_guard lock(mutex_);
    for (const auto& [id, arena] : others_) {
        if (arena->name() == name) return arena;
    }
    return nullptr;
}

Result<void> Shard::end_read(std::uint64_t word) {
    const ShardPin pin{ShardWord{word}, 0, 0};
    arena_->session().count_read(*meter_, bytes_);
    if (unpin_shard(*header_, slot_, session_id_, pin, arena_->visibility())) return {};
    return Error{Errc::kBusy, 0, "read shard: it was written meanwhile"};
}

Result<ShardAccess> Shard::begin_write() {
    if (!owner_) return Error{Errc::kDenied, 0, "write shard"};
    const Visibility view = arena_->visibility();
    FABRIC_TRY(const ShardPin pin, fabricshm::begin_write(*header_, key_, view));
    FAULT_POINT("shard.writing");
    auto data = locate(pin, arena_->session().default_deadline());
    if (data.ok()) return ShardAccess{data.value(), pin};
    // Nothing was written; a version more is the harmless way back.
    publish_shard(*header_, view);
    return data.error();
}

Result<std::uint64_t> Shard::publish() {
    if (!owner_) return Error{Errc::kDenied, 0, "publish shard"};
    const Visibility view = arena_->visibility();
    if (view.active()) {
        // The place can't change while the shard is being written.
        const ShardWord word = word_of(*header_, view);
        const ShardPlace& place = header_->places[word.place()];
        const auto data = locate({word, place.arena_id.load(std::memory_order_relaxed),
                                  place.offset.load(std::memory_order_relaxed)},
                                 arena_->session().default_deadline());
        if (data.ok()) view.publish(TouchPoint::kElements, data.value(), bytes_);
    }
    const std::uint64_t version = publish_shard(*header_, view);
    if (version == 0) return Error{Errc::kInvalid, 0, "publish shard: nothing was written"};
    FAULT_POINT("shard.published");
    return version;
}

Result<void> Shard::move(const std::string& target, std::uint64_t bytes_per_second) {
    proto::Message question = request(proto::Type::kShardMove);
    if (target.empty() || target.size() >= sizeof question.shard.target) {
        return Error{Errc::kInvalid, 0, "target"};
    }
    std::memcpy(question.shard.target, target.data(), target.size());
    question.shard.bytes_per_second = bytes_per_second;
    const auto reply =
        arena_->call(question, "move shard", arena_->session().default_deadline(), Retry::kNever);
    if (!reply.ok()) return reply.error();
    return {};
}

Result<void> Shard::free() {
    // Asked again after a restart it may be gone: then the first attempt did it.
    const auto reply = arena_->call(request(proto::Type::kShardFree), "free shard",
                                    arena_->session().default_deadline(), Retry::kHarmless);
    if (reply.ok() || reply.error().code == Errc::kNotFound) return {};
    return reply.error();
}

}  // namespace fabricshm
