// What a process that preloads libfabricvgpu.so says to fabricd: one request, one reply, over a
// SOCK_SEQPACKET socket of its own next to the attach socket (its path with ".vgpu" behind it).
// docs/vgpu.md says why it is not the attach socket.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/process.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace fabricshm::proto {

inline constexpr std::uint32_t kVgpuMagic = 0x55505646;  // "FVPU"
inline constexpr std::uint16_t kVgpuVersion = 1;

struct VgpuRequest {
    std::uint32_t magic;
    std::uint16_t version;
    std::uint16_t reserved;
    std::int32_t pid;  // these three as the process itself sees them
    std::uint32_t reserved2;
    std::uint64_t start_time;
    std::uint64_t pid_namespace;
    char name[kNameBytes];  // of the vGPU
};
static_assert(sizeof(VgpuRequest) == 96);

/// With status kOk come two descriptors: the page of limits, for reading, and the usage ledger.
struct VgpuReply {
    std::uint32_t magic;
    std::uint16_t version;
    std::uint16_t reserved;
    std::int32_t status;     // an Errc
    std::uint32_t host_pid;  // of the caller, as the daemon sees it; 0: it does not, or is older
    char gpu[kNameBytes];    // "GPU-...", "MIG-..." or an ordinal
};
static_assert(sizeof(VgpuReply) == 80);

/// The request of `process` for the vGPU `name`. kInvalid: no possible name.
Result<VgpuRequest> make_vgpu_request(const ProcessIdentity& process, const std::string& name);

/// Whether `bytes` bytes are a request that can be acted on. kCorrupt, kVersion or kInvalid.
Result<void> check_vgpu_request(const VgpuRequest& request, std::size_t bytes);

/// The same for a reply; the error in it when it is one.
Result<void> check_vgpu_reply(const VgpuReply& reply, std::size_t bytes);

/// Where the daemon with this attach socket listens for them.
std::string vgpu_socket_of(const std::string& attach_socket);

}  // namespace fabricshm::proto
