// Random stories: whatever happens, in whatever order and with restarts at any record, the accounts
// balance, no byte has two owners, and what a journal says can be taken over.

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>

#include "tests/support/registry_host.hpp"

using namespace test_support;

namespace {

class Story {
  public:
    // Stories of published arenas draw what they do besides elsewhere: the others stay as they are.
    explicit Story(unsigned seed, bool publishes = false)
        : host(limits_of(seed)), random_(seed), also_(seed), publishes_(publishes) {}

    void step() {
        if (publishes_ && also_() % 6 == 0) return publish_or_subscribe();
        if (publishes_ && also_() % 24 == 0) return end_process();
        switch (random_() % 16) {
            case 0:
                return begin_session();
            case 1:
                return end_session();
            case 2:
                return lose_connection();
            case 3:
            case 4:
                return open_or_close_arena();
            case 5:
            case 6:
                return make_region();
            case 7:
                return free_region();
            case 8:
            case 9:
                return join();
            case 10:
                return leave_or_shrink();
            case 11:
            case 12:
                return make_or_end_shard();
            case 13:
                return move_shard();
            case 14:
                return end_copy();
            default:
                return pass_time();
        }
    }

    /// As if killed after some prefix of the journal had reached the file.
    void restart() {
        auto& entries = host.journal.contents.entries;
        const std::size_t lost = random_() % 4;
        if (lost != 0) kept_.clear();  // it may lack that they were given up
        for (std::size_t i = 0; i < lost && entries.size() > 1; ++i) entries.pop_back();
        REQUIRE(records_after(compacted(host.journal.contents)).value() ==
                records_after(host.journal.contents).value());
        // The next daemon finds the one or the other.
        if (random_() % 2 == 0) host.journal.contents = compacted(host.journal.contents);
        host.restart(now_, 10s);
        REQUIRE(host.restored.ok());
        come_back();
    }

    void come_back() {
        sessions_.clear();
        for (const SessionView& view : host.registry->snapshot(now_).sessions) {
            const SessionId id{view.id};
            const Peer peer = peer_of(view.pid, view.host);
            if (random_() % 4 == 0) continue;  // it died meanwhile, and is found out by the grace
            // Its token or its process may be what was corrupt.
            const bool resumes = host.registry->resume_session(id, peer, kToken).ok();
            // The others have gone on without one that was given up.
            REQUIRE((resumes || is_corrupt_ || view.given_up));
            if (resumes) sessions_.push_back(id);
        }
        for (const ArenaView& view : host.registry->snapshot(now_).arenas) {
            if (random_() % 4 == 0) continue;
            host.registry->found_in_pool(ArenaId{view.id}, NotedWork::make(view.bytes));
        }
        groups_.clear();
    }

    /// A daemon that finds one to three records lost, doubled, exchanged or with another number in
    /// them. False when it does not believe them.
    bool restart_on_nonsense() {
        auto& entries = host.journal.contents.entries;
        for (std::size_t left = 1 + random_() % 3; left > 0 && entries.size() > 2; --left) {
            corrupt(entries);
        }
        host.restart(now_, 10s);
        if (!host.restored.ok()) return false;
        is_corrupt_ = true;
        kept_.clear();
        come_back();
        return true;
    }

    void check() {
        // A record that is lost can leave a quarantine without a reason, which does no harm.
        const std::vector<std::string> problems =
            is_corrupt_ ? host.registry->contradictions() : host.registry->problems();
        for (const std::string& problem : problems) MESSAGE(problem);
        REQUIRE(problems.empty());
        // Whatever the others do: a silent host's processes may write to what they held.
        if (is_corrupt_) return;
        std::set<std::uint64_t> kept;
        for (const SessionView& view : host.registry->snapshot(now_).sessions) {
            if (view.given_up) kept.insert(view.id);
        }
        for (const std::uint64_t id : kept_)
            REQUIRE((kept.count(id) != 0 || ended_.count(id) != 0));
        kept_ = std::move(kept);
    }

    /// Everybody gone: nothing may be left.
    void finish() {
        while (!host.copies.jobs.empty()) end_copy();
        kept_.clear();
        for (const SessionView& view : host.registry->snapshot(now_).sessions) {
            host.registry->end_session(SessionId{view.id}, "end of story");
        }
        end_process();
        do host.registry->expire(now_ + 1h);
        while (host.registry->next_deadline() == TimePoint::min());
        check();
        const Snapshot all = host.registry->snapshot(now_);
        REQUIRE(all.sessions.empty());
        REQUIRE(all.arenas.empty());
    }

