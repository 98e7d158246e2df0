// A member with a store that the test holds: what it writes there, and what it does when the store
// fails.

#include "fabricd/net/cluster_member.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

using namespace fabricd;
using namespace std::chrono_literals;
using fabricshm::Errc;
using fabricshm::Error;

namespace {

/// Remembers what was asked for; answers as the test says.
class FakeStore final : public ClusterStore {
  public:
    void limit_calls_until(BootTime) noexcept override {}
    Result<HostPlace> join(const std::string&, const HostRecord& record, Duration ttl) override {
        joined.push_back(record);
        if (!answers || !joins) return Error{Errc::kTimeout, 0, "join"};
        if (is_taken) return Error{Errc::kBusy, 0, "join"};
        if (own_record != 0) return HostPlace{own_record, 78, {ttl, BootClock::now()}};
        const Incarnation number = record.incarnation != 0 ? record.incarnation : ++revision;
        return HostPlace{number, 77, {ttl, BootClock::now()}};
    }
    Result<HostPlace> resume(const std::string&, const HostRecord& record,
                             std::int64_t lease) override {
        if (!answers) return Error{Errc::kTimeout, 0, "resume"};
        if (lease != kept_lease) return Error{Errc::kNotFound, 0, "resume"};
        return HostPlace{record.incarnation, lease, {5s, BootClock::now()}};
    }
    Result<StoreLease> keep() override {
        ++renewals;
        if (!answers) return Error{Errc::kTimeout, 0, "keep"};
        if (lease_gone) return Error{Errc::kNotFound, 0, "keep"};
        return StoreLease{5s, clock ? clock() : BootClock::now()};
    }
    Result<StoreNews> news(Duration) override {
        if (!answers) return Error{Errc::kTimeout, 0, "news"};
        return std::exchange(next, {});
    }
    Result<StoreNews> read_all() override { return news(0s); }
    Result<bool> claim(const FenceKey&) override { return grants_claim; }
    Result<void> write_fence(const FenceKey& key, const FenceRecord& record) override {
        if (!answers) return Error{Errc::kTimeout, 0, "write"};
        if (on_write) on_write();
        fences[key] = record;
        return {};
    }
    Result<void> leave() override {
        has_left = true;
        own_record = 0;
        return {};
    }

    bool answers = true, joins = true, lease_gone = false, grants_claim = true, has_left = false;
    bool is_taken = false;  // the name of this host, by another daemon
    std::int64_t kept_lease = 0;
    Incarnation revision = 100;
    Incarnation own_record = 0;  // of a lease that the store kept for too long
    StoreNews next;
    std::vector<HostRecord> joined;
    std::map<FenceKey, FenceRecord> fences;
    int renewals = 0;
    std::function<void()> on_write;
    std::function<BootTime()> clock;
};

class FakeRunner final : public FenceRunner {
  public:
    Result<void> start(const FenceKey& key) override {
        started.push_back(key);
        return {};
    }
    std::optional<int> poll(BootTime) override { return std::exchange(status, std::nullopt); }

    void end(BootTime) override {
        ++ended;
        status = 143;
    }

    std::vector<FenceKey> started;
    std::optional<int> status;
    int ended = 0;
};

struct Rig {
    explicit Rig(KeptPlace kept = {}, FenceRunner* fence_runner = nullptr) {
        MemberParts parts;
        parts.host = "me";
        parts.record = {0, 1, 2, 3, "emu", ""};
        parts.store = &store;
        parts.runner = fence_runner;
        parts.kept = kept;
        parts.end_shared_sessions = [this]() -> Result<void> {
            ++ended;
            if (ending_fails) return Error{Errc::kTimeout, 0, "end sessions"};
            if (!knows_sessions) return Error{Errc::kBusy, 0, "end sessions"};
            return {};
        };
        parts.keep_place = [this](const KeptPlace& now) { place = now; };
        parts.clock = [this] { return BootClock::now() + later; };
        member.emplace(std::move(parts));
    }
    HostState state_of_life(const char* host, Incarnation number) const {
        const HostLife* life = find_life(member->table(), host, number);
        REQUIRE(life != nullptr);
        return life->state;
    }
    /// Another host that another daemon has called lost.
    void lose_other() {
        store.next.hosts.push_back({"other", {50, 8, 9, 0, "", ""}});
        store.next.fences.push_back({{"other", 50}, {false, "third", "lease", 8, 9}});
        member->step(0s);
    }

    FakeStore store;
    int ended = 0;
    bool ending_fails = false;
    bool knows_sessions = true;
    Duration later{};  // than it is
    KeptPlace place;
    std::optional<ClusterMember> member;
};

}  // namespace

