// The two messages of the vGPU socket. A request that is accepted names a file in the daemon's own
// folder and a process that can be looked for.

#include "libfabricshm/proto/vgpu_messages.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace fabricshm;
using namespace fabricshm::proto;

namespace {

template <typename Message>
Message message_of(fuzz::Data packet) {
    Message message{};
    if (!packet.empty()) {
        std::memcpy(&message, packet.data(), std::min(packet.size(), sizeof message));
    }
    return message;
}

void require_request(const VgpuRequest& request) {
    FUZZ_REQUIRE(::strnlen(request.name, sizeof request.name) < sizeof request.name);
    const std::string name = request.name;
    FUZZ_REQUIRE(!name.empty() && name.find('/') == std::string::npos && request.pid > 0);
    const ProcessIdentity process{request.pid, request.start_time, request.pid_namespace};
    const auto again = make_vgpu_request(process, name);
    FUZZ_REQUIRE(again.ok());
    FUZZ_REQUIRE(check_vgpu_request(*again, sizeof *again).ok());
    FUZZ_REQUIRE(std::string(again->name) == name && again->pid == request.pid);
}

void run(fuzz::Data data) {
    if (data.empty()) return;
    const fuzz::Data packet = data.subspan(1);
    if ((data[0] & std::byte{1}) == std::byte{0}) {
        const auto request = message_of<VgpuRequest>(packet);
        if (check_vgpu_request(request, packet.size()).ok()) require_request(request);
    } else {
        const auto reply = message_of<VgpuReply>(packet);
        if (!check_vgpu_reply(reply, packet.size()).ok()) return;
        FUZZ_REQUIRE(::strnlen(reply.gpu, sizeof reply.gpu) < sizeof reply.gpu);
    }
}

std::vector<fuzz::Buffer> seeds() {
    fuzz::Buffer request{std::byte{0}};
    fuzz::append(request, make_vgpu_request({17, 18, 19}, "gpu0").value());
    VgpuReply answer{};
    answer.magic = kVgpuMagic;
    answer.version = kVgpuVersion;
    std::strcpy(answer.gpu, "GPU-1");
    fuzz::Buffer reply{std::byte{1}};
    fuzz::append(reply, answer);
    answer.status = static_cast<std::int32_t>(Errc::kDenied);
    fuzz::Buffer refusal{std::byte{1}};
    fuzz::append(refusal, answer);
    return {request, reply, refusal};
}

const fuzz::Registered kTarget({"vgpu_request", run, seeds});

}  // namespace
