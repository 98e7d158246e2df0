#include "libfabricshm/client/data_channel.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/client/connection.hpp"
#include "libfabricshm/client/fork_guard.hpp"
#include "libfabricshm/client/socket_path.hpp"

namespace fabricshm {

namespace {

// A text of the service, as far as it fits, without what would garble a terminal.
std::string printable(const std::string& text) {
    std::string shown = text.substr(0, kReasonBytes - 1);
    std::replace_if(
        shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
    return shown;
}

Error error_of(const proto::DataMessage& answer, const char* step) {
    const Error error{answer.status, answer.detail, step};
    if (answer.payload.empty()) return error;
    return explain(error, "%s", printable(answer.payload).c_str());
}

}  // namespace

std::string DataChannel::where() const {
    return joined(paths_);
}

Result<DataChannel::Connection> DataChannel::connect(TimePoint deadline) {
    Error last{Errc::kDaemon, 0, "connect to the data service"};
    for (const std::string& path : paths_) {
        auto socket = fork_guard::connect(path, deadline);
        if (socket.ok()) return socket;
        // "Not allowed" says more than "none listens" about another path.
        if (last.code == Errc::kDaemon) last = socket.error();
    }
    if (last.code == Errc::kDenied) {
        return explain(last, "permission denied at %s", where().c_str());
    }
    const bool is_absent = last.code == Errc::kDaemon || last.code == Errc::kNotFound;
    if (!is_absent) return last;
    return explain({Errc::kDaemon, 0, "connect to the data service"},
                   "no service listens at %s: start `fabric-data serve`, or name its socket by "
                   "FABRIC_DATA_SOCKET",
                   where().c_str());
}

Result<DataChannel::Connection> DataChannel::take(TimePoint deadline) {
    {
        std::unique_lock lock(mutex_);
        const auto can_go = [&] { return !idle_.empty() || open_ < kMaxConnections; };
        if (!returned_.wait_until(lock, deadline, can_go)) {
            return Error{Errc::kTimeout, 0, "wait for a connection to the data service"};
        }
        if (!idle_.empty()) {
            Connection connection = std::move(idle_.back());
            idle_.pop_back();
            return connection;
        }
        ++open_;
    }
    auto made = connect(deadline);
    if (!made.ok()) put(nullptr, false);
    return made;
}

void DataChannel::put(Connection connection, bool is_sound) {
    const std::lock_guard lock(mutex_);
    if (is_sound) {
        idle_.push_back(std::move(connection));
    } else {
        breaks_.fetch_add(1, std::memory_order_relaxed);
        --open_;
    }
    returned_.notify_one();
}

// The service that they led to has ended.
void DataChannel::drop_idle() {
    const std::lock_guard lock(mutex_);
    open_ -= idle_.size();
    idle_.clear();
    returned_.notify_all();
}

proto::DataMessage DataChannel::request_of(proto::DataType type, const std::string& payload) {
    proto::DataMessage request;
    request.type = type;
    request.payload = payload;
    const std::lock_guard lock(mutex_);
    request.request_id = ++last_request_;
    return request;
}

Error DataChannel::ended(const char* step) const {
    return explain({Errc::kDaemon, 0, step}, "the data service at %s ended meanwhile",
                   where().c_str());
}

Result<DataChannel::Apart> DataChannel::call_apart(proto::DataType type, const std::string& payload,
                                                   const char* step, TimePoint deadline) {
    Apart apart;
    FABRIC_TRY(apart.connection, connect(deadline));
    FABRIC_TRY(apart.answer, call_on(apart.connection, type, payload, step, deadline));
    return apart;
}

Result<DataChannel::Answer> DataChannel::call_on(Connection& connection, proto::DataType type,
                                                 const std::string& payload, const char* step,
                                                 TimePoint deadline, int descriptor) {
    const proto::DataMessage request = request_of(type, payload);
    FABRIC_TRY(const std::vector<std::byte> packet, proto::encode(request));
    bool is_sound = false;
    auto answer = exchange(*connection, packet, request, step, deadline, descriptor, is_sound);
    if (is_sound) return answer;
    connection.reset();
    breaks_.fetch_add(1, std::memory_order_relaxed);  // as put() does
    if (answer.error().code == Errc::kClosed) return ended(step);
    return answer;
}

Result<DataChannel::Answer> DataChannel::call(proto::DataType type, const std::string& payload,
                                              const char* step, TimePoint deadline) {
    const proto::DataMessage request = request_of(type, payload);
    FABRIC_TRY(const std::vector<std::byte> packet, proto::encode(request));
    for (int attempt = 0;; ++attempt) {
        FABRIC_TRY(Connection connection, take(deadline));
        bool is_sound = false;
        auto answer = exchange(*connection, packet, request, step, deadline, -1, is_sound);
        put(is_sound ? std::move(connection) : nullptr, is_sound);
        const bool has_ended = !answer.ok() && !is_sound && answer.error().code == Errc::kClosed;
        if (!has_ended) return answer;
        // A connection from before a restart; the others lead nowhere, either.
        drop_idle();
        if (attempt > 0) return ended(step);
    }
}

Result<DataChannel::Answer> DataChannel::exchange(const UnixSocket& socket,
                                                  const std::vector<std::byte>& packet,
                                                  const proto::DataMessage& request,
                                                  const char* step, TimePoint deadline,
                                                  int descriptor, bool& is_sound) {
    const std::span<const int> along(&descriptor, descriptor >= 0 ? 1 : 0);
    FABRIC_TRY_VOID(socket.send(packet, along, deadline));
    std::array<std::byte, proto::kDataPacketMax> buffer;
    Answer answer;
    FABRIC_TRY(const Received received,
               socket.receive(buffer, std::span(&answer.descriptor, 1), deadline));
    FABRIC_TRY(proto::DataMessage message,
               proto::decode_data_message(std::span(buffer).first(received.bytes)));
    const bool is_ours = message.is_reply && message.type == request.type &&
                         message.request_id == request.request_id && received.surplus == 0;
    if (!is_ours) return Error{Errc::kCorrupt, 0, step};
    is_sound = true;  // one request, one answer: the next may use it
    if (message.status != Errc::kOk) return error_of(message, step);
    answer.payload = std::move(message.payload);
    return answer;
}

Result<proto::DataHelloReply> DataChannel::greet(TimePoint deadline) {
    constexpr const char* kStep = "greet the data service";
    FABRIC_TRY(const Answer answer, call(proto::DataType::kHello, "", kStep, deadline));
    const auto reply = proto::data_fixed<proto::DataHelloReply>(answer.payload);
    if (!reply) return Error{Errc::kCorrupt, 0, kStep};
    FABRIC_TRY_VOID(proto::check(*reply));
    return *reply;
}

}  // namespace fabricshm