TEST_SUITE("net.cluster_member") {
    TEST_CASE("a member joins once and keeps its place for the next daemon") {
        Rig rig;
        rig.member->step(0s);
        rig.member->step(0s);
        CHECK(rig.store.joined.size() == 1);
        CHECK(rig.member->incarnation() == 101);
        CHECK(rig.place.incarnation == 101);
        CHECK(rig.place.lease == 77);
        CHECK(rig.ended == 0);
    }

    TEST_CASE("a daemon that is started again goes on with the incarnation it had") {
        Rig rig({90, 33});
        rig.store.kept_lease = 33;
        rig.member->step(0s);
        CHECK(rig.member->incarnation() == 90);
        CHECK(rig.store.joined.empty());
        CHECK(rig.ended == 0);
    }

    TEST_CASE("one that comes too late ends its sessions, says so, and has another incarnation") {
        Rig rig({90, 33});
        rig.member->step(0s);
        CHECK(rig.ended == 1);
        CHECK(rig.store.fences.at({"me", 90}).is_fenced);
        CHECK(rig.store.fences.at({"me", 90}).how == "self");
        CHECK(rig.member->incarnation() == 101);
    }

    TEST_CASE("one that can't know its sessions is not called fenced, and the host has another") {
        Rig rig({90, 33});
        rig.knows_sessions = false;
        rig.member->step(0s);
        CHECK(rig.ended > 0);
        CHECK(rig.store.fences.count({"me", 90}) == 0);
        CHECK(rig.member->incarnation() == 101);
        // Nor later, when they are known: it may have had more than those.
        rig.knows_sessions = true;
        rig.member->step(0s);
        CHECK(rig.store.fences.count({"me", 90}) == 0);
    }

    TEST_CASE(
        "while sessions can't be ended, the incarnation is not fenced and there is no other") {
        Rig rig({90, 33});
        rig.ending_fails = true;
        rig.member->step(0s);
        CHECK(rig.store.fences.empty());
        CHECK(rig.member->incarnation() == 0);
    }

    TEST_CASE(
        "an incarnation that is over is not taken up again, though the store kept its record") {
        Rig rig({90, 33});  // the lease is gone when the daemon is back, and the sessions end
        rig.store.own_record = 90;
        rig.member->step(0s);
        CHECK(rig.ended == 1);
        CHECK(rig.place.incarnation == 0);
        CHECK(rig.member->incarnation() == 0);
        CHECK(rig.store.has_left);
        rig.member->step(0s);  // at once, and not after the pause between tries
        CHECK(rig.member->incarnation() == 101);
        CHECK(rig.place.incarnation == 101);
    }

    TEST_CASE("why a host has no place is shown for as long as it has none") {
        Rig rig;
        rig.store.is_taken = true;
        rig.member->step(0s);
        rig.member->step(0s);  // no try in this one, and nothing fails
        CHECK_FALSE(rig.member->trouble().empty());
        rig.store.is_taken = false;
        while (rig.member->incarnation() == 0) rig.member->step(10ms);
        CHECK(rig.member->trouble().empty());
    }

    TEST_CASE("a host that finds a clone of itself in its place gives no machine any more") {
        Rig rig;
        rig.store.is_taken = true;
        // With a lease of a millisecond, which goes on being renewed for longer than two of them.
        rig.store.next.hosts.push_back({"me", {50, 1, 9, 4, "", "", 1}});
        while (rig.store.joined.size() < 3) rig.member->step(10ms);
        CHECK(rig.store.joined.back().machine == 1);
        rig.store.is_taken = false;
        while (rig.member->incarnation() == 0) rig.member->step(10ms);
        CHECK(rig.store.joined.back().machine == 0);
        CHECK(rig.store.joined.back().boot == 2);
    }

    TEST_CASE("sessions are shown another version when this host takes or loses its place") {
        Rig rig;
        rig.store.joins = false;
        rig.member->step(0s);
        const auto without = rig.member->table().version;
        rig.store.joins = true;
        while (rig.member->incarnation() == 0) rig.member->step(10ms);
        const auto with = rig.member->table().version;
        CHECK(with > without);
        rig.store.next.deleted.push_back({"me", 101});
        rig.member->step(0s);
        CHECK(rig.member->incarnation() == 0);
        CHECK(rig.member->table().version > with);
    }

    TEST_CASE("a lease that the store calls over ends the sessions") {
        Rig rig;
        rig.member->step(0s);
        rig.store.next.deleted.push_back({"me", 101});
        rig.store.next.hosts.clear();
        rig.member->step(0s);
        CHECK(rig.ended == 1);
        CHECK(rig.member->counts().self_fences == 1);
        rig.member->step(0s);
        CHECK(rig.member->incarnation() == 102);
        CHECK(rig.store.fences.at({"me", 101}).is_fenced);
    }

    TEST_CASE("a store that lost its data ends nothing: the record is written again as it was") {
        Rig rig;
        rig.member->step(0s);
        rig.lose_other();
        rig.store.fences.clear();
        rig.store.next.is_whole = rig.store.next.data_lost = true;
        rig.store.next.deleted.push_back({"me", 101});
        rig.member->step(0s);
        CHECK(rig.ended == 0);
        CHECK(rig.member->incarnation() == 101);
        REQUIRE(rig.store.joined.size() == 2);
        CHECK(rig.store.joined[1].incarnation == 101);
        CHECK(rig.store.fences.count({"other", 50}) == 1);
    }

    TEST_CASE(
        "a record that can't be written again at once is tried again, and the lease is kept") {
        Rig rig;
        rig.member->step(0s);
        rig.store.next.is_whole = rig.store.next.data_lost = true;
        rig.store.next.deleted.push_back({"me", 101});
        rig.store.joins = false;
        rig.member->step(0s);
        rig.store.lease_gone = true;
        rig.member->step(0s);
        CHECK(rig.ended == 0);
        rig.store.joins = true;
        rig.member->step(0s);
        CHECK(rig.member->incarnation() == 101);
        CHECK(rig.store.joined.back().incarnation == 101);
        CHECK(rig.ended == 0);
    }

    TEST_CASE("a store that does not answer ends nothing before the lease's own time") {
        Rig rig;
        rig.member->step(0s);
        rig.store.answers = false;
        for (int i = 0; i < 5; ++i) rig.member->step(0s);
        CHECK(rig.ended == 0);
        CHECK(rig.member->incarnation() == 101);
        CHECK_FALSE(rig.member->trouble().empty());
        CHECK(rig.member->counts().failures > 0);
    }

    TEST_CASE("a command that ends well fences, and the store hears of it also when it is away") {
        FakeRunner runner;
        Rig rig({}, &runner);
        rig.member->step(0s);
        rig.lose_other();
        REQUIRE(runner.started.size() == 1);
        CHECK(rig.state_of_life("other", 50) == HostState::kLost);
        runner.status = 0;
        rig.store.answers = false;
        rig.member->step(0s);
        CHECK(rig.state_of_life("other", 50) == HostState::kFenced);
        rig.store.answers = true;
        rig.member->step(0s);
        CHECK(rig.store.fences.at({"other", 50}).is_fenced);
        CHECK(rig.store.fences.at({"other", 50}).how == "command");
    }

    TEST_CASE("a command that fails fences nothing") {
        FakeRunner runner;
        Rig rig({}, &runner);
        rig.member->step(0s);
        rig.lose_other();
        runner.status = 1;
        rig.member->step(0s);
        CHECK(rig.state_of_life("other", 50) == HostState::kLost);
        CHECK(rig.member->counts().commands_failed == 1);
        CHECK_FALSE(rig.store.fences[{"other", 50}].is_fenced);
    }

    TEST_CASE("a command is ended once its host is back, or fenced by other means") {
        const auto back = [](Rig& rig) {
            rig.store.next.hosts.push_back({"other", {60, 8, 10, 0, "", ""}});
        };
        const auto back_with_the_same_boot = [](Rig& rig) {
            rig.store.next.hosts.push_back({"other", {60, 8, 9, 0, "", ""}});
        };
        const auto fenced_by_a_person = [](Rig& rig) {
            rig.store.next.fences.push_back({{"other", 50}, {true, "third", "operator", 8, 9}});
        };
        const std::function<void(Rig&)> ways[] = {back, back_with_the_same_boot,
                                                  fenced_by_a_person};
        for (const auto& way : ways) {
            FakeRunner runner;
            Rig rig({}, &runner);
            rig.member->step(0s);
            rig.lose_other();
            REQUIRE(runner.started.size() == 1);
            rig.member->step(0s);
            CHECK(runner.ended == 0);
            way(rig);
            rig.member->step(0s);
            CHECK(runner.ended == 1);
            rig.later = 1min;
            rig.member->step(0s);
            CHECK(runner.ended == 1);
            CHECK(runner.started.size() == 1);
            CHECK(rig.member->counts().commands_done == 0);
        }
    }

    TEST_CASE("a command that another daemon has claimed is not run here") {
        FakeRunner runner;
        Rig rig({}, &runner);
        rig.store.grants_claim = false;
        rig.member->step(0s);
        rig.lose_other();
        CHECK(runner.started.empty());
    }

    TEST_CASE("a person fences what is lost, and nothing that is up or unknown") {
        Rig rig;
        rig.member->step(0s);
        rig.store.next.hosts.push_back({"me", {101, 1, 2, 3, "", ""}});
        rig.lose_other();
        CHECK(rig.member->confirm_fence("nowhere", "me").error().code == Errc::kNotFound);
        CHECK(rig.member->confirm_fence("me", "me").error().code == Errc::kInvalid);
        REQUIRE(rig.member->confirm_fence("other", "me").ok());
        CHECK(rig.state_of_life("other", 50) == HostState::kFenced);
        CHECK(rig.store.fences.at({"other", 50}).how == "operator");
    }

    TEST_CASE("a person's word that can't be written does not count") {
        Rig rig;
        rig.member->step(0s);
        rig.lose_other();
        rig.store.answers = false;
        CHECK_FALSE(rig.member->confirm_fence("other", "me").ok());
        CHECK(rig.state_of_life("other", 50) == HostState::kLost);
    }

    TEST_CASE("a host that leaves with nothing behind is fenced by that, else its place stays") {
        Rig rig;
        rig.member->step(0s);
        rig.member->leave(false);
        CHECK_FALSE(rig.store.has_left);
        CHECK(rig.place.incarnation == 101);
        rig.member->leave(true);
        CHECK(rig.store.has_left);
        CHECK(rig.store.fences.at({"me", 101}).how == "left");
        CHECK(rig.place.incarnation == 0);
    }

    TEST_CASE(
        "an incarnation that has ended is never taken again, however long the store kept it") {
        Rig rig;
        rig.store.kept_lease = 77;
        rig.member->step(0s);
        rig.store.next.fences.push_back({{"me", 101}, {true, "third", "operator", 1, 2}});
        rig.member->step(0s);
        CHECK(rig.ended == 1);
        // As a store whose lease lasted longer than this host's clock: the record is still there,
        // and it is of this daemon.
        rig.store.revision = 100;
        rig.member->step(0s);
        CHECK(rig.store.fences.at({"me", 101}).how == "self");
        CHECK(rig.member->incarnation() == 0);
        CHECK(rig.store.has_left);
        rig.member->step(0s);
        CHECK(rig.member->incarnation() == 102);
        CHECK(standing_of(rig.member->lease(), BootClock::now()) == LeaseStanding::kHeld);
    }

    TEST_CASE("a daemon that is started again without a store ends its sessions by its own clock") {
        Rig rig({101, 77});
        rig.store.answers = false;
        rig.member->step(0s);
        rig.later = 4s;
        rig.member->step(0s);
        CHECK(rig.ended == 0);
        rig.later = 4500ms;
        rig.member->step(0s);
        CHECK(rig.ended >= 1);
        CHECK(rig.member->counts().self_fences == 1);
        CHECK(rig.store.fences.empty());
        // The lease may be there still: it is not gone on with.
        rig.store.answers = true;
        rig.store.kept_lease = 77;
        rig.store.revision = 101;
        rig.later = 6s;
        rig.member->step(0s);
        CHECK(rig.store.fences.at({"me", 101}).how == "self");
        CHECK(rig.member->incarnation() == 102);
    }

    TEST_CASE("a daemon that is started again does not go on with what is fenced meanwhile") {
        Rig rig({101, 77});
        rig.store.kept_lease = 77;
        rig.store.revision = 101;
        rig.store.next.fences.push_back({{"me", 101}, {true, "me", "self", 1, 2}});
        rig.member->step(0s);
        CHECK(rig.member->incarnation() == 0);
        CHECK(rig.ended == 1);
        rig.later = 1s;
        rig.member->step(0s);
        CHECK(rig.member->incarnation() == 102);
    }

    TEST_CASE("while the store is away no host is lost, and after that its grace begins again") {
        Rig rig;
        rig.store.next.hosts.push_back({"other", {50, 8, 9, 0, "", ""}});
        rig.member->step(0s);
        rig.store.next.deleted.push_back({"other", 50});
        rig.member->step(0s);
        CHECK(rig.state_of_life("other", 50) == HostState::kSuspect);
        rig.store.answers = false;
        rig.later = 20s;  // long past its grace
        rig.member->step(0s);
        CHECK(rig.state_of_life("other", 50) == HostState::kSuspect);
        rig.store.answers = true;
        rig.member->step(0s);
        const auto hear = [&rig](int seconds) {
            for (int i = 0; i < seconds; ++i) {
                rig.later += 1s;
                rig.member->step(0s);
            }
        };
        hear(5);  // in which it may write its record again
        CHECK(rig.state_of_life("other", 50) == HostState::kSuspect);
        hear(2);
        CHECK(rig.state_of_life("other", 50) == HostState::kLost);
    }

    TEST_CASE("a number that others know from before an older snapshot is not gone on with") {
        Rig rig;
        rig.member->step(0s);
        REQUIRE(rig.member->incarnation() == 101);
        // They write what they know as soon as they see this one.
        rig.store.next.fences.push_back({{"me", 500}, {false, "third", "lease", 1, 9}});
        rig.member->step(0s);
        CHECK(rig.ended == 1);
        CHECK(rig.member->incarnation() == 0);
        // And until the store gives out larger ones none is taken.
        rig.member->step(0s);
        CHECK(rig.member->incarnation() == 0);
        rig.store.revision = 500;
        rig.later = 1s;
        rig.member->step(0s);
        CHECK(rig.member->incarnation() == 501);
        CHECK(rig.place.incarnation == 501);
    }

    TEST_CASE(
        "a host that lives under a number of before hears of it, and is not taken for its past") {
        const HostRecord old_life{50, 8, 9, 0, "", ""};
        for (const Incarnation number : {Incarnation{40}, Incarnation{50}}) {
            CAPTURE(number);
            Rig rig;
            rig.store.next.hosts.push_back({"other", old_life});
            rig.store.next.fences.push_back({{"other", 50}, {true, "third", "command", 8, 9}});
            rig.member->step(0s);
            rig.store.fences.clear();
            rig.store.next.is_whole = true;  // without the fence
            HostRecord again = old_life;
            again.incarnation = number;
            again.boot = 10;
            rig.store.next.hosts.push_back({"other", again});
            rig.member->step(0s);
            REQUIRE(rig.store.fences.count({"other", 50}) == 1);
            CHECK(rig.store.fences.at({"other", 50}).is_fenced);
            again.incarnation = 60;
            rig.store.next.hosts.push_back({"other", again});
            rig.member->step(0s);
            CHECK(rig.state_of_life("other", 60) == HostState::kUp);
        }
    }

    TEST_CASE("one that is up here under a number that another boot has now is over first") {
        Rig rig;
        rig.store.next.hosts.push_back({"other", {50, 8, 9, 0, "", ""}});
        rig.member->step(0s);
        rig.store.next.hosts.push_back({"other", {50, 8, 10, 0, "", ""}});
        rig.member->step(0s);
        CHECK(rig.state_of_life("other", 50) == HostState::kSuspect);
        for (int i = 0; i < 8; ++i) {
            rig.later += 1s;
            rig.member->step(0s);
        }
        CHECK(rig.store.fences.count({"other", 50}) == 1);
    }

    TEST_CASE("thousands of losses at once don't keep the lease from being renewed") {
        constexpr int kLost = 2000;
        Rig rig;
        rig.store.clock = [&rig] { return BootClock::now() + rig.later; };
        for (int i = 0; i < kLost; ++i) {
            rig.store.next.hosts.push_back({"h" + std::to_string(i), {50, 8, 9, 0, "", ""}});
        }
        rig.member->step(0s);
        for (int i = 0; i < kLost; ++i) {
            rig.store.next.deleted.emplace_back("h" + std::to_string(i), 50);
        }
        // All of them become lost in one turn; a write takes 10 ms, together four leases.
        Duration longest{}, turn_began = rig.later;
        rig.store.on_write = [&] {
            rig.later += 10ms;
            longest = std::max(longest, rig.later - turn_began);
        };
        int turns = 0;
        while (static_cast<int>(rig.store.fences.size()) < kLost && ++turns < 1000) {
            turn_began = rig.later;
            rig.member->step(0s);
            if (rig.store.fences.empty()) rig.later += 500ms;
        }
        CHECK(rig.store.fences.size() == kLost);
        CHECK(longest <= 1s);
        CHECK(rig.ended == 0);
        CHECK(rig.member->incarnation() == 101);
        CHECK(rig.store.renewals >= 12);  // three of a lease
    }

    TEST_CASE("an incarnation that others fenced ends here, too") {
        Rig rig;
        rig.member->step(0s);
        rig.store.next.hosts.push_back({"me", {101, 1, 2, 3, "", ""}});
        rig.store.next.fences.push_back({{"me", 101}, {true, "third", "operator", 1, 2}});
        rig.member->step(0s);
        CHECK(rig.ended == 1);
    }
}
