#include "libfabricshm/proto/codec.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "kernels/dtype.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricshm::proto {

namespace {

// By the numbers of Type.
constexpr const char* kTypeNames[] = {
    "unknown",       "hello",          "arena_open",      "arena_adopt",   "arena_close",
    "region_create", "region_open",    "region_free",     "tensor_create", "tensor_open",
    "tensor_free",   "group_join",     "group_leave",     "group_shrink",  "bye",
    "poisoned",      "telemetry_open", "directives_open", "shard_create",  "shard_open",
    "shard_close",   "shard_free",     "shard_move",      "hosts",         "survivors",
    "pin_page",      "pin_pages",      "pin_adopt",       "trace",         "arena_commit",
};
constexpr auto kTypeCount = static_cast<std::uint16_t>(std::size(kTypeNames));
static_assert(kTypeCount == static_cast<std::uint16_t>(kLastType) + 1);
constexpr auto kErrcLast = static_cast<std::int32_t>(Errc::kChanged);

// A request without an id could not be answered: ids start at 1. So do those of objects.
constexpr std::uint64_t kNoId = 0;

// `field` is a literal: it becomes the error's step, and the sender reads which field it was.
Result<void> need(bool condition, const char* field) {
    if (!condition) return Error{Errc::kInvalid, 0, field};
    return {};
}

bool is_printable(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c <= 0x7e; });
}

// All bytes up to the end of the field count as the text's: a name without its zero is none.
bool is_name(const char (&field)[kNameBytes], std::size_t least) {
    const std::size_t length = ::strnlen(field, kNameBytes);
    return length >= least && length < kNameBytes && is_printable({field, length});
}

// Endless waits do not exist on the wire: a client that forgets a wait would keep a place in the
// daemon for ever.
bool is_timeout(std::int64_t timeout_ms) {
    return timeout_ms >= 0 && timeout_ms <= kTimeoutMsMax;
}

// The sum can't overflow: both are at most 2^47 when the comparison gets that far.
bool is_span(std::uint64_t offset, std::uint64_t bytes) {
    return offset <= kBytesMax && bytes <= kBytesMax && offset + bytes <= kBytesMax;
}

// 0 is none.
bool is_power_of_two(std::uint64_t number) {
    return number != 0 && (number & (number - 1)) == 0;
}

// A daemon knows some incarnations of each of a thousand hosts.
constexpr std::uint32_t kHostsMax = 1 << 20;

Result<void> check_hosts_reply(const Hosts& hosts) {
    const bool fits = hosts.count <= kHostsPerPage && hosts.total <= kHostsMax &&
                      hosts.first <= hosts.total && hosts.count <= hosts.total - hosts.first;
    FABRIC_TRY_VOID(need(fits, "hosts count"));
    for (std::size_t i = 0; i < hosts.count; ++i) {
        FABRIC_TRY_VOID(need(is_name(hosts.entries[i].name, 1), "host name"));
        FABRIC_TRY_VOID(need(hosts.entries[i].state <= HostState::kFenced, "host state"));
        FABRIC_TRY_VOID(need(hosts.fence[i] <= FenceStage::kOther, "host fence"));
    }
    return {};
}

// Everything that can be said without knowing the type. A wrong size, magic or type is no message
// of ours, and is not answered.
Result<void> check_header(const Message& message, std::size_t packet_bytes, bool reply) {
    const Error corrupt{Errc::kCorrupt, 0, "read message"};
    const Header& header = message.header;
    if (packet_bytes < sizeof(Header) || header.magic != kMagic) return corrupt;
    // The version comes before the size: another version may have another size.
    if (header.version != kVersion) return Error{Errc::kVersion, 0, "read message"};
    const bool is_reply = (header.type & kReplyBit) != 0;
    const std::uint16_t type = header.type & static_cast<std::uint16_t>(~kReplyBit);
    const bool known = type != 0 && type < kTypeCount;
    if (packet_bytes != sizeof(Message) || is_reply != reply || !known) return corrupt;
    // Only the news of a loss and of a trace come without having been asked for.
    const bool may_be_news = reply && (static_cast<Type>(type) == Type::kPoisoned ||
                                       static_cast<Type>(type) == Type::kTrace);
    if (is_news(header) && !may_be_news) return corrupt;
    return {};
}

