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
    TEST_CASE("a host speaks of its own processes alone") {
        Rig rig;
        rig.hosts.ended("near", rig.now);
        rig.hosts.ended("far", rig.own);
        rig.hosts.ended("far", SessionId{999});
        CHECK(rig.state_of(rig.now) == "up");
        CHECK(rig.host.registry->snapshot(kNow).sessions.size() == 3);
        rig.hosts.ended("far", rig.now);
        CHECK(rig.state_of(rig.now) == "ended");
    }

    TEST_CASE("of a host that was started again the sessions of before are over") {
        Rig rig;
        CHECK(rig.hosts.greet("far", kFarBob.boot).size() == 2);
        CHECK(rig.hosts.greet("near", 1).empty());
        CHECK(rig.state_of(rig.now) == "up");
        CHECK(rig.hosts.greet("far", kFarBob.boot + 1).empty());
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
        hosts.wake();
        CHECK(hosts.next_deadline() <= kNow);
    }
}
