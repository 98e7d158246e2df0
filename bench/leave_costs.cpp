// How long does one leave of a group keep the control thread, by what rests in quarantine next to
// it? And the journal, when it is written again, and a snapshot for the admin API?
//
//   bench_leave_costs [REGIONS GROUPS]      (65536 800)
//
// A session with REGIONS regions dies as a member of the last of GROUPS groups. Then its peer
// leaves all groups, one after the other: none of these leaves changes anything for the regions but
// the last one, after which they are given back in pieces. The journal is a file.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fabricd/pool/compaction.hpp"
#include "fabricd/pool/registry.hpp"

namespace {

using namespace fabricd;
using namespace std::chrono_literals;
namespace proto = fabricshm::proto;

/// Of the registry's rules alone: there is no memory behind the arena.
struct NoMemory final : ArenaMemory {
    Result<void> add(ArenaId, const fabricshm::PoolPiece&) override { return {}; }
    void remove(ArenaId) noexcept override {}
    Result<void> format_links(ArenaId, const fabricshm::LinkImage&) override { return {}; }
    Result<void> format_group(ArenaId, std::uint64_t, const fabricshm::GroupBlockInfo&) override {
        return {};
    }
    void mark_dead(ArenaId, std::uint64_t, int, int) noexcept override {}
    Result<ArenaSpan> span(ArenaId, std::uint64_t, Bytes) override { return ArenaSpan{}; }
    Result<ArenaSpan> distant(ArenaId, std::uint64_t, Bytes) override { return ArenaSpan{}; }
};

struct NoWork final : PoolWork {
    void create(ArenaId arena, const std::string&, std::uint32_t, Bytes bytes) override {
        fabricshm::PoolPiece piece;
        piece.fd = fabricshm::Fd(::dup(0));
        piece.bytes = bytes;
        registry->arena_made(arena, std::move(piece));
    }
    void adopt(ArenaId, Bytes, Bytes, fabricshm::PresentedFiles) override {}
    void grow(ArenaId, Bytes, Bytes) override {}
    void shrink(ArenaId, Bytes) override {}
    void destroy(ArenaId) noexcept override {}
    // The daemon's worker drops them on its own thread.
    void forget(ArenaId, std::shared_ptr<void> records) noexcept override {
        forgotten = std::move(records);
    }
    std::shared_ptr<void> forgotten;
    Registry* registry = nullptr;
};

double ms_of(const std::function<void()>& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
        .count();
}

// The session that is to die is in the last one only.
std::vector<proto::Group> make_groups(Registry& registry, std::uint64_t arena,
                                      const SessionId (&sessions)[2], int count) {
    std::vector<proto::Group> made;
    for (int i = 0; i < count; ++i) {
        const int world = i == count - 1 ? 2 : 1;
        for (int rank = 0; rank < world; ++rank) {
            proto::Group join{};
            join.arena_id = arena;
            copy_name(join.name, "g" + std::to_string(i));
            join.rank = rank;
            join.world = world;
            (void)registry.join_group({sessions[1 - rank], 2}, join, TimePoint{1h});
        }
        made.push_back(std::get<proto::Group>(registry.take_answers().at(0).body));
    }
    return made;
}

// From the registry's state, and from its own file: what the control thread does of that, and what
// is done next to it.
void rewrite(Journal& journal, Registry& registry) {
    std::printf(
        "journal rewritten from the state in memory (at the start, after a full disk): %.2f ms\n",
        ms_of([&] {
            (void)journal.rewrite([&](JournalSink& sink) { return registry.write_journal(sink); });
        }));
    std::unique_ptr<Compaction> compaction;
    fabricshm::Fd old;
    const double begin = ms_of([&] { compaction = Compaction::begin(journal).value(); });
    const double beside = ms_of([&] { (void)compaction->write(); });
    const double end = ms_of([&] { old = compaction->finish(journal).value(); });
    std::printf("journal compacted: %.2f ms to begin, %.2f ms to end, %.2f ms on another thread\n",
                begin, end, beside + ms_of([&] { old.reset(); }));
}

// What `fabricctl health`, and what a list of all regions keeps from clients in one turn.
void look(const Registry& registry, TimePoint now) {
    SnapshotWalk totals{SnapshotParts{}};
    const double health = ms_of([&] { registry.look_on(totals, 1024, now); });
    SnapshotWalk walk{SnapshotParts::all()};
    double worst = 0;
    int pieces = 0;
    for (bool is_over = false; !is_over; ++pieces) {
        worst = std::max(worst, ms_of([&] { is_over = registry.look_on(walk, 1024, now); }));
    }
    std::printf("snapshot: whole %.2f ms; in %d pieces, worst %.2f ms; totals %.3f ms\n",
                ms_of([&] { (void)registry.snapshot(now); }), pieces, worst, health);
}

void close(Registry& registry, NoWork& work, SessionId session, ArenaId arena) {
    const double here = ms_of([&] { (void)registry.close_arena({session, 3}, arena); });
    const double beside = ms_of([&] { work.forgotten.reset(); });
    std::printf("close of the arena: %.2f ms, and %.2f ms on another thread\n", here, beside);
}

int run(int regions, int groups) {
    char folder[] = "/tmp/fabric-bench-XXXXXX";
    if (::mkdtemp(folder) == nullptr) return 1;
    const std::string path = std::string(folder) + "/journal";
    Journal journal(path);
    NoMemory memory;
    NoWork work;
    Limits limits;
    limits.default_arena_bytes = 64 * fabricshm::kGiB;
    Registry registry(limits, {&journal, &memory, &work});
    work.registry = &registry;
    const TimePoint now{1h};
    const auto begun =
        journal.rewrite([&](JournalSink& sink) { return registry.write_journal(sink); });
    if (!begun.ok()) return 1;
    SessionId sessions[2];
    for (int i = 0; i < 2; ++i) {
        sessions[i] = registry.open_session({100 + i, 1, 1}, "", {}, now).value();
        proto::ArenaOpen open{};
        copy_name(open.name, "job");
        (void)registry.open_arena({sessions[i], 1}, open);
    }
    const auto arena = std::get<proto::ArenaOpen>(registry.take_answers().at(0).body).arena_id;
    for (int i = 0; i < regions; ++i) {
        if (!registry.create_region(sessions[0], {arena, 0, 0, 0, 1}).ok()) return 1;
    }
    const auto made = make_groups(registry, arena, sessions, groups);
    double worst = ms_of([&] { registry.end_session(sessions[0], "bench"); });
    int turns = 1;
    for (; registry.next_deadline() <= now; ++turns) {
        worst = std::max(worst, ms_of([&] { (void)registry.expire(now); }));
    }
    std::printf("end of a session with %d regions: %d turns, worst %.2f ms\n", regions, turns,
                worst);
    rewrite(journal, registry);
    look(registry, now);
    worst = 0;
    for (int i = 0; i < groups - 1; ++i) {
        worst = std::max(
            worst, ms_of([&] { (void)registry.leave_group(sessions[1], made[std::size_t(i)]); }));
    }
    std::printf("leave next to %d quarantined regions and %d groups, worst: %.3f ms\n", regions,
                groups, worst);
    std::printf("leave that ends the quarantine: %.2f ms\n",
                ms_of([&] { (void)registry.leave_group(sessions[1], made.back()); }));
    worst = 0;
    turns = 0;
    while (registry.next_deadline() <= now) {
        worst = std::max(worst, ms_of([&] { (void)registry.expire(now); }));
        ++turns;
    }
    std::printf("giving back the rest: %d turns, worst %.2f ms\n", turns, worst);
    close(registry, work, sessions[1], ArenaId{arena});
    ::unlink(path.c_str());
    ::rmdir(folder);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const int regions = argc == 3 ? std::atoi(argv[1]) : 65536;
    const int groups = argc == 3 ? std::atoi(argv[2]) : 800;
    fabricshm::set_log_level(fabricshm::LogLevel::kWarning);
    return run(regions, groups);
}
