#include "libfabricshm/proto/data_messages.hpp"

namespace fabricshm::proto {

namespace {

constexpr std::int32_t kDataStatusMax = static_cast<std::int32_t>(Errc::kChanged);

bool is_known(std::uint16_t type) noexcept {
    return type >= static_cast<std::uint16_t>(DataType::kHello) &&
           type <= static_cast<std::uint16_t>(DataType::kCommand);
}

Result<void> valid_if(bool right, const char* step) {
    if (!right) return Error{Errc::kInvalid, 0, step};
    return {};
}

}  // namespace

Result<std::vector<std::byte>> encode(const DataMessage& message) {
    if (message.payload.size() > kDataPayloadMax) {
        return Error{Errc::kInvalid, 0, "size of a data packet"};
    }
    DataPacketHeader header{};
    header.magic = kDataPacketMagic;
    header.version = kDataProtocol;
    header.type = static_cast<std::uint16_t>(message.type);
    if (message.is_reply) header.type |= kDataReplyBit;
    header.request_id = message.request_id;
    header.status = static_cast<std::int32_t>(message.status);
    header.detail = message.detail;
    header.payload_bytes = static_cast<std::uint32_t>(message.payload.size());
    std::vector<std::byte> packet(sizeof header + message.payload.size());
    std::memcpy(packet.data(), &header, sizeof header);
    std::memcpy(packet.data() + sizeof header, message.payload.data(), message.payload.size());
    return packet;
}

Result<DataMessage> decode_data_message(std::span<const std::byte> packet) {
    constexpr const char* kStep = "read a data packet";
    DataPacketHeader header;
    if (packet.size() < sizeof header) return Error{Errc::kCorrupt, 0, kStep};
    std::memcpy(&header, packet.data(), sizeof header);
    if (header.magic != kDataPacketMagic) return Error{Errc::kCorrupt, 0, kStep};
    if (header.version != kDataProtocol) return Error{Errc::kVersion, 0, kStep};
    const bool is_reply = (header.type & kDataReplyBit) != 0;
    const auto type = static_cast<std::uint16_t>(header.type & ~kDataReplyBit);
    const bool is_status =
        header.status >= 0 && header.status <= kDataStatusMax && (is_reply || header.status == 0);
    const bool is_whole = header.payload_bytes <= kDataPayloadMax &&
                          header.payload_bytes == packet.size() - sizeof header;
    if (!is_known(type) || !is_status || !is_whole || header.reserved != 0) {
        return Error{Errc::kCorrupt, 0, kStep};
    }
    DataMessage message;
    message.type = static_cast<DataType>(type);
    message.is_reply = is_reply;
    message.request_id = header.request_id;
    message.status = static_cast<Errc>(header.status);
    message.detail = header.detail;
    message.payload.assign(reinterpret_cast<const char*>(packet.data()) + sizeof header,
                           header.payload_bytes);
    return message;
}

Result<void> check(const DataListRequest& request) {
    return valid_if((request.flags & ~kDataListRecursive) == 0 && request.reserved == 0,
                    "flags of a listing");
}

Result<void> check(const DataFetchRequest& request) {
    return valid_if(request.file != 0 && request.priority <= kDataAhead && request.reserved == 0,
                    "what to fetch");
}

Result<void> check(const DataPlanRequest& request) {
    constexpr std::uint32_t kFlags = kDataPlanDropLast | kDataPlanInOrder;
    constexpr std::uint32_t kWorldMax = 1 << 20;
    const bool is_kind = request.kind <= kDataDistributedSampler;
    const bool is_rank = request.world <= kWorldMax && request.rank < request.world;
    return valid_if(request.listing != 0 && is_kind && is_rank && (request.flags & ~kFlags) == 0,
                    "plan of an epoch");
}

Result<void> check(const DataHelloReply& reply) {
    const bool has_name =
        reply.arena[0] != '\0' && std::memchr(reply.arena, 0, sizeof reply.arena) != nullptr;
    if (!has_name) return Error{Errc::kCorrupt, 0, "read name of the arena"};
    return {};
}

}  // namespace fabricshm::proto
