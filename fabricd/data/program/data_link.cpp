#include "fabricd/data/program/data_link.hpp"

#include <array>
#include <cstdlib>

#include "fabricd/config/runtime_dir.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/client/socket_path.hpp"
#include "libfabricshm/os/sealed_file.hpp"
#include "libfabricshm/proto/data_messages.hpp"

namespace fabricd {

using namespace fabricshm::proto;
using fabricshm::Errc;
using fabricshm::Fd;
using fabricshm::Result;
using fabricshm::TimePoint;
using fabricshm::UnixSocket;

namespace {

constexpr fabricshm::Bytes kMaxAnswer = fabricshm::kGiB;

}  // namespace

std::string default_data_socket() {
    const char* given = std::getenv("FABRIC_DATA_SOCKET");
    if (given != nullptr && *given != '\0') return given;
    return default_runtime_dir() + "/data.sock";
}

Result<DataLink> DataLink::open(const std::string& socket, TimePoint deadline) {
    const auto paths = fabricshm::data_socket_paths(socket);
    DataLink link;
    for (const auto& path : paths) {
        auto connected = UnixSocket::connect(path, deadline);
        if (connected.ok()) {
            link.socket_ = std::move(connected).value();
            return link;
        }
        if (connected.error().code != Errc::kDaemon) return connected.error();
    }
    return fabricshm::explain({Errc::kDaemon, 0, "reach the data service"},
                              "no data service listens at %s (fabric-data serve)",
                              fabricshm::joined(paths).c_str());
}

Result<std::string> DataLink::ask(const std::string& json, TimePoint deadline) {
    DataMessage request;
    request.type = DataType::kCommand;
    request.request_id = ++last_;
    request.payload = json;
    FABRIC_TRY(const auto packet, encode(request));
    FABRIC_TRY_VOID(socket_.send(packet, {}, deadline));
    for (;;) {
        alignas(8) std::array<std::byte, kDataPacketMax> buffer;
        std::array<Fd, 1> descriptors;
        FABRIC_TRY(const auto got, socket_.receive(buffer, descriptors, deadline));
        FABRIC_TRY(const auto answer, decode_data_message(std::span(buffer).first(got.bytes)));
        if (!answer.is_reply || answer.request_id != last_) continue;
        if (answer.status != Errc::kOk) {
            return fabricshm::explain({answer.status, answer.detail, "ask the data service"}, "%s",
                                      answer.payload.c_str());
        }
        FABRIC_TRY(const auto text, fabricshm::map_sealed_file(descriptors[0], kMaxAnswer));
        return std::string(reinterpret_cast<const char*>(text.data()), text.size());
    }
}

}  // namespace fabricd