Result<void> check_arena_open(const ArenaOpen& open) {
    FABRIC_TRY_VOID(need(is_name(open.name, 1), "arena name"));
    FABRIC_TRY_VOID(need(open.bytes <= kBytesMax, "arena bytes"));
    FABRIC_TRY_VOID(need((open.flags & ~kArenaFlags) == 0, "arena flags"));
    const bool publishes = (open.flags & kArenaPublish) != 0;
    // Neither both nor one of them with a flag of other arenas.
    const bool alone = open.flags == kArenaPublish || open.flags == kArenaSubscribe ||
                       (open.flags & (kArenaPublish | kArenaSubscribe)) == 0;
    FABRIC_TRY_VOID(need(alone, "arena flags"));
    const std::size_t length = ::strnlen(open.readers, sizeof open.readers);
    const bool text = length < sizeof open.readers && is_printable({open.readers, length});
    return need(text && (publishes || length == 0), "arena readers");
}

// Ids that name nothing are refused here; whether they name something is for the daemon's records
// to say.
Result<void> check_region_ref(const Region& region) {
    FABRIC_TRY_VOID(need(region.arena_id != kNoId, "arena id"));
    return need(region.region_id != kNoId, "region id");
}

Result<void> check_region_create(const Region& region) {
    FABRIC_TRY_VOID(need(region.arena_id != kNoId, "arena id"));
    return need(region.bytes > 0 && region.bytes <= kBytesMax, "region bytes");
}

Result<void> check_lost(const Region& region) {
    FABRIC_TRY_VOID(need(region.arena_id != kNoId, "arena id"));
    return need(region.bytes > 0 && is_span(region.offset, region.bytes), "lost bytes");
}

// A tensor or a shard.
template <typename Shaped>
Result<void> check_shape(const Shaped& tensor) {
    FABRIC_TRY_VOID(need(tensor.ndim <= kDimsMax, "tensor ndim"));
    FABRIC_TRY([[maybe_unused]] const Bytes bytes,
               tensor_bytes(tensor.dtype, std::span(tensor.shape, tensor.ndim)));
    return {};
}

Result<void> check_tensor_create(const Tensor& tensor) {
    FABRIC_TRY_VOID(need((tensor.flags & ~kTensorLasting) == 0, "tensor flags"));
    FABRIC_TRY_VOID(need(tensor.region.arena_id != kNoId, "arena id"));
    FABRIC_TRY_VOID(need(is_name(tensor.name, 1), "tensor name"));
    return check_shape(tensor);
}

Result<void> check_tensor_open(const Tensor& tensor) {
    FABRIC_TRY_VOID(need(tensor.region.arena_id != kNoId, "arena id"));
    FABRIC_TRY_VOID(need(is_name(tensor.name, 1), "tensor name"));
    return need(is_timeout(tensor.timeout_ms), "timeout");
}

Result<void> check_shard_create(const Shard& shard) {
    FABRIC_TRY_VOID(need(shard.header.arena_id != kNoId, "arena id"));
    FABRIC_TRY_VOID(need(is_name(shard.name, 1), "shard name"));
    FABRIC_TRY_VOID(need((shard.flags & ~kShardFixed) == 0, "shard flags"));
    return check_shape(shard);
}

Result<void> check_shard_open(const Shard& shard) {
    FABRIC_TRY_VOID(need(shard.header.arena_id != kNoId, "arena id"));
    FABRIC_TRY_VOID(need(is_name(shard.name, 1), "shard name"));
    return need(is_timeout(shard.timeout_ms), "timeout");
}

Result<void> check_shard_move(const Shard& shard) {
    FABRIC_TRY_VOID(check_region_ref(shard.header));
    const std::size_t length = ::strnlen(shard.target, sizeof shard.target);
    const bool sound =
        length > 0 && length < sizeof shard.target && is_printable({shard.target, length});
    return need(sound, "target");
}

// -1 asks for any rank.
Result<void> check_group_join(const Group& group) {
    FABRIC_TRY_VOID(need(group.arena_id != kNoId, "arena id"));
    FABRIC_TRY_VOID(need(is_name(group.name, 1), "group name"));
    FABRIC_TRY_VOID(need(group.world >= 1 && group.world <= kWorldMax, "group world"));
    FABRIC_TRY_VOID(need(group.rank >= -1 && group.rank < group.world, "group rank"));
    return need(is_timeout(group.timeout_ms), "timeout");
}

