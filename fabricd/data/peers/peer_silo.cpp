#include "fabricd/data/peers/peer_silo.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/host_port.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::explain;

namespace {

constexpr std::size_t kMaxFlights = 16;
constexpr std::size_t kFreeBuffers = 8;
constexpr unsigned kSlowTimes = 3;
// While both are asked: a silo has no descriptor to wait for.
constexpr auto kTurn = std::chrono::milliseconds(1);

bool is_whole_chunk(const Fetch& fetch) {
    return fetch.bytes != 0 && fetch.offset % kPeerChunk == 0 &&
           fetch.bytes == std::min(kPeerChunk, fetch.facts.bytes - fetch.offset);
}

}  // namespace

void PeerSilo::Free::operator()(std::byte* bytes) const noexcept {
    std::free(bytes);
}

PeerSilo::PeerSilo(PeerSiloOptions options, std::unique_ptr<Silo> silo,
                   std::unique_ptr<HttpTransfers> transfers)
    : options_(std::move(options)),
      silo_(std::move(silo)),
      transfers_(std::move(transfers)),
      peers_(options_.members.size()) {}

// The silo first: it may be writing into a buffer.
PeerSilo::~PeerSilo() {
    silo_.reset();
    transfers_.reset();
}

Result<std::unique_ptr<PeerSilo>> PeerSilo::open(const PeerSiloOptions& options,
                                                 std::unique_ptr<Silo> silo) {
    for (const PeerMember& member : options.members) {
        if (fabricshm::parse_host_port(member.address)) continue;
        return explain({Errc::kInvalid, 0, "open peers"}, "%s is no host and port",
                       printable(member.address).c_str());
    }
    HttpTransfersOptions web;
    web.connections = kMaxFlights;
    web.stalled_seconds = 2;
    web.connect_timeout = std::chrono::milliseconds(1000);
    if (options.trust.is_set()) {
        web.ca_file = options.trust.authority;
        web.certificate_file = options.trust.certificate;
        web.key_file = options.trust.key;
    }
    FABRIC_TRY(auto transfers, HttpTransfers::make(web));
    return std::unique_ptr<PeerSilo>(new PeerSilo(options, std::move(silo), std::move(transfers)));
}

Result<SiloPage> PeerSilo::list(const std::string& folder, const std::string& after,
                                std::size_t most, TimePoint deadline) {
    return silo_->list(folder, after, most, deadline);
}

Result<FileFacts> PeerSilo::look(const std::string& path, TimePoint deadline) {
    return silo_->look(path, deadline);
}

bool PeerSilo::has_room() const noexcept {
    return flights_.size() < kMaxFlights && silo_->has_room();
}

PeerSilo::Buffer PeerSilo::take_buffer() {
    if (buffers_.empty()) {
        // On a page: a folder reads past the page cache then.
        auto* const bytes =
            static_cast<std::byte*>(std::aligned_alloc(fabricshm::kPageBytes, kPeerChunk));
        FABRIC_CHECK(bytes != nullptr);
        return Buffer(bytes);
    }
    Buffer buffer = std::move(buffers_.back());
    buffers_.pop_back();
    return buffer;
}

void PeerSilo::give_back(Buffer buffer) {
    if (buffer != nullptr && buffers_.size() < kFreeBuffers) buffers_.push_back(std::move(buffer));
}

std::vector<std::size_t> PeerSilo::owners_to_ask(const Fetch& fetch) const {
    if (!is_whole_chunk(fetch)) return {};
    const ChunkName name{options_.at + "/" + fetch.path, fetch.facts.version,
                         static_cast<std::uint32_t>(fetch.offset / kPeerChunk)};
    auto owners = owners_of(name, options_.members, options_.copies);
    const TimePoint now = Clock::now();
    std::erase_if(owners, [&](std::size_t member) {
        return options_.members[member].address == options_.self ||
               peers_[member].left_out_until > now;
    });
    std::reverse(owners.begin(), owners.end());
    return owners;
}

