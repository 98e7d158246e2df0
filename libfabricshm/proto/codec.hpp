// Making and checking messages. Everything that arrives is input: nothing of a message is used
// before check_request() or check_reply() said yes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/stripes.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricshm::proto {

/// No arena, region or tensor is larger (128 TiB: what a process can map on x86-64).
inline constexpr Bytes kBytesMax = Bytes{1} << 47;
/// No wait on the wire is longer (a year); what a caller calls endless is cut to this.
inline constexpr std::int64_t kTimeoutMsMax = 365LL * 24 * 3600 * 1000;
/// The known bits of ArenaOpen::flags.
inline constexpr std::uint32_t kArenaFlags = 3 | kArenaPublish | kArenaSubscribe;

/// A request with an empty body.
Message make_request(Type type, std::uint64_t request_id) noexcept;

/// The reply to `request`: its id and type, success, and the same body to be filled in.
Message make_reply(const Message& request) noexcept;

/// The reply that says why not. Its body is the text of reason_of(error), or empty.
Message make_error_reply(const Header& request, const Error& error) noexcept;

/// The error in a reply, kOk for success. `step` is what was asked for; a string literal. The
/// reason in a checked reply is kept for this thread; see explain().
Error error_of(const Header& reply, const char* step) noexcept;
Error error_of(const Message& reply, const char* step) noexcept;

/// Whether the daemon says it of its own accord: no request has that number.
inline bool is_news(const Header& header) noexcept {
    return header.request_id == 0;
}

/// Whether a packet of `packet_bytes` bytes, received into `message`, is a request that can be
/// acted on: kCorrupt for a wrong size, magic or type; kVersion for another version; kInvalid for a
/// field out of its range, Error::step naming it. The last two may be reported to the sender.
Result<void> check_request(const Message& message, std::size_t packet_bytes);

/// The same for a reply. An error reply has no body to check; its status has to be an Errc.
Result<void> check_reply(const Message& message, std::size_t packet_bytes);

/// Descriptors that come with a request or with a reply of success of this type: 0 or 1. Arenas
/// that are striped over several files have one for each.
std::size_t descriptors_of_request(Type type) noexcept;
std::size_t descriptors_of_reply(Type type) noexcept;

/// Of a checked reply to an open: where the arena starts in the space that `stripes_of` lays out on
/// its descriptors.
std::uint64_t offset_of(const ArenaOpen& reply) noexcept;
Stripes stripes_of(const ArenaOpen& reply) noexcept;

/// "arena_open", for logs and errors.
const char* name_of(Type type) noexcept;
Type type_of(const Header& header) noexcept;

/// Copies `name` into a field. kInvalid when it is empty, longer than 63 bytes or not printable
/// ASCII; `step` says which name.
Result<void> set_name(char (&field)[kNameBytes], std::string_view name, const char* step);

/// For text that is only shown: what is not printable becomes '?', what is too long is cut.
void set_label(char (&field)[kNameBytes], std::string_view text) noexcept;

/// The text of a checked field.
std::string_view text_of(const char (&field)[kNameBytes]) noexcept;

/// Bytes of the elements of a tensor. kInvalid for an unknown type, more than kDimsMax dimensions,
/// a negative one, or a product above kBytesMax. No dimension: one element.
Result<Bytes> tensor_bytes(std::uint32_t dtype, std::span<const std::int64_t> shape);

/// A message as bytes to send or to receive into.
inline std::span<const std::byte> bytes_of(const Message& message) noexcept {
    return std::as_bytes(std::span(&message, 1));
}
inline std::span<std::byte> writable_bytes_of(Message& message) noexcept {
    return std::as_writable_bytes(std::span(&message, 1));
}

}  // namespace fabricshm::proto