    RegistryHost host;

  private:
    static constexpr const char* kArenas[] = {"a", "b"};

    // In every second story sessions end one region per turn.
    static Limits limits_of(unsigned seed) {
        Limits limits;
        if (seed % 2 == 0) limits.freed_at_once = 1;
        return limits;
    }

    void corrupt(std::vector<JournalEntry>& entries) {
        // Not the first: that one says which version it is.
        const std::size_t at = 1 + random_() % (entries.size() - 1);
        const std::size_t other = 1 + random_() % (entries.size() - 1);
        switch (random_() % 8) {
            case 0:
                entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(at));
                return;
            case 1: {
                const JournalEntry twice = entries[other];
                entries.insert(entries.begin() + static_cast<std::ptrdiff_t>(at), twice);
                return;
            }
            case 2:
                std::swap(entries[at], entries[other]);
                return;
            default:
                break;
        }
        // A number of it becomes a small one, a huge one, its neighbour or one of another record.
        auto& payload = entries[at].payload;
        const auto& source = entries[other].payload;
        if (payload.size() < 8 || source.size() < 8) return;
        std::byte* const word = payload.data() + random_() % (payload.size() / 8) * 8;
        std::uint64_t number = 0;
        std::memcpy(&number, word, 8);
        const unsigned choice = random_() % 5;
        if (choice == 0) number = random_() % 9;
        if (choice == 1) number = ~std::uint64_t{0} >> (random_() % 3);
        if (choice == 2) number += random_() % 2 == 0 ? 1 : ~std::uint64_t{0};
        if (choice == 3) number ^= std::uint64_t{1} << (random_() % 64);
        if (choice == 4)
            std::memcpy(&number, source.data() + random_() % (source.size() / 8) * 8, 8);
        std::memcpy(word, &number, 8);
    }

