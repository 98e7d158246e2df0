// DataServer: the data socket and its connections: packets in, answers out, in any order.

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "fabricd/server/event_loop.hpp"
#include "libfabricshm/os/unix_socket.hpp"
#include "libfabricshm/proto/data_messages.hpp"

namespace fabricd {

using fabricshm::Result;
using fabricshm::TimePoint;

/// A request, and the connection that it came from.
struct DataRequest {
    std::uint64_t connection = 0;
    fabricshm::PeerCredentials peer;
    fabricshm::proto::DataMessage message;
    fabricshm::Fd descriptor;  // that came with it
};

/// The control thread's.
class DataServer {
  public:
    struct Options {
        std::string path;
        std::string group;  // that may connect; "": this user alone
    };
    using Handler = std::function<void(DataRequest)>;

    /// kExists while a process listens there (two that start are kept apart by a lock of the
    /// caller's); kInvalid: there is no such group.
    static Result<std::unique_ptr<DataServer>> open(const Options& options, EventLoop& loop,
                                                    Handler handler);
    ~DataServer();
    DataServer(const DataServer&) = delete;
    DataServer& operator=(const DataServer&) = delete;

    /// Queues an answer; nothing happens when the connection is gone by now. `descriptor` is
    /// borrowed until it is sent, by shared ownership.
    void answer(std::uint64_t connection, fabricshm::proto::DataMessage message,
                std::shared_ptr<const fabricshm::Fd> descriptor = nullptr);

    /// Called with a connection that ended.
    std::function<void(std::uint64_t connection)> on_end;

    std::size_t connections() const noexcept { return connections_.size(); }

  private:
    struct Packet {
        std::vector<std::byte> bytes;
        std::shared_ptr<const fabricshm::Fd> descriptor;
    };
    struct Connection {
        fabricshm::UnixSocket socket;
        fabricshm::PeerCredentials peer;
        EventLoop::WatchId watch = 0;
        std::deque<Packet> out;
        std::size_t unanswered = 0;
        std::uint32_t events = 0;
    };

    DataServer(EventLoop& loop, Handler handler) : loop_(loop), handler_(std::move(handler)) {}
    void accept();
    void serve(std::uint64_t id, std::uint32_t events);
    bool read_some(std::uint64_t id);
    bool write_some(Connection& connection);
    void log_bad_packet(int pid);
    void watch(Connection& connection);
    void end(std::uint64_t id);

    EventLoop& loop_;
    Handler handler_;
    std::string path_;
    fabricshm::UnixSocket listener_;
    EventLoop::WatchId listening_ = 0;
    std::unordered_map<std::uint64_t, Connection> connections_;
    std::uint64_t last_ = 0;
    TimePoint next_line_{};       // of bad packets
    std::uint64_t unlogged_ = 0;  // since the last line
};

}  // namespace fabricd
