// fabricd is killed at each of its fault points, at each passage, while sessions do everything
// there is to do. A successor takes over. Whatever a session had been granted is still its own, no
// bytes have two owners, and when all sessions are gone nothing is left.

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>

#include "tests/support/children.hpp"
#include "tests/support/daemon_thread.hpp"
#include "tests/support/fabricd_process.hpp"
#include "tests/support/wire_client.hpp"

using namespace test_support;
using namespace std::chrono_literals;
using fabricd::Snapshot;
using fabricshm::Errc;
using fabricshm::kMiB;
using fabricshm::Result;
namespace proto = fabricshm::proto;

namespace {

/// One session, and what it has been granted.
struct Party {
    WireClient client;
    fabricshm::Fd arena_fd;
    std::optional<proto::ArenaOpen> arena;
    std::map<std::uint64_t, proto::Region> regions;  // by id; granted and not given back
    std::vector<proto::Group> groups;
};

/// A session of a process of its own, which is killed in the middle of the story.
class Victim {
  public:
    explicit Victim(const std::string& socket)
        : child_([this, socket]() -> int {
              if (!go_.wait()) return 1;
              auto client = WireClient::attach(socket, "victim");
              if (!client.ok()) return 2;
              const auto opened = client->open_arena("job", 0);
              if (!opened.ok()) return 3;
              if (!client->create_region(opened->arena_id, 4096).ok()) return 4;
              const auto joined = client->join(opened->arena_id, "trio", 2, 3);
              if (!joined.ok()) return 5;
              Gate forever;
              forever.wait();
              return 0;
          }) {}
    void go() { go_.open(); }
    void kill() { child_.kill(); }

  private:
    Gate go_;
    Child child_;
};

class Story {
  public:
    explicit Story(const std::string& folder)
        : socket_(FabricdProcess::socket_in(folder)), victim_(socket_) {}

    /// Plays until the end or until the daemon is gone; true at the end.
    bool play(FabricdProcess& daemon) { return play_to_the_middle(daemon) && part(); }

    /// The same, and nothing has been given up yet.
    bool play_to_the_middle(FabricdProcess& daemon) { return attach() && share() && group(daemon); }

    /// True when the daemon ended before it had granted and reclaimed so many tensors.
    bool come_and_go(FabricdProcess& daemon, int most) {
        Party& alice = parties_[0];
        for (int i = 0; i < most; ++i) {
            const auto made = alice.client.create_tensor(alice.arena->arena_id, "fleeting", 100);
            if (!made.ok() || !alice.client.free_region(made->region).ok()) break;
        }
        const auto deadline = fabricshm::Clock::now() + std::chrono::seconds(60);
        while (!daemon.ended() && fabricshm::Clock::now() < deadline) ::usleep(1000);
        return daemon.ended();
    }

    /// Every session that was attached comes back and presents its arena.
    void come_back() {
        for (auto& party : parties_) {
            auto fresh = WireClient::connect(socket_);
            REQUIRE(fresh.ok());
            REQUIRE(fresh->hello_again(party.client).ok());
            party.client = std::move(fresh).value();
            if (!party.arena) continue;
            REQUIRE(party.client.adopt(party.arena->arena_id, party.arena_fd.get()).ok());
        }
    }

    /// The same, but the daemon may die meanwhile.
    void try_to_come_back() {
        for (auto& party : parties_) {
            const bool first = &party == &parties_[0];
            auto fresh = WireClient::connect(socket_, first ? WireClient::kTimeout : 0s);
            if (!fresh.ok() || !fresh->hello_again(party.client).ok()) return;
            party.client = std::move(fresh).value();
            if (!party.arena) continue;
            if (!party.client.adopt(party.arena->arena_id, party.arena_fd.get()).ok()) return;
        }
    }

