#include "libfabricshm/proto/vgpu_messages.hpp"

#include <cstring>

#include "libfabricshm/proto/codec.hpp"

namespace fabricshm::proto {

namespace {

constexpr std::int32_t kMaxStatus = static_cast<std::int32_t>(Errc::kChanged);

bool is_terminated(const char (&field)[kNameBytes]) {
    return std::memchr(field, 0, kNameBytes) != nullptr;
}

// The name becomes a file's in the daemon's state folder: no slash, no blanks.
bool is_plain(const char* text) {
    for (; *text != '\0'; ++text) {
        if (*text <= 0x20 || *text >= 0x7f || *text == '/') return false;
    }
    return true;
}

}  // namespace

Result<VgpuRequest> make_vgpu_request(const ProcessIdentity& process, const std::string& name) {
    VgpuRequest request{};
    request.magic = kVgpuMagic;
    request.version = kVgpuVersion;
    request.pid = process.pid;
    request.start_time = process.start_time;
    request.pid_namespace = process.pid_namespace;
    FABRIC_TRY_VOID(set_name(request.name, name, "name of a vGPU"));
    return request;
}

Result<void> check_vgpu_request(const VgpuRequest& request, std::size_t bytes) {
    if (bytes != sizeof request || request.magic != kVgpuMagic) {
        return Error{Errc::kCorrupt, 0, "read a vGPU request"};
    }
    if (request.version != kVgpuVersion) return Error{Errc::kVersion, 0, "read a vGPU request"};
    if (request.pid <= 0) return Error{Errc::kInvalid, 0, "pid"};
    const bool is_name =
        is_terminated(request.name) && request.name[0] != '\0' && is_plain(request.name);
    if (!is_name) return Error{Errc::kInvalid, 0, "name of a vGPU"};
    return {};
}

Result<void> check_vgpu_reply(const VgpuReply& reply, std::size_t bytes) {
    const bool is_status = reply.status >= 0 && reply.status <= kMaxStatus;
    if (bytes != sizeof reply || reply.magic != kVgpuMagic || !is_status) {
        return Error{Errc::kCorrupt, 0, "read a vGPU reply"};
    }
    if (reply.version != kVgpuVersion) return Error{Errc::kVersion, 0, "read a vGPU reply"};
    if (reply.status != 0) return Error{static_cast<Errc>(reply.status), 0, "ask for a vGPU"};
    if (!is_terminated(reply.gpu)) return Error{Errc::kCorrupt, 0, "read a vGPU reply"};
    return {};
}

std::string vgpu_socket_of(const std::string& attach_socket) {
    return attach_socket + ".vgpu";
}

}  // namespace fabricshm::proto