void PeerSilo::start(const Fetch& fetch) {
    FABRIC_CHECK(has_room());
    FABRIC_CHECK(fetch.bytes <= fetch.room && fetch.offset + fetch.bytes <= fetch.facts.bytes);
    const std::uint64_t id = ++last_;
    Flight& flight = flights_[id];
    flight.fetch = fetch;
    flight.owners = owners_to_ask(fetch);
    flight.silo_at = Clock::now() + options_.head_start;
    ask_peer(id, flight);
}

// The next owner; the silo where there is none.
void PeerSilo::ask_peer(std::uint64_t id, Flight& flight) {
    if (flight.owners.empty()) {
        if (!flight.is_silo_asked && silo_->has_room()) return ask_silo(id, flight);
        flight.silo_at = fabricshm::kNoWait;  // as soon as it has room
        return;
    }
    flight.peer = flight.owners.back();
    flight.owners.pop_back();
    if (flight.from_peer == nullptr) flight.from_peer = take_buffer();
    const Fetch& fetch = flight.fetch;
    const ChunkName name{options_.at + "/" + fetch.path, fetch.facts.version,
                         static_cast<std::uint32_t>(fetch.offset / kPeerChunk)};
    TransferRequest request;
    request.url = (options_.trust.is_set() ? "https://" : "http://") +
                  options_.members[flight.peer].address + chunk_target(name);
    request.into = flight.from_peer.get();
    request.bytes = fetch.bytes;
    request.deadline = Clock::now() + options_.peer_time;
    request.tag = flight.question = ++last_;
    questions_[request.tag] = id;
    transfers_->start(request);
}

void PeerSilo::ask_silo(std::uint64_t id, Flight& flight) {
    flight.is_silo_asked = true;
    Fetch fetch = flight.fetch;
    fetch.tag = id;
    // The place is written once: by the silo itself only where no peer can be first.
    if (flight.question != 0) {
        flight.from_silo = take_buffer();
        fetch.into = flight.from_silo.get();
        fetch.room = kPeerChunk;
    }
    silo_->start(fetch);
}

void PeerSilo::ask_silo_where_due(TimePoint now) {
    for (auto& [id, flight] : flights_) {
        if (!silo_->has_room()) return;
        if (!flight.is_silo_asked && !flight.is_delivered && flight.silo_at <= now) {
            ask_silo(id, flight);
        }
    }
}

TimePoint PeerSilo::next_due() const noexcept {
    TimePoint next = TimePoint::max();
    if (!silo_->has_room()) return next;
    for (const auto& [id, flight] : flights_) {
        if (!flight.is_silo_asked && !flight.is_delivered) next = std::min(next, flight.silo_at);
    }
    return next;
}

PeerSilo::Verdict PeerSilo::verdict_on(const Flight& flight, const TransferAnswer& answer) const {
    switch (answer.end) {
        case HttpEnd::kDeadline:
        case HttpEnd::kStalled:
        case HttpEnd::kConnection:
        case HttpEnd::kTrust:
            return Verdict::kFailed;
        case HttpEnd::kBroken:
            return Verdict::kLie;
        case HttpEnd::kAnswered:
            break;
    }
    if (answer.status == 404) return Verdict::kMissing;
    if (answer.status != 206) return Verdict::kFailed;
    const Fetch& fetch = flight.fetch;
    const auto checksum = parse_checksum(answer.fields.checksum);
    if (answer.fields.etag != '"' + version_text(fetch.facts.version) + '"' || !checksum ||
        answer.total != fetch.bytes) {
        return Verdict::kLie;
    }
    const bool is_right = fabricshm::crc32c(flight.from_peer.get(), fetch.bytes) == *checksum;
    return is_right ? Verdict::kWhole : Verdict::kLie;
}

void PeerSilo::deliver(Flight& flight, const Fetched& fetched) {
    Fetched mine = fetched;
    mine.tag = flight.fetch.tag;
    ended_.push_back(std::move(mine));
    flight.is_delivered = true;
}

