// The page that a session writes about itself, through everything that the daemon makes of it: the
// sample, rates, paths, windows, metrics and the control loop. And the page of directives, as a
// session reads it.

#include <cmath>
#include <memory>

#include "fabricd/control/journal/window.hpp"
#include "fabricd/control/loop/loop.hpp"
#include "fabricd/telemetry/path_book.hpp"
#include "fabricd/telemetry/rates.hpp"
#include "fabricd/telemetry/sample_metrics.hpp"
#include "fabricd/telemetry/session_pages.hpp"
#include "libfabricshm/os/mapping.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/support/decision_values.hpp"

using namespace fabricd;
using fabricshm::Mapping;
using fabricshm::PageRead;

namespace {

constexpr int kSessions = 2;
constexpr std::int64_t kStaleNs = 1'000'000'000;

template <typename T>
void scribble(std::byte* page, std::size_t bytes, fuzz::Input& input, T limit) {
    for (T left = 0; left < limit; ++left) {
        const std::size_t at = input.number<std::uint16_t>() % (bytes / 8);
        const auto value = input.number<std::uint64_t>();
        std::memcpy(page + 8 * at, &value, sizeof value);
    }
}

bool is_number_or_unknown(double value) {
    return std::isnan(value) || std::isfinite(value);
}

void require_tame(const SessionSample& session) {
    const fabricshm::TelemetryImage& image = session.image;
    const bool in_group = image.group_id != 0;
    FUZZ_REQUIRE(in_group ? image.rank >= 0 && image.rank < image.world
                          : image.rank == -1 && image.world == 0);
    FUZZ_REQUIRE(image.world <= fabricshm::kPeersMax);
    for (const std::int64_t time :
         {image.written_ns, image.step_ns, image.compute_ns, image.wait_ns, image.comm_ns}) {
        FUZZ_REQUIRE(time >= 0);
    }
    for (const double norm : {image.loss, image.gradient_norm, image.mean_gradient_norm}) {
        FUZZ_REQUIRE(is_number_or_unknown(norm));
    }
    for (const double rate :
         {session.rates.steps_per_s, session.rates.samples_per_s, session.rates.step_s,
          session.rates.compute_share, session.rates.wait_share, session.rates.comm_share}) {
        FUZZ_REQUIRE(std::isfinite(rate) && rate >= 0);
    }
}

void require_window(const Window& window) {
    for (const JobWindow& job : window.jobs) {
        for (const RankWindow& rank : job.ranks) {
            for (const double value :
                 {rank.steps, rank.samples, rank.step_s, rank.compute_s, rank.wait_s, rank.comm_s,
                  rank.bytes, rank.memory_used, rank.memory_denied}) {
                FUZZ_REQUIRE(std::isfinite(value) && value >= 0);
            }
        }
    }
}

void require_directives(const TickResult& result) {
    for (const Decision& decision : result.decisions) {
        for (const double value : after_of(decision))
            FUZZ_REQUIRE(std::isfinite(value) && value >= 0);
    }
}

// What a rank of a job of two would write after so many steps.
void write_honest(std::byte* page, int rank, int round) {
    auto image = fabricshm::empty_telemetry();
    const std::int64_t rounds = round + 1;
    image.written_ns = rounds * kStaleNs;
    image.arena_id = 1;
    image.group_id = 2;
    image.rank = rank;
    image.world = kSessions;
    image.steps = static_cast<std::uint64_t>(10 * rounds);
    image.samples = static_cast<std::uint64_t>(320 * rounds);
    image.step_ns = rounds * 1'000'000'000;
    image.compute_ns = rounds * (rank == 0 ? 900'000'000 : 300'000'000);
    image.batch = 32;
    image.shards[0] = {1, 5, static_cast<std::uint64_t>(rounds), 4096};
    image.peers.resize(kSessions);
    image.peers[0] = {4096, 4096, 100 * rounds, static_cast<std::uint64_t>(rounds), 50 * rounds};
    fabricshm::write_telemetry_head(page, image);
    fabricshm::write_telemetry_peers(page, image);
    fabricshm::write_telemetry_shards(page, image);
    fabricshm::WaitRecord waits[fabricshm::kWaitsShown] = {};
    waits[0].arena_id = 1;
    waits[0].group_id = 2;
    waits[0].rank = rank;
    waits[0].world = kSessions;
    fabricshm::set_kind(waits[0], "allreduce");
    add_late(waits[0], 1 - rank);
    fabricshm::write_telemetry_waits(page, waits);
}

void require_wait(const fabricshm::WaitRecord& wait) {
    FUZZ_REQUIRE(wait.group_id != 0 && wait.arena_id != 0 && wait.began_ns >= 0);
    FUZZ_REQUIRE(wait.world >= 2 && wait.world <= fabricshm::kPeersMax);
    FUZZ_REQUIRE(wait.rank >= 0 && wait.rank < wait.world && !is_late(wait, wait.rank));
    int late = 0;
    for (int other = 0; other < fabricshm::kPeersMax; ++other) {
        FUZZ_REQUIRE(other < wait.world || !is_late(wait, other));
        late += is_late(wait, other) ? 1 : 0;
    }
    FUZZ_REQUIRE(late > 0 && wait.kind[0] != '\0' && wait.kind[sizeof wait.kind - 1] == '\0');
}

class Daemon {
  public:
    Daemon() {
        ControlConfig config;
        config.mode = "on";
        config.actions = "shares,units,sync,drain";
        config.imbalance_windows = 1;
        loop_ = std::make_unique<Loop>(config);
        for (int i = 0; i < kSessions; ++i) {
            const auto id = static_cast<std::uint64_t>(i + 1);
            const auto page = pages_.open_telemetry({id, 100 + i, 0, "job", "gpu0"}).value();
            clients_.push_back(Mapping::map(page, 0, fabricshm::kTelemetryFileBytes, {}).value());
        }
    }
    std::byte* page_of(int session) { return clients_[static_cast<std::size_t>(session)].data(); }

