// What readers and the data cache say to each other, over the SOCK_SEQPACKET socket of
// `fabric-data serve`. docs/data.md. Requests may be answered out of order: an answer has the
// number of its request.
//
//   packet: header of 32 bytes | payload, kDataPayloadMax at most
//
// The payload of a request is the structure of its type, and behind it the text where there is one
// (a path, JSON). An answer with a status other than kOk has a text for people as its payload.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "libfabricshm/base/result.hpp"

namespace fabricshm::proto {

inline constexpr std::uint32_t kDataPacketMagic = 0x54414446;  // "FDAT"
inline constexpr std::uint16_t kDataProtocol = 1;
inline constexpr std::size_t kDataPayloadMax = 8192;
inline constexpr std::uint16_t kDataReplyBit = 0x8000;

enum class DataType : std::uint16_t {
    kHello = 1,
    kList = 2,
    kFetch = 3,
    kPlan = 4,
    kStat = 5,
    kCreate = 6,
    kWrite = 7,
    kCommit = 8,
    kAbort = 9,
    kCommand = 10,
};

struct DataPacketHeader {
    std::uint32_t magic;
    std::uint16_t version;
    std::uint16_t type;  // a DataType; of an answer with kDataReplyBit
    std::uint64_t request_id;
    std::int32_t status;  // an Errc; 0 in requests
    std::int32_t detail;
    std::uint32_t payload_bytes;
    std::uint32_t reserved;
};
static_assert(sizeof(DataPacketHeader) == 32);
inline constexpr std::size_t kDataPacketMax = sizeof(DataPacketHeader) + kDataPayloadMax;

/// One packet taken apart. Descriptors travel next to it.
struct DataMessage {
    DataType type = DataType::kHello;
    bool is_reply = false;
    std::uint64_t request_id = 0;
    Errc status = Errc::kOk;
    std::int32_t detail = 0;
    std::string payload;
};

/// kInvalid: the payload is too long.
Result<std::vector<std::byte>> encode(const DataMessage& message);

/// kVersion: of another protocol version; kCorrupt: no packet of this protocol. The payload is not
/// looked at.
Result<DataMessage> decode_data_message(std::span<const std::byte> packet);

// --- payloads: of the request, and of the answer ---

struct DataHelloReply {
    char arena[64];  // of the published arena, with a terminating zero
    std::uint64_t generation;
};

inline constexpr std::uint32_t kDataListRecursive = 1;
struct DataListRequest {  // | the path: "/images/train"
    std::uint32_t flags;
    std::uint32_t reserved;
};
struct DataListReply {  // with the descriptor of the listing
    std::uint64_t listing;
    std::uint64_t entries;
};

inline constexpr std::uint32_t kDataOnDemand = 0;  // priorities
inline constexpr std::uint32_t kDataAhead = 1;
struct DataFetchRequest {  // the answer has no payload
    std::uint64_t file;
    std::uint64_t line;
    std::uint32_t priority;
    std::uint32_t reserved;
};

inline constexpr std::uint32_t kDataFabricSampler = 0;  // kinds
inline constexpr std::uint32_t kDataDistributedSampler = 1;
inline constexpr std::uint32_t kDataPlanDropLast = 1;  // flags
inline constexpr std::uint32_t kDataPlanInOrder = 2;   // not shuffled
struct DataPlanRequest {                               // the answer has no payload
    std::uint64_t listing;
    std::uint64_t seed;      // the sampler's and the epoch's number, added
    std::uint64_t samples;   // the first of the listing; 0: all
    std::uint64_t position;  // samples of the epoch that were read already, of all ranks
    std::uint32_t rank;
    std::uint32_t world;
    std::uint32_t kind;
    std::uint32_t flags;
};

struct DataStatReply {  // of a DataEntry, without its name; the request is the path
    std::uint64_t bytes;
    std::uint64_t first_line;
    std::uint64_t version[4];
    std::uint64_t file;
    std::int64_t mtime_ns;
    std::uint64_t generation;  // of the tables that its lines are in
    std::uint32_t flags;
    std::uint32_t reserved;
};

struct DataCreateReply {  // the request is the path
    std::uint64_t write;
};
struct DataWriteRequest {  // with the descriptor of a memory file, whose first bytes are appended
    std::uint64_t write;
    std::uint64_t bytes;
};
struct DataWriteEnd {  // of kCommit and kAbort
    std::uint64_t write;
};

/// A structure, and the text behind it, as a payload.
template <typename Fixed>
std::string data_payload(const Fixed& fixed, std::string_view text = {}) {
    static_assert(std::is_trivially_copyable_v<Fixed>);
    std::string payload(reinterpret_cast<const char*>(&fixed), sizeof fixed);
    payload += text;
    return payload;
}

/// The structure of a payload; `text`: what is behind it, where something may be. Nothing when it
/// is too short, or has a text that it must not have.
template <typename Fixed>
std::optional<Fixed> data_fixed(std::string_view payload, std::string_view* text = nullptr) {
    static_assert(std::is_trivially_copyable_v<Fixed>);
    Fixed fixed;
    if (payload.size() < sizeof fixed) return std::nullopt;
    if (text == nullptr && payload.size() != sizeof fixed) return std::nullopt;
    std::memcpy(&fixed, payload.data(), sizeof fixed);
    if (text != nullptr) *text = payload.substr(sizeof fixed);
    return fixed;
}

/// The fields of a request that say which of a few, or have a sum that could overflow. kInvalid.
Result<void> check(const DataListRequest& request);
Result<void> check(const DataFetchRequest& request);
Result<void> check(const DataPlanRequest& request);

/// The answer's, by a reader: kCorrupt when the name of the arena has no end.
Result<void> check(const DataHelloReply& reply);

}  // namespace fabricshm::proto