    void check_promises(const Snapshot& all) {
        for (auto& party : parties_) {
            for (const auto& [id, region] : party.regions) {
                const auto seen = party.client.open_region(region);
                REQUIRE(seen.ok());
                REQUIRE(seen->offset == region.offset);
                REQUIRE(seen->generation == region.generation);
            }
        }
        std::vector<std::pair<std::uint64_t, std::uint64_t>> pieces;
        for (const auto& view : all.regions) pieces.emplace_back(view.offset, view.bytes);
        for (const auto& party : parties_) {
            for (const auto& group : party.groups) {
                if (group.rank == 0) pieces.emplace_back(group.block_offset, group.block_bytes);
            }
        }
        std::sort(pieces.begin(), pieces.end());
        for (std::size_t i = 1; i < pieces.size(); ++i) {
            REQUIRE(pieces[i - 1].first + pieces[i - 1].second <= pieces[i].first);
        }
    }

    void end() {
        victim_.kill();
        for (auto& party : parties_) party.client.bye();
        parties_.clear();
    }

  private:
    bool attach() {
        for (const char* label : {"alice", "bob"}) {
            // Only the first has to wait for the daemon to be there; later it may be dead.
            const bool first = parties_.empty();
            auto client = WireClient::attach(socket_, label, first ? WireClient::kTimeout : 0s);
            if (!client.ok()) return false;
            parties_.emplace_back();
            Party& party = parties_.back();
            party.client = std::move(client).value();
            const auto arena = party.client.open_arena("job", 32 * kMiB);
            if (!arena.ok()) return false;
            party.arena = arena.value();
            party.arena_fd = std::move(party.client.descriptor);
        }
        return true;
    }

    bool share() {
        for (auto& party : parties_) {
            for (int i = 0; i < 2; ++i) {
                const auto region = party.client.create_region(party.arena->arena_id, 5000);
                if (!region.ok()) return false;
                party.regions[region->region_id] = region.value();
            }
        }
        Party& alice = parties_[0];
        const auto tensor = alice.client.create_tensor(alice.arena->arena_id, "w", 100);
        if (!tensor.ok()) return false;
        alice.regions[tensor->region.region_id] = tensor->region;
        // Nothing is known about a region from the moment it is given back until the answer.
        const proto::Region spare = alice.regions.begin()->second;
        alice.regions.erase(spare.region_id);
        return alice.client.free_region(spare).ok();
    }

    bool group(FabricdProcess& daemon) {
        victim_.go();
        Party& alice = parties_[0];
        Party& bob = parties_[1];
        const auto arena = alice.arena->arena_id;
        if (!bob.client.send(join_request(arena, "trio", 1, 3, 20000)).ok()) return false;
        const auto first = alice.client.join(arena, "trio", 0, 3, 20000);
        if (!first.ok()) return false;
        alice.groups.push_back(first.value());
        const auto second = bob.client.receive();
        if (!second.ok() || second->header.status != 0) return false;
        victim_.kill();
        // Until the death has been noticed shrinking waits for the victim too: it is deferred.
        proto::Message shrink = join_request(arena, "trio", 1, 3, 20000);
        shrink.header.type = static_cast<std::uint16_t>(proto::Type::kGroupShrink);
        shrink.group.group_id = first->group_id;
        if (!bob.client.send(shrink).ok()) return false;
        const auto smaller = alice.client.shrink(first->group_id, 20000);
        if (!smaller.ok() || daemon.ended()) return false;
        alice.groups.push_back(smaller.value());
        return bob.client.receive().ok();
    }

    bool part() {
        Party& alice = parties_[0];
        while (!alice.groups.empty()) {
            const auto group = alice.groups.back().group_id;
            alice.groups.pop_back();
            if (!alice.client.leave(group).ok()) return false;
        }
        for (std::size_t i = 2; i-- > 0;) {
            Party& party = parties_[i];
            const auto arena = party.arena->arena_id;
            party.arena.reset();
            party.regions.clear();
            if (!party.client.close_arena(arena).ok()) return false;
        }
        return true;
    }