Result<void> check_group_ref(const Group& group, bool waits) {
    FABRIC_TRY_VOID(need(group.group_id != kNoId, "group id"));
    return need(!waits || is_timeout(group.timeout_ms), "timeout");
}

Result<void> check_pin_adopt(const PinPageRef& page) {
    FABRIC_TRY_VOID(need(page.arena_id != kNoId, "arena id"));
    return need(page.number != kNoId, "page number");
}

Result<void> check_arena_reply(const ArenaOpen& open) {
    FABRIC_TRY_VOID(need(open.arena_id != kNoId, "arena id"));
    // The daemon is checked, too: its numbers become addresses in the client.
    const std::uint64_t offset = offset_of(open);
    FABRIC_TRY_VOID(need(open.bytes > 0 && is_span(offset, open.bytes), "arena bytes"));
    // 0: small pages only.
    const bool huge_ok = open.huge_page_bytes == 0 || is_power_of_two(open.huge_page_bytes);
    const bool align_ok = is_power_of_two(open.align) && open.align >= 4096 &&
                          open.bytes % open.align == 0 && offset % open.align == 0;
    FABRIC_TRY_VOID(need(huge_ok && align_ok, "arena align"));
    if (open.file_offset != kNotOneFile) return {};
    const bool stripes_ok = open.files >= 2 && open.files <= Stripes::kFilesMax &&
                            open.stripe_bytes != 0 && open.stripe_bytes <= kBytesMax &&
                            open.stripe_bytes % open.align == 0 && offset >= open.align;
    return need(stripes_ok, "arena stripes");
}

Result<void> check_region_reply(const Region& region) {
    FABRIC_TRY_VOID(check_region_ref(region));
    return need(region.bytes > 0 && is_span(region.offset, region.bytes), "region bytes");
}

Result<void> check_tensor_reply(const Tensor& tensor) {
    FABRIC_TRY_VOID(check_region_reply(tensor.region));
    FABRIC_TRY_VOID(need(is_name(tensor.name, 1), "tensor name"));
    return check_shape(tensor);
}

// A shard's place may lie in another arena, whose name is in `target`.
Result<void> check_shard_reply(const Shard& shard) {
    FABRIC_TRY_VOID(check_region_reply(shard.header));
    FABRIC_TRY_VOID(need(is_name(shard.name, 1), "shard name"));
    FABRIC_TRY_VOID(need(shard.slot >= 0, "shard slot"));
    FABRIC_TRY_VOID(need(::strnlen(shard.target, kNameBytes) < kNameBytes, "arena name"));
    return check_shape(shard);
}

Result<void> check_group_reply(const Group& group) {
    FABRIC_TRY_VOID(need(group.group_id != kNoId, "group id"));
    FABRIC_TRY_VOID(need(group.world >= 1 && group.world <= kWorldMax, "group world"));
    FABRIC_TRY_VOID(need(group.rank >= 0 && group.rank < group.world, "group rank"));
    const bool block_ok = group.block_bytes > 0 && is_span(group.block_offset, group.block_bytes);
    return need(block_ok, "group block");
}

// Exhaustive, without a default: the compiler names a type that is added and not checked.
Result<void> check_request_body(const Message& message) {
    switch (type_of(message.header)) {
        case Type::kHello:
            FABRIC_TRY_VOID(need(is_name(message.hello.label, 0), "label"));
            return need(is_name(message.hello.device, 0), "device");
        case Type::kArenaOpen:
            return check_arena_open(message.arena_open);
        case Type::kArenaAdopt:
        case Type::kArenaClose:
        case Type::kArenaCommit:
            return need(message.arena.arena_id != kNoId, "arena id");
        case Type::kRegionCreate:
            return check_region_create(message.region);
        case Type::kRegionOpen:
        case Type::kRegionFree:
            return check_region_ref(message.region);
        case Type::kTensorCreate:
            return check_tensor_create(message.tensor);
        case Type::kTensorOpen:
            return check_tensor_open(message.tensor);
        case Type::kTensorFree:
            return check_region_ref(message.tensor.region);
        case Type::kGroupJoin:
            return check_group_join(message.group);
        case Type::kGroupLeave:
            return check_group_ref(message.group, false);
        case Type::kGroupShrink:
            return check_group_ref(message.group, true);
        case Type::kPoisoned:
            return check_lost(message.region);
        case Type::kShardCreate:
            return check_shard_create(message.shard);
        case Type::kShardOpen:
            return check_shard_open(message.shard);
        case Type::kShardClose:
        case Type::kShardFree:
            return check_region_ref(message.shard.header);
        case Type::kShardMove:
            return check_shard_move(message.shard);
        case Type::kHosts:
            return need(message.hosts.first <= kHostsMax, "hosts first");
        case Type::kPinPage:
            return need(message.pin_page.arena_id != kNoId, "arena id");
        case Type::kPinPages:
            return need(message.pin_pages.arena_id != kNoId, "arena id");
        case Type::kPinAdopt:
            return check_pin_adopt(message.pin_page);
        case Type::kSurvivors:
            return need(std::ranges::any_of(message.survivors.members,
                                            [](std::uint64_t word) { return word != 0; }),
                        "survivors members");
        case Type::kTrace:
            return need(false, "trace is no request");
        case Type::kBye:
        case Type::kTelemetryOpen:
        case Type::kDirectivesOpen:
            return {};
    }
    return Error{Errc::kCorrupt, 0, "read message"};
}

