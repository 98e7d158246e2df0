// One packet of the attach socket, in either direction. What is accepted has no field that the
// code behind it could not use as it is.

#include "libfabricshm/proto/codec.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace fabricshm;
using namespace fabricshm::proto;

namespace {

// The first byte of an input: which direction, and whether the packet has the size of a message
// whatever is there of it.
constexpr unsigned kReply = 1;
constexpr unsigned kWhole = 2;

constexpr auto kTypes = static_cast<std::uint16_t>(kLastType);

template <std::size_t size>
void require_text(const char (&field)[size], std::size_t least) {
    const std::size_t length = ::strnlen(field, size);
    FUZZ_REQUIRE(length >= least && length < size);
}

void require_inside(std::uint64_t offset, std::uint64_t bytes) {
    FUZZ_REQUIRE(offset <= kBytesMax && bytes <= kBytesMax - offset);
}

void require_wait(std::int64_t timeout_ms) {
    FUZZ_REQUIRE(timeout_ms >= 0 && timeout_ms <= kTimeoutMsMax);
}

template <typename Shaped>
void require_shape(const Shaped& body) {
    FUZZ_REQUIRE(body.ndim <= kDimsMax);
    const auto bytes = tensor_bytes(body.dtype, std::span(body.shape, body.ndim));
    FUZZ_REQUIRE(bytes.ok() && *bytes <= kBytesMax);
    require_text(body.name, 1);
}

void require_request(const Message& message) {
    switch (type_of(message.header)) {
        case Type::kHello:
            require_text(message.hello.label, 0);
            return require_text(message.hello.device, 0);
        case Type::kArenaOpen:
            FUZZ_REQUIRE(message.arena_open.bytes <= kBytesMax);
            return require_text(message.arena_open.name, 1);
        case Type::kRegionCreate:
            FUZZ_REQUIRE(message.region.bytes <= kBytesMax);
            return;
        case Type::kTensorCreate:
            return require_shape(message.tensor);
        case Type::kTensorOpen:
            require_wait(message.tensor.timeout_ms);
            return require_text(message.tensor.name, 1);
        case Type::kShardCreate:
            return require_shape(message.shard);
        case Type::kShardOpen:
            require_wait(message.shard.timeout_ms);
            return require_text(message.shard.name, 1);
        case Type::kShardMove:
            return require_text(message.shard.target, 1);
        case Type::kGroupJoin:
            require_wait(message.group.timeout_ms);
            FUZZ_REQUIRE(message.group.world >= 1 && message.group.world <= kWorldMax);
            FUZZ_REQUIRE(message.group.rank >= -1 && message.group.rank < message.group.world);
            return require_text(message.group.name, 1);
        case Type::kGroupShrink:
            return require_wait(message.group.timeout_ms);
        case Type::kPoisoned:
            return require_inside(message.region.offset, message.region.bytes);
        default:
            return;  // ids alone, which are looked up
    }
}

void require_reply(const Message& message) {
    switch (type_of(message.header)) {
        case Type::kArenaOpen:
            FUZZ_REQUIRE(message.arena_open.align >= 4096 && message.arena_open.bytes > 0);
            return require_inside(offset_of(message.arena_open), message.arena_open.bytes);
        case Type::kRegionCreate:
        case Type::kRegionOpen:
        case Type::kPoisoned:
            return require_inside(message.region.offset, message.region.bytes);
        case Type::kTensorCreate:
        case Type::kTensorOpen:
            require_shape(message.tensor);
            return require_inside(message.tensor.region.offset, message.tensor.region.bytes);
        case Type::kShardCreate:
        case Type::kShardOpen:
            require_shape(message.shard);
            return require_inside(message.shard.header.offset, message.shard.header.bytes);
        case Type::kGroupJoin:
        case Type::kGroupShrink:
            FUZZ_REQUIRE(message.group.rank >= 0 && message.group.rank < message.group.world);
            return require_inside(message.group.block_offset, message.group.block_bytes);
        default:
            return;
    }
}

// The client can read a refusal of it: what was refused, and why.
void require_refusal(const Message& request) {
    const Message refusal = make_error_reply(request.header, {Errc::kBusy, 7, "fuzz"});
    FUZZ_REQUIRE(check_reply(refusal, sizeof refusal).ok());
    FUZZ_REQUIRE(refusal.header.request_id == request.header.request_id);
    FUZZ_REQUIRE(type_of(refusal.header) == type_of(request.header));
    const Error error = error_of(refusal, "fuzz");
    FUZZ_REQUIRE(error.code == Errc::kBusy && error.detail == 7);
}

void run(fuzz::Data input) {
    if (input.empty()) return;
    const auto flags = static_cast<unsigned>(input[0]);
    const fuzz::Data packet = input.subspan(1);
    Message message;
    std::memset(&message, 0, sizeof message);
    if (!packet.empty()) {
        std::memcpy(&message, packet.data(), std::min(packet.size(), sizeof message));
    }
    const std::size_t bytes = (flags & kWhole) != 0 ? sizeof message : packet.size();
    FUZZ_REQUIRE(name_of(type_of(message.header)) != nullptr);
    if ((flags & kReply) == 0) {
        if (!check_request(message, bytes).ok()) return;
        FUZZ_REQUIRE(bytes == sizeof message &&
                     descriptors_of_request(type_of(message.header)) < 2);
        require_request(message);
        require_refusal(message);
    } else {
        if (!check_reply(message, bytes).ok()) return;
        FUZZ_REQUIRE(bytes == sizeof message && descriptors_of_reply(type_of(message.header)) < 2);
        if (message.header.status == 0) return require_reply(message);
        FUZZ_REQUIRE(error_of(message, "fuzz").code != Errc::kOk);
    }
}

// One body that suits every type as far as the bytes of the types overlap: the mutations do the
// rest.
Message example(Type type, bool reply) {
    Message message = make_request(type, 9);
    if (reply) message.header.type |= kReplyBit;
    const Region region{1, 2, 3, 4096, 8192};
    const auto shape = [](auto& body) {
        body.dtype = 5;
        body.ndim = 2;
        body.shape[0] = 3;
        body.shape[1] = 4;
        body.timeout_ms = 1000;
        std::strcpy(body.name, "name");
    };
    const std::string name = name_of(type);
    if (type == Type::kHello) message.hello.session_id = 7;
    if (type == Type::kArenaOpen) {
        std::strcpy(message.arena_open.name, "job");
        message.arena_open.bytes = 1 << 20;
        message.arena_open.arena_id = message.arena_open.flags = reply ? 1 : 0;
        message.arena_open.align = reply ? 4096 : 0;
    }
    const bool is_ref =
        type == Type::kArenaAdopt || type == Type::kArenaClose || type == Type::kArenaCommit;
    if (is_ref) message.arena.arena_id = 1;
    if (name.starts_with("region") || type == Type::kPoisoned) message.region = region;
    if (name.starts_with("tensor")) {
        message.tensor.region = region;
        shape(message.tensor);
    }
    if (name.starts_with("shard")) {
        message.shard.header = region;
        shape(message.shard);
        std::strcpy(message.shard.target, "arena:other");
    }
    if (name.starts_with("group")) {
        message.group = Group{1, 2, reply ? 2U : 0U, "ring", 1, 4, 1000, 4096, 65536};
    }
    if (name.ends_with("s_open") || type == Type::kTelemetryOpen) {
        message.page.bytes = reply ? 4096 : 0;
    }
    return message;
}

// Without the zeros at its end.
fuzz::Buffer input_of(const Message& message, unsigned flags) {
    fuzz::Buffer input{static_cast<std::byte>(flags | kWhole)};
    fuzz::append(input, message);
    while (input.back() == std::byte{0}) input.pop_back();
    return input;
}

std::vector<fuzz::Buffer> seeds() {
    std::vector<fuzz::Buffer> all;
    for (std::uint16_t type = 1; type <= kTypes; ++type) {
        for (const bool reply : {false, true}) {
            const Message message = example(static_cast<Type>(type), reply);
            all.push_back(input_of(message, reply ? kReply : 0));
        }
    }
    const Message refusal = make_error_reply(example(Type::kHello, false).header,
                                             {Errc::kNoMemory, 0, "the pool is full"});
    all.push_back(input_of(refusal, kReply));
    return all;
}

// Magic, version and the direction's bit are put right, but for one time in sixteen.
void mutate(fuzz::Buffer& bytes, std::size_t most, std::uint32_t random,
            const fuzz::MutateBytes& change) {
    change(bytes, most);
    if (random % 16 == 0 || bytes.size() < 1 + sizeof(Header)) return;
    Header header;
    std::memcpy(&header, bytes.data() + 1, sizeof header);
    header.magic = kMagic;
    header.version = kVersion;
    const bool reply = (static_cast<unsigned>(bytes[0]) & kReply) != 0;
    header.type = static_cast<std::uint16_t>(1 + (header.type & 0xff) % kTypes);
    if (reply) header.type |= kReplyBit;
    if (random % 4 != 0) bytes[0] |= std::byte{kWhole};
    std::memcpy(bytes.data() + 1, &header, sizeof header);
}

const fuzz::Registered kTarget({"attach", run, seeds, mutate});

}  // namespace
