// CacheChunks: the cache of this host as other hosts see it.

#pragma once

#include <chrono>
#include <memory>

#include "fabricd/data/peers/chunk_server.hpp"
#include "fabricd/data/serve/service_parts.hpp"
#include "fabricd/server/event_loop.hpp"

namespace fabricd {

/// Asks the control thread for each chunk, and waits for it a second at most. A chunk of a file
/// that is known, and not in memory, is fetched for the next one that asks. The first owner of a
/// chunk says that it is on its way, so that one host of the cluster asks the silo for it. The
/// others do not: their own fetch may wait for the first owner, and two that wait for each other
/// would get nowhere.
class CacheChunks : public ChunkSource {
  public:
    /// The parts outlive the loop's last task.
    CacheChunks(ServiceParts& parts, EventLoop& loop) : parts_(parts), loop_(loop) {}

    std::optional<Chunk> find(const ChunkName& name) override;

  private:
    std::optional<Chunk> copy_of(const ChunkName& name);
    bool is_first_owner(const ChunkName& name) const;

    ServiceParts& parts_;
    EventLoop& loop_;
};

/// Of a spec's peers, for one silo of it.
Result<std::unique_ptr<Silo>> with_peers(const PeersSpec& peers, const SiloSpec& spec,
                                         std::unique_ptr<Silo> silo);
/// Null: this host serves no other one. Errors as ChunkServer::start().
Result<std::unique_ptr<ChunkServer>> serve_peers(const PeersSpec& peers, ChunkSource& source);

}  // namespace fabricd