    SessionId anybody() { return sessions_[random_() % sessions_.size()]; }
    ArenaId any_arena() {
        const auto arenas = host.registry->snapshot(now_).arenas;
        return arenas.empty() ? ArenaId{1} : ArenaId{arenas[random_() % arenas.size()].id};
    }
    // One that may not is refused; one that may gets a page, whose number the header has at once.
    void publish_or_subscribe() {
        if (sessions_.empty()) return;
        const SessionId who = anybody();
        const auto remote = host.registry->remote_sessions();
        const bool is_remote = std::any_of(remote.begin(), remote.end(),
                                           [&](const RemoteSession& one) { return one.id == who; });
        if (is_remote) return;  // the server refuses those
        const bool publishes = also_() % 3 == 0;
        const ArenaId id = host.arena(who, "public", publishes ? 8 * 4096 : 0,
                                      publishes ? proto::kArenaPublish : proto::kArenaSubscribe);
        if (id == ArenaId::kNone) return;
        if (publishes) return void(host.region(who, id, 8 * 4096));
        proto::PinPageRef ref{};
        ref.arena_id = raw(id);
        const auto page = host.registry->pins.page(who, ref);
        if (!page.ok()) return;
        const auto& header = *reinterpret_cast<const fabricshm::PublishedHeader*>(
            (*host.memory.contents)[id][0].bytes);
        REQUIRE(header.newest.load() >= page->page.number);
    }
    // All that were given up while they were alive are found dead.
    void end_process() {
        for (const auto& [session, pid] : host.registry->pins.in_use()) {
            host.registry->pins.process_ended(session);
        }
        REQUIRE(host.registry->pins.in_use().empty());
    }
    void begin_session() {
        const char* place = random_() % 3 == 0 ? "other" : "";
        const Peer peer = peer_of(static_cast<std::int32_t>(100 + sessions_.size()), place);
        const auto made = host.registry->open_session(peer, "s", kToken, now_);
        if (made.ok()) sessions_.push_back(made.value());
    }
    void end_session() {
        if (sessions_.empty()) return;
        const SessionId who = anybody();
        const auto remote = host.registry->remote_sessions();
        const bool is_remote = std::any_of(remote.begin(), remote.end(),
                                           [&](const RemoteSession& one) { return one.id == who; });
        const bool gives_up = is_remote && random_() % 2 == 0;
        host.registry->end_session(who, "story",
                                   gives_up ? SessionEnd::kGivenUp : SessionEnd::kEnded);
        if (!gives_up) ended_.insert(raw(who));
        std::erase(sessions_, who);
        // It is proved at last that one of those writes no more.
        for (const RemoteSession& one : host.registry->remote_sessions()) {
            if (!one.given_up || random_() % 4 != 0) continue;
            ended_.insert(raw(one.id));
            host.registry->end_session(one.id, "fenced");
        }
    }
    static Peer peer_of(std::int32_t pid, const std::string& place) {
        return {pid, 1000, 1000, place, place.empty() ? 0u : 77u, 5};
    }
    void lose_connection() {
        if (!sessions_.empty()) host.registry->connection_lost(anybody(), now_);
    }
    void open_or_close_arena() {
        if (sessions_.empty()) return;
        const SessionId who = anybody();
        if (random_() % 4 == 0) {
            [[maybe_unused]] const auto closed =
                host.registry->close_arena({who, 900}, any_arena());
        } else {
            host.arena(who, kArenas[random_() % 2], 4096 * 4096);
        }
    }
    void make_region() {
        if (sessions_.empty()) return;
        const std::string name = "t" + std::to_string(random_() % 5);
        if (random_() % 3 == 0) {
            [[maybe_unused]] const auto made = host.tensor(anybody(), any_arena(), name.c_str());
        } else {
            [[maybe_unused]] const auto made =
                host.region(anybody(), any_arena(), random_() % 100000);
        }
    }
    void free_region() {
        const auto regions = host.registry->snapshot(now_).regions;
        if (regions.empty()) return;
        const RegionView& view = regions[random_() % regions.size()];
        [[maybe_unused]] const auto freed = host.registry->free_region(
            SessionId{view.owner_session}, ArenaId{view.arena_id}, RegionId{view.id});
    }
    static proto::Shard shard_body(ArenaId arena, const std::string& name) {
        proto::Shard body{};
        body.header.arena_id = raw(arena);
        copy_name(body.name, name);
        body.dtype = 5;
        body.ndim = 1;
        body.shape[0] = 20000;
        std::strcpy(body.target, "here");
        return body;
    }
    void make_or_end_shard() {
        if (sessions_.empty()) return;
        const SessionId who = anybody();
        const auto shards = host.registry->snapshot(now_).shards;
        const auto body = shard_body(any_arena(), "s" + std::to_string(random_() % 3));
        const unsigned choice = random_() % 4;
        if (choice < 2) {
            [[maybe_unused]] const auto made = host.registry->create_shard(who, body);
        } else if (choice == 2) {
            [[maybe_unused]] const auto asked =
                host.registry->open_shard({who, ++host.requests}, body, now_);
        } else if (!shards.empty()) {
            const ShardView& view = shards[random_() % shards.size()];
            proto::Shard named = body;
            named.header = {view.arena_id, view.id, 0, 0, 0};
            const SessionId owner{view.owner_session};
            [[maybe_unused]] const auto done = random_() % 2 == 0
                                                   ? host.registry->free_shard(owner, named)
                                                   : host.registry->close_shard(who, named);
        }
    }
    void move_shard() {
        const auto shards = host.registry->snapshot(now_).shards;
        if (shards.empty()) return;
        const char* const targets[] = {"here", "arena:a", "arena:b"};
        [[maybe_unused]] const auto begun = host.registry->move_shard(
            {shards[random_() % shards.size()].name, targets[random_() % 3], 0}, nullptr);
    }
    // A copy that went well, one whose shard was written meanwhile, or one that was broken off.
    void end_copy() {
        if (host.copies.jobs.empty()) return;
        const CopyJob job = host.copies.jobs.front();
        host.copies.jobs.erase(host.copies.jobs.begin());
        auto& header = *reinterpret_cast<fabricshm::ShardHeader*>(job.header.data);
        const fabricshm::ShardWord seen = fabricshm::word_of(header);
        if (random_() % 4 == 0) header.word.store(seen.published().bits);
        if (random_() % 8 == 0) {
            host.registry->shard_copied(job.shard, Error{Errc::kClosed, 0, "story"});
        } else {
            host.registry->shard_copied(job.shard, seen);
        }
    }
    void join() {
        if (sessions_.empty()) return;
        const char* name = random_() % 2 == 0 ? "g" : "h";
        host.join(anybody(), any_arena(), name, -1, 1 + static_cast<int>(random_() % 3));
        collect();
    }
    void leave_or_shrink() {
        if (groups_.empty()) return;
        const auto& [who, group] = groups_[random_() % groups_.size()];
        if (random_() % 2 == 0) {
            [[maybe_unused]] const auto left = host.registry->leave_group(who, group);
        } else {
            host.shrink(who, group);
            collect();
        }
    }
    void pass_time() {
        now_ += std::chrono::milliseconds(random_() % 4000);
        for (const SessionId ended : host.registry->expire(now_)) std::erase(sessions_, ended);
        collect();
        // The connection of one that was given up has gone with it.
        for (const RemoteSession& one : host.registry->remote_sessions()) {
            if (one.given_up) std::erase(sessions_, one.id);
        }
    }
    void collect() {
        for (const Answer& answer : host.registry->take_answers()) {
            const auto* group = std::get_if<proto::Group>(&answer.body);
            if (group != nullptr) groups_.emplace_back(answer.to.session, *group);
        }
    }

