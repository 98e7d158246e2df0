// Transport: writes into the memory of ranks on other hosts. The seam between libfabricshm.so and
// libfabricshm_net.so, which alone knows libfabric and is loaded by groups that span pools.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricshm::net {

/// Of what crosses the seam: raised with every change of this file. Both sides are of one build.
inline constexpr int kTransportVersion = 2;

/// The name of an endpoint, as the provider gives it.
struct Address {
    std::uint32_t bytes = 0;
    std::array<std::uint8_t, 64> name{};
};

/// Where one peer may write in this process: nothing else of it.
struct Door {
    std::uint64_t base = 0;
    std::uint64_t key = 0;
};

struct TransportSpec {
    int rank = 0;
    int world = 1;
    const bool* remote = nullptr;    // [world]: whether that rank is on another host
    Bytes door_bytes = 0;            // that each of these may write
    const char* address = nullptr;   // of the interface that is used, as text
    const char* provider = nullptr;  // nullptr or "": by capability
};

/// Something happened to a peer, or came from one.
struct Event {
    enum class What : std::uint8_t {
        kArrived,  // a peer's write is in its door; `word` came with it
        kLost,     // the connection to `peer` ended
    };
    What what = What::kArrived;
    std::uint32_t word = 0;
    int peer = -1;
    int error = 0;  // of kLost: a libfabric error number
};

/// Whether a peer that takes no writes is still there.
enum class Presence : std::uint8_t {
    kUnknown,   // this provider can't say
    kNoAnswer,  // not yet, or it can't be reached
    kThere,     // it only takes none now
    kGone,      // its machine answers, and says that it has no such endpoint
};

/// One endpoint, for one epoch of one group. It never connects again to a peer that it lost.
/// Threads: fence() and wake() from any; everything else by one thread at a time.
class Transport {
  public:
    virtual ~Transport() = default;

    virtual const char* provider() const noexcept = 0;
    /// Whether bytes that are sent have to lie in memory given to lend().
    virtual bool needs_lent() const noexcept = 0;
    /// May be called several times; what is lent stays until the transport goes.
    virtual Errc lend(std::byte* base, Bytes bytes) noexcept = 0;

    virtual Address address() const noexcept = 0;
    virtual Door door(int peer) const noexcept = 0;
    /// What `peer` has written.
    virtual std::byte* memory(int peer) const noexcept = 0;

    /// Enters a peer's endpoint and door. The connection is made by the first write.
    virtual Errc know(int peer, const Address& address, const Door& door) noexcept = 0;

    /// Writes into the peer's door and delivers `word` after the bytes; without bytes into the
    /// first 8 of the door, which hold nothing. Writes to one peer arrive in order. `pending` is
    /// raised by one until the bytes may be changed. kBusy: poll() and try again. kPeer: that peer
    /// is lost.
    virtual Errc write(int peer, const std::byte* from, Bytes bytes, Bytes offset,
                       std::uint32_t word, std::atomic<int>* pending) noexcept = 0;

    /// Makes progress and fetches what happened, at most `capacity` events; waits so long for a
    /// first one if there is none.
    virtual int poll(Event* events, int capacity, int wait_ms) noexcept = 0;

    /// Asked again and again while write() says kBusy. Never waits.
    virtual Presence presence(int peer) noexcept = 0;

    /// From its return on nothing that `peer` writes lands here, even if it was sent before.
    virtual void fence(int peer) noexcept = 0;
    /// Ends a poll() that waits.
    virtual void wake() noexcept = 0;
};

/// Of a failure in the factory.
struct TransportError {
    Errc code = Errc::kOk;
    char text[200] = "";
};

/// What libfabricshm_net.so exports. nullptr: `error` says why.
using TransportFactory = Transport* (*)(int version, const TransportSpec* spec,
                                        TransportError* error);
inline constexpr const char* kTransportFactory = "fabricshm_net_transport";

}  // namespace fabricshm::net
