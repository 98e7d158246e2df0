#include "fabricd/data/serve/cache_chunks.hpp"

#include <future>
#include <utility>

#include "fabricd/data/peers/peer_silo.hpp"
#include "libfabricshm/shm/data_layout.hpp"

namespace fabricd {

using namespace std::chrono_literals;
using fabricshm::Clock;

namespace {

constexpr auto kControlThread = 1s;

std::vector<PeerMember> members_of(const PeersSpec& peers) {
    std::vector<PeerMember> members;
    for (const PeerSpec& member : peers.members) members.push_back({member.address, member.pool});
    return members;
}

PeerTrust trust_of(const PeersSpec& peers) {
    return {peers.authority, peers.certificate, peers.key};
}

}  // namespace

std::optional<ChunkSource::Chunk> CacheChunks::find(const ChunkName& name) {
    // Both ends may outlive the other's interest.
    const auto answer = std::make_shared<std::promise<std::optional<Chunk>>>();
    auto copied = answer->get_future();
    const bool is_asked = loop_.post([this, name, answer] { answer->set_value(copy_of(name)); });
    if (!is_asked || copied.wait_for(kControlThread) != std::future_status::ready) {
        return std::nullopt;
    }
    return copied.get();
}

std::optional<ChunkSource::Chunk> CacheChunks::copy_of(const ChunkName& name) {
    const auto place = parts_.listings.place_of(name.path);
    const KnownFile* const file = place ? parts_.files.find(place->silo, place->path) : nullptr;
    if (file == nullptr || file->facts.version != name.version ||
        name.number >= fabricshm::data_chunks(file->facts.bytes)) {
        return std::nullopt;
    }
    const std::uint64_t line = file->first_line + name.number;
    if (parts_.cache.state(line) != DataLineState::kReady) {
        const bool is_first = is_first_owner(name);
        const auto priority = is_first ? FetchPriority::kOnDemand : FetchPriority::kAhead;
        parts_.fills.want(*file, name.number, priority, ChunkKind::kTried, nullptr, Clock::now());
        // Nothing comes of a silo that fails, and asking it again would not make it better.
        const bool is_failing = parts_.fills.meter(file->silo).failing_since != fabricshm::kNoWait;
        return is_first && !is_failing ? std::optional(Chunk{}) : std::nullopt;
    }
    parts_.cache.touch(line);
    const auto bytes = parts_.cache.bytes_of(line);
    return Chunk{{bytes.begin(), bytes.end()}, parts_.cache.fields(line).checksum};
}

bool CacheChunks::is_first_owner(const ChunkName& name) const {
    const PeersSpec& peers = parts_.spec.peers;
    const auto owners = owners_of(name, members_of(peers), peers.copies);
    return !owners.empty() && peers.members[owners.front()].address == peers.self;
}

Result<std::unique_ptr<Silo>> with_peers(const PeersSpec& peers, const SiloSpec& spec,
                                         std::unique_ptr<Silo> silo) {
    PeerSiloOptions options;
    options.at = spec.at;
    options.members = members_of(peers);
    options.self = peers.self;
    options.copies = peers.copies;
    options.head_start = std::chrono::duration_cast<std::chrono::milliseconds>(peers.head_start);
    options.trust = trust_of(peers);
    FABRIC_TRY(auto opened, PeerSilo::open(options, std::move(silo)));
    return std::unique_ptr<Silo>(std::move(opened));
}

Result<std::unique_ptr<ChunkServer>> serve_peers(const PeersSpec& peers, ChunkSource& source) {
    if (peers.listen.empty()) return std::unique_ptr<ChunkServer>();
    ChunkServerOptions options;
    options.listen = peers.listen;
    options.trust = trust_of(peers);
    return ChunkServer::start(options, source);
}

}  // namespace fabricd
