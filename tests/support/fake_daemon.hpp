// A daemon that runs in the test's own process and can be made to die, come back, keep silent or
// refuse: for tests of the client side, without fabricd.

#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/unix_socket.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace test_support {

/// Listens in a temporary folder. Knows sessions, arenas (memfds), regions (never used twice) and
/// tensors; groups and quotas are the real one's. What it knows outlives die() and come_back().
class FakeDaemon {
  public:
    FakeDaemon();
    ~FakeDaemon();

    const std::string& path() const noexcept { return path_; }

    /// Closes the socket and all connections, as SIGKILL would.
    void die();
    void come_back();
    /// Says that several hosts share its pool, with this profile. Before any session.
    void share_pool(const std::string& profile);
    /// Is one of before Hello::last_type from now on: it hangs up on requests that came later.
    void be_older();
    void be_newer();
    /// Loses what a journal would have kept.
    void forget_everything();

    /// Does not answer requests of this type any more, until speak().
    void be_silent(fabricshm::proto::Type type);
    void speak();
    /// Reads nothing any more, so that sockets to it fill up; until asked to again.
    void stop_reading(bool stop);
    /// Answers the next request of this type with an error.
    void refuse_next(fabricshm::proto::Type type, fabricshm::Error error);
    /// Sends fields out of range in the answer to the next request of this type.
    void corrupt_next(fabricshm::proto::Type type);
    /// Reports lost memory, as if another session had found it, before the answer to the next
    /// request of this type.
    void lose_before_next(fabricshm::proto::Type type, const fabricshm::proto::Region& lost);
    /// Answers the requests kept back by be_silent(), late.
    void answer_late();

    /// How many requests of this type came in so far.
    int count(fabricshm::proto::Type type) const;
    /// Waits until there are at least as many; false after 30 s.
    bool wait_for(fabricshm::proto::Type type, int count) const;
    /// The newest request of a type.
    fabricshm::proto::Message last(fabricshm::proto::Type type) const;
    int connections() const;
    std::size_t regions() const;
    /// Those that have not ended by a goodbye that names them; others end unseen.
    std::size_t sessions() const;

  private:
    struct Arena {
        std::uint64_t id = 0;
        fabricshm::Fd fd;
        fabricshm::Bytes bytes = 0;
        fabricshm::Bytes used = 0;
    };
    struct Waiting {
        std::uint64_t connection;
        fabricshm::proto::Message request;
        fabricshm::TimePoint deadline;
    };
    using Message = fabricshm::proto::Message;
    using Type = fabricshm::proto::Type;

    void run();
    void close_everything();
    void accept_all();
    void read_from(std::uint64_t connection);
    void handle(std::uint64_t connection, const Message& request);
    bool act(const Message& request, Message& reply, int& descriptor);
    void open_arena(Message& reply, int& descriptor);
    fabricshm::Error make_region(fabricshm::proto::Region& region, fabricshm::Bytes bytes);
    bool find_tensor(Message& reply);
    void answer_waiting();
    void send(std::uint64_t connection, const Message& reply, int descriptor);
    void wake();

    std::string folder_;
    std::string path_;
    fabricshm::Fd wake_;  // an eventfd: ends the thread's poll
    mutable std::mutex mutex_;
    mutable std::condition_variable arrived_;
    fabricshm::UnixSocket listener_;
    std::map<std::uint64_t, fabricshm::UnixSocket> connections_;
    std::map<std::string, Arena> arenas_;
    std::map<std::uint64_t, fabricshm::proto::Region> regions_;
    std::map<std::string, fabricshm::proto::Tensor> tensors_;
    std::vector<Waiting> waiting_;
    std::vector<Waiting> kept_back_;
    std::set<Type> silent_;
    std::map<Type, fabricshm::Error> refusals_;
    std::set<Type> corrupted_;
    std::map<Type, fabricshm::proto::Region> losses_;
    std::map<Type, int> counts_;
    std::map<Type, Message> last_;
    std::set<std::uint64_t> sessions_;
    std::uint64_t last_id_ = 100;
    std::uint64_t epoch_ = 1;
    std::string profile_;
    std::uint16_t last_type_ = static_cast<std::uint16_t>(fabricshm::proto::kLastType);
    bool reading_ = true;
    bool dying_ = false;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace test_support
