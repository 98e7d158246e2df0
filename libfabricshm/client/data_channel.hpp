// DataChannel: requests to the data service, over as many connections as threads ask at once.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/unix_socket.hpp"
#include "libfabricshm/proto/data_messages.hpp"

namespace fabricshm {

/// Thread-safe. Connections are made when they are needed, kept for the next request, and closed in
/// a child of fork(), which needs a channel of its own. Every wait ends at the caller's deadline.
class DataChannel {
  public:
    /// `paths` are tried in this order.
    explicit DataChannel(std::vector<std::string> paths) : paths_(std::move(paths)) {}
    DataChannel(const DataChannel&) = delete;
    DataChannel& operator=(const DataChannel&) = delete;

    struct Answer {
        std::string payload;
        Fd descriptor;  // if one came along
    };

    /// Sends a request and waits for its answer. Errors are the service's, with its text as the
    /// reason; kDaemon: it does not listen, or ended before it answered (once it was asked twice);
    /// kTimeout; kCorrupt and kVersion of what came.
    Result<Answer> call(proto::DataType type, const std::string& payload, const char* step,
                        TimePoint deadline);

    using Connection = std::shared_ptr<const UnixSocket>;
    struct Apart {
        Connection connection;
        Answer answer;
    };

    /// The same on a connection of its own, which the service takes for the end of what was asked
    /// for when it is closed: that is when the caller lets it go. Once.
    Result<Apart> call_apart(proto::DataType type, const std::string& payload, const char* step,
                             TimePoint deadline);

    /// The next request on a connection of call_apart(), by one thread at a time. Once.
    /// `descriptor`: -1, or one that goes along. Lets `connection` go if no other request can
    /// follow: when no answer of this request came.
    Result<Answer> call_on(Connection& connection, proto::DataType type, const std::string& payload,
                           const char* step, TimePoint deadline, int descriptor = -1);

    /// Which arena and which tables the service has now.
    Result<proto::DataHelloReply> greet(TimePoint deadline);

    /// How many connections could not be made or ended otherwise than by this end: another service
    /// than before may answer since then.
    std::uint64_t breaks() const noexcept { return breaks_.load(std::memory_order_relaxed); }

    /// "a or b", for error texts.
    std::string where() const;

  private:
    // More threads wait for each other.
    static constexpr std::size_t kMaxConnections = 16;

    proto::DataMessage request_of(proto::DataType type, const std::string& payload);
    Result<Connection> take(TimePoint deadline);
    void put(Connection connection, bool is_sound);
    void drop_idle();
    Result<Connection> connect(TimePoint deadline);
    Error ended(const char* step) const;
    Result<Answer> exchange(const UnixSocket& socket, const std::vector<std::byte>& packet,
                            const proto::DataMessage& request, const char* step, TimePoint deadline,
                            int descriptor, bool& is_sound);

    std::vector<std::string> paths_;  // as it was given: the first that listens is taken each time
    std::mutex mutex_;
    std::condition_variable returned_;
    std::vector<Connection> idle_;
    std::size_t open_ = 0;  // idle ones and those in use
    std::uint64_t last_request_ = 0;
    std::atomic<std::uint64_t> breaks_{0};
};

}  // namespace fabricshm