    void look(int round) {
        ++sample_.number;
        sample_.taken_ns = (round + 1) * kStaleNs;
        pages_.sample(sample_.sessions, sample_.taken_ns, kStaleNs, static_cast<unsigned>(round),
                      1);
        for (SessionSample& session : sample_.sessions) {
            // As the daemon's registry would: what is claimed is true.
            session.confirmed = {session.image.arena_id, session.image.group_id,
                                 session.image.rank};
            session.member = session.image.group_id != 0;
            update_rates(session);
            require_tame(session);
            paths_.look(session);
        }
        for (const auto& wait : pages_.waits()) require_wait(wait.record);
        sample_.paths = paths_.paths();
        for (const PathSample& path : sample_.paths) {
            FUZZ_REQUIRE(path.bytes_per_second >= 0 && path.latency_ns >= 0);
        }
        MetricsText text;
        add_sample_metrics(sample_, text);
        FUZZ_REQUIRE(text.text().find("Inf") == std::string::npos);
        const Window window = windows_.next(sample_);
        require_window(window);
        require_directives(loop_->tick(window));
    }

  private:
    SessionPages pages_;
    std::vector<Mapping> clients_;
    std::unique_ptr<Loop> loop_;
    Sample sample_;
    PathBook paths_;
    WindowMaker windows_;
};

void read_as_session(fuzz::Input& input) {
    alignas(64) static std::byte page[fabricshm::kPageFileBytes];
    std::memset(page, 0, sizeof page);
    fabricshm::format_directives(page);
    fabricshm::DirectiveImage image{};
    image.serial = 1;
    image.world = 2;
    image.batch_share[0] = image.batch_share[1] = 0.5;
    fabricshm::write_directives(page, image);
    fabricshm::write_quotas(page, {1, {100, 50, 10, 5}, {100, 100, 0, 0}});
    scribble(page, sizeof page, input, input.below(8));
    if (!fabricshm::check_directive_page(page).ok()) return;
    std::uint64_t seen = 0;
    if (fabricshm::read_directives(page, image, seen) == PageRead::kFresh) {
        FUZZ_REQUIRE(fabricshm::check_directives(image).ok());
    }
    fabricshm::QuotaImage quota{};
    seen = 0;
    if (fabricshm::read_quotas(page, quota, seen) == PageRead::kFresh) {
        FUZZ_REQUIRE(quota.device.target_bytes <= quota.device.limit_bytes);
        FUZZ_REQUIRE(quota.user.target_bytes <= quota.user.limit_bytes);
    }
}

void run(fuzz::Data data) {
    fuzz::Input input(data);
    read_as_session(input);
    Daemon daemon;
    const int rounds = static_cast<int>(1 + input.below(8));
    for (int round = 0; round < rounds; ++round) {
        for (int session = 0; session < kSessions; ++session) {
            const unsigned honest = input.below(4);
            if (honest != 3) write_honest(daemon.page_of(session), session, round);
            if (honest != 0) {
                scribble(daemon.page_of(session), sizeof(fabricshm::TelemetryPage), input,
                         input.below(24));
            }
        }
        daemon.look(round);
    }
}

std::vector<fuzz::Buffer> seeds() {
    std::vector<fuzz::Buffer> all;
    for (const int lies : {0, 1, 2}) {
        fuzz::Buffer input{std::byte{0}, std::byte{7}};
        for (int turn = 0; turn < 16; ++turn) {
            input.push_back(static_cast<std::byte>(lies == 0 ? 0 : 1 + turn % lies));
            if (lies == 0) continue;
            input.push_back(std::byte{2});
            for (const std::uint16_t word : {4 + turn, 3}) {
                fuzz::append(input, word);
                fuzz::append(input, std::uint64_t{1} << (4 * turn));
            }
        }
        all.push_back(std::move(input));
    }
    return all;
}

const fuzz::Registered kTarget({"telemetry", run, seeds});

}  // namespace
