#include "fabricd/server/remote_hosts.hpp"

#include <doctest/doctest.h>

#include "tests/support/registry_host.hpp"

using namespace test_support;

namespace {

/// Sessions of the host "far", of two lives of it, and what becomes of them.
struct Rig {
    Rig() {
        Peer later = kFarBob;
        later.pid = 103;
        later.incarnation = kFarBob.incarnation + 1;
        before = host.session(kFarBob);
        now = host.session(later);
        own = host.session(kAlice);
        // So that they can write to something.
        CHECK(host.arena(before) != ArenaId::kNone);
        CHECK(host.arena(now) != ArenaId::kNone);
    }
    std::shared_ptr<const ClusterView> view(HostState first, HostState second) const {
        ClusterView made;
        made.hosts.resize(2);
        made.hosts[0].name = made.hosts[1].name = "far";
        made.hosts[0].incarnation = kFarBob.incarnation;
        made.hosts[0].state = first;
        made.hosts[1].incarnation = kFarBob.incarnation + 1;
        made.hosts[1].state = second;
        return std::make_shared<const ClusterView>(made);
    }
    /// "up", "given up" or "ended".
    std::string state_of(SessionId session) const {
        for (const RemoteSession& one : host.registry->remote_sessions()) {
            if (one.id == session) return one.given_up ? "given up" : "up";
        }
        return "ended";
    }

    RegistryHost host;
    RemoteHosts hosts{*host.registry, [this](SessionId session, const char* why, SessionEnd how) {
                          host.registry->end_session(session, why, how);
                      }};
    SessionId before{}, now{}, own{};
};

}  // namespace

TEST_SUITE("server.remote_hosts") {
    TEST_CASE("a host speaks of the processes alone that it sees") {
        Rig rig;
        Peer near = kFarBob;
        near.host = "near";
        rig.hosts.ended(near, rig.now);
        Peer container = kFarBob;
        ++container.pid_namespace;
        rig.hosts.ended(container, rig.now);
        Peer clone = kFarBob;
        ++clone.machine;
        rig.hosts.ended(clone, rig.now);
        rig.hosts.ended(kFarBob, rig.own);
        rig.hosts.ended(kFarBob, SessionId{999});
        CHECK(rig.state_of(rig.now) == "up");
        CHECK(rig.host.registry->snapshot(kNow).sessions.size() == 3);
        rig.hosts.ended(kFarBob, rig.now);
        CHECK(rig.state_of(rig.now) == "ended");
    }

    TEST_CASE("a process that died is given up until its host has written out what it wrote") {
        Rig rig;
        Peer near = kFarBob;
        near.host = "near";
        rig.hosts.died(near, rig.now);
        rig.hosts.died(kFarBob, rig.own);
        CHECK(rig.state_of(rig.now) == "up");
        rig.hosts.died(kFarBob, rig.now);
        CHECK(rig.state_of(rig.now) == "given up");
        // A daemon that is started again meanwhile hears what it has to write out.
        const auto known = rig.hosts.greet(kFarBob).value();
        REQUIRE(known.size() == 2);
        for (const RemoteSession& one : known) {
            REQUIRE(one.ranges.size() == 1);
            CHECK(one.ranges[0].bytes > 0);
        }
        rig.hosts.ended(kFarBob, rig.now);
        CHECK(rig.state_of(rig.now) == "ended");
    }

    TEST_CASE("of a machine that was started again the sessions of before are over") {
        Rig rig;
        CHECK(rig.hosts.greet(kFarBob).value().size() == 2);
        Peer near = kFarBob;
        near.host = "near";
        CHECK(rig.hosts.greet(near).value().empty());
        // Another machine of that name proves nothing; a daemon that sees no process says nothing.
        Peer other = kFarBob;
        ++other.machine;
        ++other.boot;
        CHECK(rig.hosts.greet(other).error().code == Errc::kDenied);
        Peer container = kFarBob;
        ++container.pid_namespace;
        CHECK(rig.hosts.greet(container).value().empty());
        CHECK(rig.state_of(rig.before) == "up");
        CHECK(rig.state_of(rig.now) == "up");
        Peer again = kFarBob;
        ++again.boot;
        CHECK(rig.hosts.greet(again).value().empty());
        CHECK(rig.state_of(rig.before) == "ended");
        CHECK(rig.state_of(rig.now) == "ended");
    }

    TEST_CASE("a lost life is given up, a fenced one has ended, and the next is neither") {
        Rig rig;
        rig.hosts.judge(rig.view(HostState::kSuspect, HostState::kUp), kNow);
        CHECK(rig.state_of(rig.before) == "up");
        rig.hosts.judge(rig.view(HostState::kLost, HostState::kUp), kNow + 50ms);
        CHECK(rig.state_of(rig.before) == "up");  // it looks every 100 ms
        rig.hosts.judge(rig.view(HostState::kLost, HostState::kUp), kNow + 100ms);
        CHECK(rig.state_of(rig.before) == "given up");
        CHECK(rig.state_of(rig.now) == "up");
        rig.hosts.judge(rig.view(HostState::kFenced, HostState::kUp), kNow + 200ms);
        CHECK(rig.state_of(rig.before) == "ended");
        CHECK(rig.state_of(rig.now) == "up");
    }

    TEST_CASE("a life that the cluster does not know is left as it is") {
        Rig rig;
        rig.hosts.judge(nullptr, kNow);
        rig.hosts.judge(std::make_shared<const ClusterView>(), kNow + 1s);
        CHECK(rig.state_of(rig.before) == "up");
    }

    TEST_CASE("a person ends what was given up, and nothing else") {
        Rig rig;
        CHECK(rig.hosts.fence("far") == 0);
        rig.host.registry->end_session(rig.before, "silent", SessionEnd::kGivenUp);
        CHECK(rig.hosts.fence("near") == 0);
        CHECK(rig.hosts.fence("far") == 1);
        CHECK(rig.state_of(rig.before) == "ended");
        CHECK(rig.state_of(rig.now) == "up");
    }

    TEST_CASE("without sessions of other hosts nothing is looked at") {
        RegistryHost host;
        RemoteHosts hosts(*host.registry, [](SessionId, const char*, SessionEnd) {});
        hosts.judge(nullptr, kNow);
        CHECK(hosts.next_deadline() == TimePoint::max());
        // One that begins is, though its connection was there when nothing was.
        const SessionId begun = host.session(kFarBob);
        CHECK(hosts.next_deadline() <= kNow + 100ms);
        host.registry->end_session(begun, "test");
        CHECK(hosts.next_deadline() == TimePoint::max());
    }

    TEST_CASE("a session that shows its host other files is granted nothing in that arena") {
        Rig rig;
        const ArenaId arena = rig.host.arena(rig.now);
        Peer near = kFarBob;
        near.host = "near";
        rig.hosts.presented_others(near, rig.now, arena);
        rig.hosts.presented_others(kFarBob, rig.own, arena);
        CHECK(rig.host.region(rig.now, arena).ok());
        rig.hosts.presented_others(kFarBob, rig.now, arena);
        CHECK(rig.host.region(rig.now, arena).error().code == Errc::kCorrupt);
        CHECK(rig.host.arena(rig.own) == ArenaId::kNone);
        CHECK(rig.host.last_error.code == Errc::kCorrupt);
        CHECK(rig.state_of(rig.now) == "up");
        // Others that had it open go on, and when it has closed it all do.
        CHECK(rig.host.region(rig.before, arena).ok());
        CHECK(rig.host.registry->close_arena({rig.now, 90}, arena).value());
        CHECK(rig.host.arena(rig.own) == arena);
    }
}