Result<void> check_reply_body(const Message& message) {
    switch (type_of(message.header)) {
        case Type::kHello:
            return need(message.hello.session_id != kNoId, "session id");
        case Type::kArenaOpen:
            return check_arena_reply(message.arena_open);
        case Type::kRegionCreate:
        case Type::kRegionOpen:
            return check_region_reply(message.region);
        case Type::kPoisoned:
            return check_lost(message.region);
        case Type::kTensorCreate:
        case Type::kTensorOpen:
            return check_tensor_reply(message.tensor);
        case Type::kShardCreate:
        case Type::kShardOpen:
            return check_shard_reply(message.shard);
        case Type::kGroupJoin:
        case Type::kGroupShrink:
            return check_group_reply(message.group);
        case Type::kTelemetryOpen:
        case Type::kDirectivesOpen:
            return need(message.page.bytes >= 4096 && message.page.bytes <= kBytesMax,
                        "page bytes");
        case Type::kTrace:
            FABRIC_TRY_VOID(need(message.trace.bytes <= kBytesMax, "trace bytes"));
            return need(message.trace.base_ns >= 0 && message.trace.until_ns >= 0, "trace times");
        case Type::kPinPage:
            FABRIC_TRY_VOID(need(message.pin_page.number != kNoId, "page number"));
            return need(message.pin_page.bytes >= 4096 && message.pin_page.bytes <= kBytesMax,
                        "page bytes");
        case Type::kPinPages:
            return need(message.pin_pages.count <= kPinPagesListed, "pages count");
        case Type::kHosts:
            return check_hosts_reply(message.hosts);
        case Type::kSurvivors:
            return need(message.survivors.settled <= Settled::kTooMany, "survivors settled");
        default:
            return {};  // the others say all they have to say in the header
    }
}

}  // namespace

Message make_request(Type type, std::uint64_t request_id) noexcept {
    Message message;
    // All of it, so that no byte of the stack goes over the wire.
    std::memset(&message, 0, sizeof message);
    message.header.magic = kMagic;
    message.header.version = kVersion;
    message.header.type = static_cast<std::uint16_t>(type);
    message.header.request_id = request_id;
    return message;
}

Message make_reply(const Message& request) noexcept {
    // The body comes along: replies repeat what was asked and fill in the rest.
    Message reply = request;
    reply.header.magic = kMagic;
    reply.header.version = kVersion;
    reply.header.type |= kReplyBit;
    reply.header.status = 0;
    reply.header.detail = 0;
    return reply;
}

Message make_error_reply(const Header& request, const Error& error) noexcept {
    Message reply = make_request(type_of(request), request.request_id);
    reply.header.type |= kReplyBit;
    reply.header.status = static_cast<std::int32_t>(error.code);
    reply.header.detail = error.detail;
    // Text alone: any other body behind an error would be read one day.
    static_assert(kReasonBytes <= sizeof reply.raw);
    std::snprintf(reinterpret_cast<char*>(reply.raw), kReasonBytes, "%s", reason_of(error));
    return reply;
}

Error error_of(const Header& reply, const char* step) noexcept {
    return {static_cast<Errc>(reply.status), reply.detail, step};
}

