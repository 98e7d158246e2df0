// PeerSilo: a silo whose chunks are asked of the hosts that keep copies first.

#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabricd/data/peers/chunk_server.hpp"
#include "fabricd/data/silo/http_transfers.hpp"

namespace fabricd {

struct PeerSiloOptions {
    std::string at;  // where the silo appears: "/images"; the same on all hosts
    std::vector<PeerMember> members;
    std::string self;  // this host's address among them
    unsigned copies = 2;
    PeerTrust trust;  // set: by TLS
    // How long the peers have before the silo is asked, too.
    std::chrono::milliseconds head_start{50};
    std::chrono::milliseconds peer_time{5000};  // of one question
    // A peer is not asked for so long: after a wrong answer, and after none.
    std::chrono::milliseconds lie_pause{60'000};
    std::chrono::milliseconds failure_pause{5000};
};

/// What is a whole chunk is asked of its owners, one after the other; after the head start the silo
/// is asked, too, and what comes first counts. An answer counts only if its version and CRC-32C are
/// right. A silo that fails waits for the peer that is under way. Everything else is the silo's.
/// One thread at a time, as any silo.
class PeerSilo : public Silo {
  public:
    /// kInvalid: a member that is no "host:port".
    static Result<std::unique_ptr<PeerSilo>> open(const PeerSiloOptions& options,
                                                  std::unique_ptr<Silo> silo);
    ~PeerSilo() override;

    Result<SiloPage> list(const std::string& folder, const std::string& after, std::size_t most,
                          TimePoint deadline) override;
    Result<FileFacts> look(const std::string& path, TimePoint deadline) override;
    bool has_room() const noexcept override;
    void start(const Fetch& fetch) override;
    std::vector<Fetched> wait(TimePoint deadline) override;

    struct Stats {
        std::uint64_t from_peers = 0;  // chunks
        std::uint64_t from_silo = 0;
        std::uint64_t missing = 0;   // a peer did not have it
        std::uint64_t failures = 0;  // no answer, or none in time
        std::uint64_t lies = 0;      // wrong answers
    };
    const Stats& stats() const noexcept { return stats_; }

  private:
    struct Free {
        void operator()(std::byte* bytes) const noexcept;
    };
    using Buffer = std::unique_ptr<std::byte, Free>;  // of one chunk

    struct Peer {
        TimePoint left_out_until{};
        unsigned slow = 0;  // times in a row that the silo was faster
    };
    struct Flight {
        Fetch fetch;
        std::vector<std::size_t> owners;  // not asked yet, the best one last
        std::size_t peer = 0;             // that is asked
        std::uint64_t question = 0;       // its tag; 0: none is under way
        Buffer from_peer;
        TimePoint silo_at{};  // when it is asked, too
        bool is_silo_asked = false;
        Buffer from_silo;                  // null: it goes to its place at once
        std::optional<Fetched> silo_said;  // a failure
        bool is_delivered = false;
    };
    enum class Verdict { kWhole, kMissing, kFailed, kLie };

    PeerSilo(PeerSiloOptions options, std::unique_ptr<Silo> silo,
             std::unique_ptr<HttpTransfers> transfers);

    Buffer take_buffer();
    void give_back(Buffer buffer);
    std::vector<std::size_t> owners_to_ask(const Fetch& fetch) const;
    void ask_peer(std::uint64_t id, Flight& flight);
    void ask_silo(std::uint64_t id, Flight& flight);
    void ask_silo_where_due(TimePoint now);
    TimePoint next_due() const noexcept;
    Verdict verdict_on(const Flight& flight, const TransferAnswer& answer) const;
    void take_answer(const TransferAnswer& answer);
    void take_fetched(const Fetched& fetched);
    void deliver(Flight& flight, const Fetched& fetched);
    void forget_where_over(std::uint64_t id);
    bool is_any_asked(bool of_silo) const noexcept;

    PeerSiloOptions options_;
    std::unique_ptr<Silo> silo_;
    std::unique_ptr<HttpTransfers> transfers_;
    std::vector<Peer> peers_;                           // as members
    std::map<std::uint64_t, Flight> flights_;           // by number, which the silo has as its tag
    std::map<std::uint64_t, std::uint64_t> questions_;  // tag: flight
    std::vector<Buffer> buffers_;                       // that are free
    std::uint64_t last_ = 0;
    std::vector<Fetched> ended_;
    Stats stats_;
};

}  // namespace fabricd