    std::string socket_;
    Victim victim_;
    std::vector<Party> parties_;
};

fabricd::DaemonOptions successor_options(const std::string& folder) {
    fabricd::DaemonOptions options;
    options.socket_path = FabricdProcess::socket_in(folder);
    options.state_dir = FabricdProcess::state_in(folder);
    options.adopt_grace = 5s;  // for sessions whose hello or arena was never answered
    return options;
}

/// A successor in this process, so that its records can be inspected.
void take_over(Story& story, const std::string& folder) {
    DaemonThread host(successor_options(folder));
    REQUIRE(host.daemon);
    story.come_back();
    story.check_promises(host.daemon->snapshot());
    story.end();
    REQUIRE(host.eventually([](const Snapshot& all) {
        return all.sessions.empty() && all.arenas.empty() && all.regions.empty() &&
               all.groups.empty() && all.pool.used_bytes == 0;
    }));
}

/// False when the story ended before the fault came: there are no more passages.
bool killed_at(const std::string& fault) {
    CAPTURE(fault);
    const TemporaryDirectory directory;
    Story story(directory.path());
    bool survived = false;
    {
        FabricdProcess daemon(directory.path(), fault);
        survived = story.play(daemon) && !daemon.ended();
    }
    take_over(story, directory.path());
    return !survived;
}

}  // namespace

TEST_SUITE("crash.pool.daemon_killed") {
    TEST_CASE("killed around any record of the journal") {
        // Every third passage, shifted by point, so that all three together come to every record.
        int first = 1;
        for (const char* point :
             {"journal.append.before", "journal.append.torn", "journal.append.after"}) {
            int killed = 0;
            for (int count = first++; count < 60; count += 3) {
                if (!killed_at(std::string(point) + ":kill:" + std::to_string(count))) break;
                ++killed;
            }
            CHECK(killed > 5);
        }
    }

    TEST_CASE("killed around any of its replies") {
        for (const char* point : {"reply.before", "reply.after"}) {
            int killed = 0;
            for (int count = 1; count < 60; count += 2) {
                if (!killed_at(std::string(point) + ":kill:" + std::to_string(count))) break;
                ++killed;
            }
            CHECK(killed > 5);
        }
    }

    TEST_CASE("killed at any step of reclaiming a dead session, and when a group is made") {
        for (const char* point :
             {"reclaim.begin", "reclaim.mark", "reclaim.quarantine", "reclaim.arena",
              "reclaim.region", "reclaim.drop", "reclaim.end", "group.made"}) {
            CAPTURE(point);
            CHECK(killed_at(std::string(point) + ":kill:1"));
        }
    }

    TEST_CASE("killed while it compacts its journal") {
        for (const char* point : {"journal.compact.begin", "journal.compact.written",
                                  "journal.compact.before", "journal.compact.after"}) {
            CAPTURE(point);
            const TemporaryDirectory directory;
            Story story(directory.path());
            FabricdProcess daemon(directory.path(), std::string(point) + ":kill:1");
            REQUIRE(story.play_to_the_middle(daemon));
            // Records of which nothing stays, until there are too many of them.
            REQUIRE(story.come_and_go(daemon, 20000));
            REQUIRE(daemon.ended());
            take_over(story, directory.path());
        }
    }

    TEST_CASE("killed again while its sessions come back to it") {
        for (const char* point :
             {"adopt.before", "adopt.after", "journal.rewrite.before", "journal.rewrite.after"}) {
            CAPTURE(point);
            const TemporaryDirectory directory;
            Story story(directory.path());
            {
                FabricdProcess first(directory.path(), "reply.after:kill:9");
                story.play(first);
            }
            FabricdProcess second(directory.path(), std::string(point) + ":kill:1");
            const bool at_start = std::string(point).find("rewrite") != std::string::npos;
            const auto deadline = fabricshm::Clock::now() + std::chrono::seconds(60);
            if (!at_start) story.try_to_come_back();
            while (!second.ended() && fabricshm::Clock::now() < deadline) ::usleep(1000);
            REQUIRE(second.ended());
            take_over(story, directory.path());
        }
    }
}
