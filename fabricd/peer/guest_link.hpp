// GuestLink: a guest's call to the daemon that owns the pool, made again whenever it ends.

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

namespace fabricd {

/// The name under which the guest calls; asked before each call. Nothing: it may not call now.
struct GuestName {
    std::string host;
    std::uint64_t boot = 0;
    std::uint64_t incarnation = 0;
    std::uint64_t machine = 0;
    std::uint64_t pid_namespace = 0;
    std::uint64_t instance = 0;
    std::array<std::uint8_t, 16> pool{};
};

struct KnownSession {
    std::uint64_t session = 0;
    std::int32_t pid = 0;
    std::vector<OpenRange> ranges;
};

/// Called on the link's own thread, in this order: up, packets and closes, down, up ...
struct GuestEvents {
    std::function<bool(GuestName& name)> may_call;
    /// DaxDevice::read_mark(), by which the owner sees that the device is its own.
    std::function<fabricshm::Result<std::uint64_t>(std::uint32_t mark)> read_mark;
    std::function<void(fabricshm::Bytes used)> usage;  // of the pool
    std::function<void(const std::vector<KnownSession>& sessions)> up;
    std::function<void(std::uint64_t connection, std::string bytes)> packet;
    std::function<void(std::uint64_t connection)> closed;
    std::function<void(const std::string& why)> down;  // also when a call could not be made
};

/// The functions may be called from any thread and never wait; while there is no call what they
/// send goes nowhere.
class GuestLink {
  public:
    /// kNotFound: a certificate can't be read.
    static fabricshm::Result<std::unique_ptr<GuestLink>> start(const std::string& address,
                                                               const PeerFiles& files,
                                                               GuestEvents events);
    /// Ends the call and the threads; no event comes after that.
    ~GuestLink();
    GuestLink(const GuestLink&) = delete;
    GuestLink& operator=(const GuestLink&) = delete;

    void opened(std::uint64_t connection, std::int32_t pid, std::uint32_t uid, std::uint32_t gid);
    void packet(std::uint64_t connection, std::string bytes);
    void closed(std::uint64_t connection);
    void ended(std::uint64_t session);
    /// Its process has ended; ended() follows when what it wrote is out of the caches.
    void died(std::uint64_t session);
    /// It has other files mapped than the devices. Before what it asks for next.
    void presented_others(std::uint64_t session, std::uint64_t arena);

    /// Ends the call that there is, if any; another one is made when may_call() says so.
    void hang_up() noexcept;

  private:
    struct Impl;
    explicit GuestLink(std::unique_ptr<Impl> impl) noexcept;
    std::unique_ptr<Impl> impl_;
};

}  // namespace fabricd