// What the silo still writes into keeps its flight.
void PeerSilo::forget_where_over(std::uint64_t id) {
    const auto found = flights_.find(id);
    Flight& flight = found->second;
    if (!flight.is_delivered || (flight.is_silo_asked && !flight.silo_said)) return;
    FABRIC_CHECK(flight.question == 0);
    give_back(std::move(flight.from_peer));
    give_back(std::move(flight.from_silo));
    flights_.erase(found);
}

void PeerSilo::take_answer(const TransferAnswer& answer) {
    const auto question = questions_.find(answer.tag);
    FABRIC_CHECK(question != questions_.end());
    const std::uint64_t id = question->second;
    questions_.erase(question);
    Flight& flight = flights_.at(id);
    flight.question = 0;
    Peer& peer = peers_[flight.peer];
    const TimePoint now = Clock::now();
    switch (verdict_on(flight, answer)) {
        case Verdict::kWhole:
            peer.slow = 0;
            ++stats_.from_peers;
            std::memcpy(flight.fetch.into, flight.from_peer.get(), flight.fetch.bytes);
            deliver(flight, {0, FetchOutcome::kWhole, {Errc::kOk, 0, ""}, "", true});
            return forget_where_over(id);
        case Verdict::kMissing:
            peer.slow = 0;
            ++stats_.missing;
            break;
        case Verdict::kFailed:
            ++stats_.failures;
            peer.left_out_until = now + options_.failure_pause;
            break;
        case Verdict::kLie:
            ++stats_.lies;
            peer.left_out_until = now + options_.lie_pause;
            break;
    }
    if (flight.owners.empty() && flight.silo_said) {
        deliver(flight, *flight.silo_said);
        return forget_where_over(id);
    }
    ask_peer(id, flight);
}

void PeerSilo::take_fetched(const Fetched& fetched) {
    const auto found = flights_.find(fetched.tag);
    FABRIC_CHECK(found != flights_.end());
    Flight& flight = found->second;
    flight.silo_said = fetched;
    if (flight.is_delivered) return forget_where_over(fetched.tag);
    const bool is_whole = fetched.outcome == FetchOutcome::kWhole;
    // A peer that is under way may have what the silo has not.
    if (!is_whole && flight.question != 0) return;
    if (is_whole && flight.from_silo != nullptr) {
        std::memcpy(flight.fetch.into, flight.from_silo.get(), flight.fetch.bytes);
    }
    if (flight.question != 0) {
        transfers_->cancel(flight.question);
        questions_.erase(flight.question);
        flight.question = 0;
        Peer& peer = peers_[flight.peer];
        if (++peer.slow >= kSlowTimes) {
            peer.slow = 0;
            ++stats_.failures;
            peer.left_out_until = Clock::now() + options_.failure_pause;
        }
    }
    if (is_whole) ++stats_.from_silo;
    deliver(flight, fetched);
    forget_where_over(fetched.tag);
}

bool PeerSilo::is_any_asked(bool of_silo) const noexcept {
    if (!of_silo) return !questions_.empty();
    return std::any_of(flights_.begin(), flights_.end(), [](const auto& one) {
        return one.second.is_silo_asked && !one.second.silo_said;
    });
}

std::vector<Fetched> PeerSilo::wait(TimePoint deadline) {
    for (;;) {
        const TimePoint now = Clock::now();
        ask_silo_where_due(now);
        const TimePoint until =
            ended_.empty() ? std::min(deadline, next_due()) : fabricshm::kNoWait;
        const bool peers = is_any_asked(false);
        const bool silo = is_any_asked(true);
        if (peers) {
            const TimePoint turn = silo ? std::min(until, now + kTurn) : until;
            for (const TransferAnswer& answer : transfers_->wait(turn)) take_answer(answer);
        }
        if (silo) {
            const TimePoint turn = peers ? fabricshm::kNoWait : until;
            for (const Fetched& fetched : silo_->wait(turn)) take_fetched(fetched);
        }
        if (!ended_.empty() || (!peers && !silo) || Clock::now() >= deadline) {
            return std::exchange(ended_, {});
        }
    }
}

}  // namespace fabricd