Error error_of(const Message& reply, const char* step) noexcept {
    const Error error = error_of(reply.header, step);
    if (error.code == Errc::kOk) return error;
    char text[kReasonBytes] = "";
    for (std::size_t i = 0; i + 1 < sizeof text && reply.raw[i] != 0; ++i) {
        const char c = static_cast<char>(reply.raw[i]);
        text[i] = c < 0x20 || c > 0x7e ? '?' : c;
    }
    // Also without a text: an older reason must not speak for this refusal.
    return *text != '\0' ? explain(error, "%s", text)
                         : explain(error, "%s", fabricshm::text_of(error.code));
}

Result<void> check_request(const Message& message, std::size_t packet_bytes) {
    FABRIC_TRY_VOID(check_header(message, packet_bytes, false));
    return check_request_body(message);
}

Result<void> check_reply(const Message& message, std::size_t packet_bytes) {
    // Before the body: an error has none.
    FABRIC_TRY_VOID(check_header(message, packet_bytes, true));
    const std::int32_t status = message.header.status;
    if (status < 0 || status > kErrcLast) return Error{Errc::kCorrupt, 0, "read reply"};
    if (status != 0) return {};
    // A daemon that sends fields out of range is broken, or not ours: the caller did nothing wrong.
    if (const auto body = check_reply_body(message); !body.ok()) {
        return Error{Errc::kCorrupt, 0, body.error().step};
    }
    return {};
}

std::size_t descriptors_of_request(Type type) noexcept {
    return type == Type::kArenaAdopt || type == Type::kPinAdopt ? 1 : 0;
}

std::size_t descriptors_of_reply(Type type) noexcept {
    const bool page =
        type == Type::kTelemetryOpen || type == Type::kDirectivesOpen || type == Type::kPinPage;
    return type == Type::kArenaOpen || page ? 1 : 0;
}

std::uint64_t offset_of(const ArenaOpen& reply) noexcept {
    return reply.file_offset == kNotOneFile ? reply.pool_offset : reply.file_offset;
}

Stripes stripes_of(const ArenaOpen& reply) noexcept {
    if (reply.file_offset != kNotOneFile) return {};
    return {reply.files, reply.stripe_bytes, reply.align};
}

Type type_of(const Header& header) noexcept {
    return static_cast<Type>(header.type & static_cast<std::uint16_t>(~kReplyBit));
}

// For logs, where an unknown number has to have a name, too.
const char* name_of(Type type) noexcept {
    const auto index = static_cast<std::uint16_t>(type);
    return kTypeNames[index < kTypeCount ? index : 0];
}

Result<void> set_name(char (&field)[kNameBytes], std::string_view name, const char* step) {
    FABRIC_TRY_VOID(need(!name.empty() && name.size() < kNameBytes && is_printable(name), step));
    std::memset(field, 0, sizeof field);
    std::memcpy(field, name.data(), name.size());
    return {};
}

// For people only, so that it is made to fit and not refused.
void set_label(char (&field)[kNameBytes], std::string_view text) noexcept {
    std::memset(field, 0, sizeof field);
    const std::size_t length = std::min(text.size(), kNameBytes - 1);
    for (std::size_t i = 0; i < length; ++i) {
        field[i] = is_printable(text.substr(i, 1)) ? text[i] : '?';
    }
}

std::string_view text_of(const char (&field)[kNameBytes]) noexcept {
    return {field, ::strnlen(field, kNameBytes)};
}

Result<Bytes> tensor_bytes(std::uint32_t dtype, std::span<const std::int64_t> shape) {
    FABRIC_TRY_VOID(need(dtype < static_cast<std::uint32_t>(kernels::kDTypeCount) &&
                             kernels::is_number(static_cast<kernels::DType>(dtype)),
                         "tensor dtype"));
    FABRIC_TRY_VOID(need(shape.size() <= kDimsMax, "tensor ndim"));
    Bytes bytes = kernels::size_of(static_cast<kernels::DType>(dtype));
    for (const std::int64_t length : shape) {
        FABRIC_TRY_VOID(need(length >= 0, "tensor shape"));
        const auto factor = static_cast<Bytes>(length);
        // Dividing instead of multiplying: the product itself could wrap around.
        FABRIC_TRY_VOID(need(bytes == 0 || factor <= kBytesMax / bytes, "tensor shape"));
        bytes *= factor;
    }
    return bytes;
}

}  // namespace fabricshm::proto
