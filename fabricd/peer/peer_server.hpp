// PeerServer: at the owner of a pool, the daemons of the other hosts that share it.
// docs/hosts.md, "One pool, several hosts".

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fabricd/peer/peer_address.hpp"
#include "fabricd/pool/books.hpp"
#include "libfabricshm/base/result.hpp"
#include "libfabricshm/os/unix_socket.hpp"

namespace fabricd {

inline constexpr std::uint32_t kPeerVersion = 3;

struct PeerServerOptions {
    std::string address;  // as check_peer_address() admits it
    PeerFiles files;
    std::array<std::uint8_t, 16> pool{};  // its UUID: a guest's device has to show the same
    std::string host;                     // this one, whose name no guest may have
};

/// A number that was written to the pool's device: DaxDevice::write_mark().
struct PeerMark {
    std::uint32_t mark = 0;
    std::uint64_t value = 0;
};

/// What guests do to the daemon: see Daemon. Called on threads of gRPC.
struct PeerHooks {
    std::function<fabricshm::Result<PeerMark>()> write_mark;  // another one each time
    std::function<fabricshm::Bytes()> used;                   // of the pool

    std::function<void(fabricshm::UnixSocket, const Peer&)> take;
    std::function<void(const Peer& host, std::uint64_t session)> ended;
    std::function<void(const Peer& host, std::uint64_t session)> died;
    std::function<void(const Peer& host, std::uint64_t session, std::uint64_t arena)>
        presented_others;
    std::function<fabricshm::Result<std::vector<RemoteSession>>(const Peer& host)> greet;
};

/// A guest says which process a packet is of, and is believed: its certificate has its name, and it
/// can write to all of the pool anyway. What its clients send is checked as that of any client.
class PeerServer {
  public:
    /// kInvalid or kNotFound for certificates that can't be used, kBusy when the address can't be
    /// had.
    static fabricshm::Result<std::unique_ptr<PeerServer>> start(PeerServerOptions options,
                                                                PeerHooks hooks);
    /// Ends the calls of all guests; their sessions may come back.
    ~PeerServer();
    PeerServer(const PeerServer&) = delete;
    PeerServer& operator=(const PeerServer&) = delete;

  private:
    struct Impl;
    explicit PeerServer(std::unique_ptr<Impl> impl) noexcept;
    std::unique_ptr<Impl> impl_;
};

}  // namespace fabricd