    std::mt19937 random_;
    std::mt19937 also_;
    bool publishes_;
    bool is_corrupt_ = false;
    TimePoint now_ = kNow;
    std::vector<SessionId> sessions_;
    std::vector<std::pair<SessionId, proto::Group>> groups_;
    std::set<std::uint64_t>
        kept_;  // sessions that were given up, until they are known to have ended
    std::set<std::uint64_t> ended_;
};

// Whether the story's daemon takes over a journal with nonsense in it; then all goes on.
bool believes_nonsense(unsigned seed, bool publishes = false) {
    Story story(seed, publishes);
    for (int step = 0; step < 60; ++step) story.step();
    if (!story.restart_on_nonsense()) return false;
    story.check();
    for (int step = 0; step < 30; ++step) story.step();
    story.check();
    story.finish();
    return true;
}

}  // namespace

TEST_SUITE("pool.registry_random") {
    TEST_CASE("forty random stories keep sound accounts, and leave nothing at their end") {
        for (unsigned seed = 0; seed < 40; ++seed) {
            CAPTURE(seed);
            Story story(seed);
            for (int step = 0; step < 400; ++step) {
                story.step();
                if (step % 8 == 0) story.check();
            }
            story.finish();
        }
    }

    TEST_CASE(
        "twenty random stories with restarts at any record, compacted or not, keep them too") {
        for (unsigned seed = 100; seed < 120; ++seed) {
            CAPTURE(seed);
            Story story(seed);
            for (int step = 0; step < 300; ++step) {
                story.step();
                if (step % 25 == 24) {
                    story.restart();
                    story.check();
                }
            }
            story.finish();
        }
    }

    // Their checksums are right, what they say contradicts itself: some of it can't be
    // distinguished from what a daemon might have written, and then the state has to be sound all
    // the same.
    TEST_CASE("nonsense in a journal is refused or harmless, and never ends the daemon") {
        int believed = 0;
        int refused = 0;
        for (unsigned seed = 1000; seed < 1400; ++seed) {
            CAPTURE(seed);
            (believes_nonsense(seed) ? believed : refused) += 1;
        }
        CHECK(believed > 50);
        CHECK(refused > 50);
    }

    TEST_CASE("stories of arenas that are published, too, keep them and leave nothing") {
        for (unsigned seed = 0; seed < 40; ++seed) {
            CAPTURE(seed);
            Story story(seed, true);
            for (int step = 0; step < 300; ++step) {
                story.step();
                if (step % 8 == 0) story.check();
                if (seed % 2 == 0 || step % 25 != 24) continue;
                story.restart();
                story.check();
            }
            story.finish();
        }
        for (unsigned seed = 2000; seed < 2300; ++seed) {
            CAPTURE(seed);
            (void)believes_nonsense(seed, true);
        }
    }

    TEST_CASE("stories that once left an arena which no session had open leave nothing") {
        for (const unsigned seed : {23208U}) {
            CAPTURE(seed);
            CHECK(believes_nonsense(seed));
        }
    }
}
