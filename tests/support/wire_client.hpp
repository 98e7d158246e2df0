// A session that speaks the attach protocol message by message: what libfabricshm does, without its
// manners. For tests of the daemon, polite and hostile.

#pragma once

#include <cstdint>
#include <string>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/unix_socket.hpp"
#include "libfabricshm/proto/messages.hpp"

namespace test_support {

/// Every wait ends after kTimeout; what it returns then is kTimeout.
class WireClient {
  public:
    static constexpr fabricshm::Duration kTimeout = std::chrono::seconds(30);

    /// Tries again for `timeout` while no daemon listens.
    static fabricshm::Result<WireClient> connect(const std::string& socket_path,
                                                 fabricshm::Duration timeout = kTimeout);

    /// Connects and says hello.
    static fabricshm::Result<WireClient> attach(const std::string& socket_path,
                                                const char* label = "test",
                                                fabricshm::Duration timeout = kTimeout);

    /// Sends a request and returns the id that its reply will carry.
    fabricshm::Result<std::uint64_t> send(fabricshm::proto::Message request, int descriptor = -1);

    /// The next message that arrives, whatever it answers.
    fabricshm::Result<fabricshm::proto::Message> receive();

    /// Sends, then waits for the reply. An error reply is an error here.
    fabricshm::Result<fabricshm::proto::Message> ask(const fabricshm::proto::Message& request,
                                                     int descriptor = -1);

    fabricshm::Result<void> hello(const char* label);
    /// Says hello as the session that `other` was.
    fabricshm::Result<void> hello_again(const WireClient& other);

    /// The descriptor is kept in `descriptor`.
    fabricshm::Result<fabricshm::proto::ArenaOpen> open_arena(const char* name,
                                                              fabricshm::Bytes bytes,
                                                              std::uint32_t flags = 0);
    fabricshm::Result<void> adopt(std::uint64_t arena_id, int fd);
    fabricshm::Result<void> close_arena(std::uint64_t arena_id);
    fabricshm::Result<fabricshm::proto::Region> create_region(std::uint64_t arena_id,
                                                              fabricshm::Bytes bytes);
    fabricshm::Result<void> free_region(const fabricshm::proto::Region& region);
    fabricshm::Result<fabricshm::proto::Region> open_region(const fabricshm::proto::Region& region);
    fabricshm::Result<fabricshm::proto::Tensor> create_tensor(std::uint64_t arena_id,
                                                              const char* name,
                                                              std::int64_t elements);
    fabricshm::Result<fabricshm::proto::Tensor> open_tensor(std::uint64_t arena_id,
                                                            const char* name,
                                                            std::int64_t timeout_ms);

    fabricshm::Result<fabricshm::proto::Group> join(std::uint64_t arena_id, const char* name,
                                                    int rank, int world,
                                                    std::int64_t timeout_ms = 30000);
    fabricshm::Result<void> leave(std::uint64_t group_id);
    fabricshm::Result<fabricshm::proto::Group> shrink(std::uint64_t group_id,
                                                      std::int64_t timeout_ms = 30000);
    void bye();

    fabricshm::UnixSocket& socket() { return socket_; }

    fabricshm::proto::Hello session{};  // what the daemon answered
    fabricshm::Fd descriptor;           // the last one that came in

  private:
    fabricshm::UnixSocket socket_;
    std::uint64_t last_request_ = 0;
};

/// Requests as the client would make them, for tests that send several before they listen.
fabricshm::proto::Message join_request(std::uint64_t arena_id, const char* name, int rank,
                                       int world, std::int64_t timeout_ms = 30000);
fabricshm::proto::Message arena_request(const char* name, fabricshm::Bytes bytes,
                                        std::uint32_t flags = 0);

}  // namespace test_support
