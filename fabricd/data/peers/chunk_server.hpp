// ChunkServer: other hosts' way to what this host's cache has.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fabricd/data/peers/chunk_query.hpp"

namespace fabricd {

/// Where a server takes its chunks from.
class ChunkSource {
  public:
    ChunkSource() = default;
    virtual ~ChunkSource() = default;
    ChunkSource(const ChunkSource&) = delete;
    ChunkSource& operator=(const ChunkSource&) = delete;

    struct Chunk {
        std::vector<std::byte>
            bytes;  // a copy: what the cache does with its own meanwhile is its affair
        std::uint32_t checksum = 0;  // CRC-32C, as it was when the cache was filled
    };
    /// A chunk that is there, of exactly that version; nullopt: it is not. Does not wait for one.
    /// An owner may take the question as a reason to fetch it; a chunk without bytes is on its way,
    /// and is asked for again a moment later. Called from the server's thread.
    virtual std::optional<Chunk> find(const ChunkName& name) = 0;
};

/// PEM files: what both ends show, and the authority that has signed what they accept.
struct PeerTrust {
    std::string authority;
    std::string certificate;
    std::string key;

    bool is_set() const noexcept { return !authority.empty(); }
};

struct ChunkServerOptions {
    std::string listen;         // "address:port", numeric; port 0: one of the kernel's choice
    PeerTrust trust;            // not set: no TLS, and loopback addresses alone
    unsigned connections = 32;  // more are closed at once; each may hold one chunk
    std::chrono::milliseconds header_time{2000};  // for a handshake, and for a request's header
    std::chrono::milliseconds idle_time{30'000};  // between requests
    std::chrono::milliseconds answer_time{10'000};
    // For a chunk that is on its way: less than the head start, behind which the other host asks
    // the silo itself.
    std::chrono::milliseconds coming_time{40};
};

/// "127.0.0.1", "::1" and the like.
bool is_loopback_address(const std::string& address);

/// HTTP/1.1, GET alone, headers of 8 KiB at most; a thread of its own. Each wait is bounded.
class ChunkServer {
  public:
    /// Borrows `source`. kDenied: an address that is not a loopback one, without trust. kInvalid:
    /// no address, or files of trust that cannot be used. kExists: the port is taken.
    static Result<std::unique_ptr<ChunkServer>> start(const ChunkServerOptions& options,
                                                      ChunkSource& source);
    /// Closes all connections.
    ~ChunkServer();
    ChunkServer(const ChunkServer&) = delete;
    ChunkServer& operator=(const ChunkServer&) = delete;

    std::uint16_t port() const noexcept;

    struct Stats {
        std::uint64_t served = 0;   // chunks
        std::uint64_t missing = 0;  // that were asked for and not there
        std::uint64_t refused = 0;  // connections above the limit, and requests for no chunk
    };
    Stats stats() const noexcept;

  private:
    struct Impl;

    explicit ChunkServer(std::unique_ptr<Impl> impl);

    std::unique_ptr<Impl> impl_;
};

}  // namespace fabricd
