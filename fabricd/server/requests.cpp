#include "fabricd/server/requests.hpp"

#include <utility>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/proto/codec.hpp"
#include "libfabricshm/shm/group_block.hpp"
#include "libfabricshm/shm/shard_header.hpp"
#include "libfabricshm/shm/tensor_header.hpp"

namespace fabricd {

namespace proto = fabricshm::proto;
using proto::Message;
using proto::Type;

namespace {

using Reply = std::optional<Message>;

// Failed or not, the reply repeats type and id of the request, by which the client finds the
// caller.
Reply reply_with(const Message& request, const Result<void>& outcome) {
    if (!outcome.ok()) return proto::make_error_reply(request.header, outcome.error());
    return proto::make_reply(request);
}

Reply reply_with(const Message& request, const Result<proto::Region>& outcome) {
    if (!outcome.ok()) return proto::make_error_reply(request.header, outcome.error());
    Message reply = proto::make_reply(request);
    reply.region = outcome.value();
    return reply;
}

Reply reply_with(const Message& request, const Result<proto::Shard>& outcome) {
    if (!outcome.ok()) return proto::make_error_reply(request.header, outcome.error());
    Message reply = proto::make_reply(request);
    reply.shard = outcome.value();
    return reply;
}

Reply reply_with(const Message& request, const Result<proto::Tensor>& outcome) {
    if (!outcome.ok()) return proto::make_error_reply(request.header, outcome.error());
    Message reply = proto::make_reply(request);
    reply.tensor = outcome.value();
    return reply;
}

// The answer comes later, unless it is a refusal.
Reply refusal_of(const Message& request, const Result<void>& outcome) {
    if (outcome.ok()) return std::nullopt;
    return proto::make_error_reply(request.header, outcome.error());
}

// A client may send the message without its descriptor.
Result<void> adopt(Registry& registry, Ticket ticket, const Message& request,
                   fabricshm::PresentedFiles files) {
    const bool is_empty = !files.fd && files.strange == 0;
    if (is_empty) return Error{Errc::kInvalid, 0, "adopt arena without its descriptor"};
    return registry.adopt_arena(ticket, ArenaId{request.arena.arena_id}, std::move(files));
}

Reply close(Registry& registry, Ticket ticket, const Message& request) {
    const auto done = registry.close_arena(ticket, ArenaId{request.arena.arena_id});
    if (done.ok() && !*done) return std::nullopt;  // there is much to give back
    return reply_with(request, done.ok() ? Result<void>{} : done.error());
}

// A tensor is a region; its name goes with it. Asked again after a restart, the request may find
// another tensor under the number.
Reply free_tensor(Registry& registry, SessionId session, const Message& request) {
    const proto::Region& region = request.tensor.region;
    return reply_with(request, registry.free_region(session, ArenaId{region.arena_id},
                                                    RegionId{region.region_id}, region.generation));
}

// The hole that a request needs in which arena; 0 bytes: none.
struct Hole {
    ArenaId arena = ArenaId::kNone;
    Bytes bytes = 0;
    bool owned = true;  // by the session, and not by a group
};

Bytes bytes_of(std::uint32_t dtype, std::span<const std::int64_t> shape) {
    const auto bytes = proto::tensor_bytes(dtype, shape);
    return bytes.ok() ? bytes.value() : 0;
}

Hole hole_for(const Message& request) {
    switch (proto::type_of(request.header)) {
        case Type::kRegionCreate:
            return {ArenaId{request.region.arena_id}, request.region.bytes};
        case Type::kTensorCreate: {
            const proto::Tensor& tensor = request.tensor;
            return {ArenaId{tensor.region.arena_id},
                    bytes_of(tensor.dtype, std::span(tensor.shape, tensor.ndim)) +
                        fabricshm::kTensorHeaderBytes};
        }
        case Type::kShardCreate: {
            // Two regions, side by side in the worst case.
            const proto::Shard& shard = request.shard;
            return {ArenaId{shard.header.arena_id},
                    bytes_of(shard.dtype, std::span(shard.shape, shard.ndim)) +
                        fabricshm::kShardHeaderBytes + RegionAllocator::kUnit};
        }
        // Only the last member's makes the group, but then no other is to wait for the block.
        case Type::kGroupJoin:
            return {ArenaId{request.group.arena_id},
                    fabricshm::group_block_bytes(request.group.world), false};
        default:
            return {};
    }
}

// The request once more, when its arena has grown.
void serve_parked(Registry& registry, Ticket ticket, const Message& request, TimePoint now) {
    const Type type = proto::type_of(request.header);
    if (type == Type::kRegionCreate) {
        registry.answer(ticket, type, registry.create_region(ticket.session, request.region));
    } else if (type == Type::kTensorCreate) {
        registry.answer(ticket, type, registry.create_tensor(ticket.session, request.tensor));
    } else if (type == Type::kShardCreate) {
        registry.answer(ticket, type, registry.create_shard(ticket.session, request.shard));
    } else if (type == Type::kGroupJoin) {
        registry.refuse(ticket, type, registry.join_group(ticket, request.group, now));
    }
}

// Whether it is served only when its arena has grown.
bool parks(Registry& registry, Ticket ticket, const Message& request, TimePoint now) {
    const Hole hole = hole_for(request);
    if (hole.bytes == 0) return false;
    // One that is there needs no room: the answer is that it is, or it is made lasting.
    const bool is_tensor = proto::type_of(request.header) == Type::kTensorCreate;
    if (is_tensor && registry.has_tensor(hole.arena, request.tensor.name)) return false;
    const auto later = [&registry, ticket, request, now] {
        serve_parked(registry, ticket, request, now);
    };
    return registry.park(ticket.session, hole.arena, hole.bytes, hole.owned, later);
}

// Whether it gives back what a daemon that is killed would find held, were that not written down.
bool gives_back(Type type) {
    return type == Type::kArenaClose || type == Type::kRegionFree || type == Type::kTensorFree ||
           type == Type::kGroupLeave || type == Type::kShardClose || type == Type::kShardFree;
}

// Exhaustive, without a default: the compiler names a type that is added and not served.
Reply serve_now(Registry& registry, Ticket ticket, const Message& request,
                fabricshm::PresentedFiles files, TimePoint now) {
    const SessionId session = ticket.session;
    const proto::Region& region = request.region;
    switch (proto::type_of(request.header)) {
        case Type::kArenaOpen:
            return refusal_of(request, registry.open_arena(ticket, request.arena_open));
        case Type::kArenaAdopt:
            return refusal_of(request, adopt(registry, ticket, request, std::move(files)));
        case Type::kArenaClose:
            return close(registry, ticket, request);
        case Type::kArenaCommit:
            return refusal_of(request,
                              registry.commits.ask(ticket, ArenaId{request.arena.arena_id}));
        case Type::kRegionCreate:
            return reply_with(request, registry.create_region(session, region));
        case Type::kRegionOpen:
            return reply_with(request, registry.open_region(session, region));
        case Type::kRegionFree:
            return reply_with(request, registry.free_region(session, ArenaId{region.arena_id},
                                                            RegionId{region.region_id}));
        case Type::kTensorCreate:
            return reply_with(request, registry.create_tensor(session, request.tensor));
        case Type::kTensorOpen:
            return refusal_of(request, registry.open_tensor(ticket, request.tensor, now));
        case Type::kTensorFree:
            return free_tensor(registry, session, request);
        case Type::kGroupJoin:
            return refusal_of(request, registry.join_group(ticket, request.group, now));
        case Type::kGroupLeave:
            return reply_with(request, registry.leave_group(session, request.group));
        case Type::kGroupShrink:
            return refusal_of(request, registry.shrink_group(ticket, request.group, now));
        case Type::kShardCreate:
            return reply_with(request, registry.create_shard(session, request.shard));
        case Type::kShardOpen:
            return refusal_of(request, registry.open_shard(ticket, request.shard, now));
        case Type::kShardClose:
            return reply_with(request, registry.close_shard(session, request.shard));
        case Type::kShardFree:
            return reply_with(request, registry.free_shard(session, request.shard));
        case Type::kShardMove:
            return reply_with(request, registry.ask_move(session, request.shard));
        case Type::kPoisoned:
            return reply_with(request, registry.note_lost(session, region));
        // Connections, not the registry, know what to do with these: AttachServer takes them out
        // before.
        case Type::kHello:
        case Type::kBye:
        case Type::kTelemetryOpen:
        case Type::kDirectivesOpen:
        case Type::kPinPage:
        case Type::kPinPages:
        case Type::kPinAdopt:
        case Type::kHosts:
        case Type::kSurvivors:
        case Type::kTrace:
            break;
    }
    return proto::make_error_reply(request.header, {Errc::kInvalid, 0, "request"});
}

}  // namespace

Reply serve(Registry& registry, SessionId session, const Message& request,
            fabricshm::PresentedFiles files, TimePoint now) {
    // By these two an answer that comes later finds its way.
    const Ticket ticket{session, request.header.request_id};
    const Type type = proto::type_of(request.header);
    if (gives_back(type) && registry.journal_behind()) {
        return proto::make_error_reply(request.header, registry.journal_refusal());
    }
    if (parks(registry, ticket, request, now)) return std::nullopt;
    Reply reply = serve_now(registry, ticket, request, std::move(files), now);
    // It was this one that could not be written down.
    const bool unwritten =
        gives_back(type) && registry.journal_behind() && reply && reply->header.status == 0;
    if (!unwritten) return reply;
    registry.answer_when_written(ticket, type);
    return std::nullopt;
}

Message reply_of(const Answer& answer) {
    // Only what a reply repeats of its request is needed, and that is the type and the id.
    const Message request = proto::make_request(answer.type, answer.to.request_id);
    if (answer.error.code != Errc::kOk) {
        // Kept with the answer: others may have failed for the same cause since.
        const char* text =
            answer.reason.empty() ? text_of(answer.error.code) : answer.reason.c_str();
        return proto::make_error_reply(request.header, explain(answer.error, "%s", text));
    }
    Message reply = proto::make_reply(request);
    // One of them, or none: a reply has one body.
    if (const auto* arena = std::get_if<proto::ArenaOpen>(&answer.body)) reply.arena_open = *arena;
    if (const auto* region = std::get_if<proto::Region>(&answer.body)) reply.region = *region;
    if (const auto* tensor = std::get_if<proto::Tensor>(&answer.body)) reply.tensor = *tensor;
    if (const auto* shard = std::get_if<proto::Shard>(&answer.body)) reply.shard = *shard;
    if (const auto* group = std::get_if<proto::Group>(&answer.body)) reply.group = *group;
    return reply;
}

}  // namespace fabricd
