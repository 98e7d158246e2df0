// What sessions hear of hosts: page by page from the daemon, and put together again by the library.

#include "fabricd/server/cluster_desk.hpp"

#include <doctest/doctest.h>

#include <mutex>
#include <thread>

#include "libfabricshm/client/hosts.hpp"
#include "libfabricshm/proto/codec.hpp"
#include "tests/support/daemon_thread.hpp"

using namespace fabricshm;
using fabricd::ClusterView;
using fabricd::hosts_page;
using fabricd::HostView;

namespace {

ClusterView cluster_of(int hosts, std::uint64_t version) {
    ClusterView view;
    view.cluster = "test";
    view.admits = true;
    view.version = version;
    for (int i = 0; i < hosts; ++i) {
        HostView host;
        host.name = "h" + std::to_string(i);
        host.incarnation = 100 + static_cast<std::uint64_t>(i);
        host.state = i % 2 == 0 ? fabricd::HostState::kUp : fabricd::HostState::kLost;
        host.is_self = i == 0;
        host.state_ms = 1000 + i;
        if (i % 2 != 0) host.fence_stage = fabricd::FenceStage::kPerson;
        view.hosts.push_back(host);
    }
    return view;
}

/// A daemon in a cluster that the test changes.
struct Rig {
    explicit Rig(ClusterView view) : current(std::make_shared<ClusterView>(std::move(view))) {
        daemon = fabricd::Daemon::start(test_support::options_in(directory),
                                        std::move(test_support::small_pool()).value())
                     .value();
        daemon->share_cluster({[this] {
                                   const std::lock_guard lock(mutex);
                                   return current;
                               },
                               {}});
        thread = std::thread([this] { (void)daemon->run(); });
        SessionOptions options;
        options.sockets = {directory.file("run/attach.sock")};
        session = Session::open(options).value();
    }
    ~Rig() {
        session->close();
        daemon->stop();
        thread.join();
    }
    void show(ClusterView view) {
        const std::lock_guard lock(mutex);
        current = std::make_shared<ClusterView>(std::move(view));
    }
    Result<bool> ask() { return ask_hosts(*session, known, session->default_deadline()); }

    test_support::TemporaryDirectory directory;
    std::mutex mutex;
    std::shared_ptr<const ClusterView> current;
    std::unique_ptr<fabricd::Daemon> daemon;
    std::thread thread;
    std::shared_ptr<Session> session;
    KnownHosts known;
};

}  // namespace

TEST_SUITE("server.cluster_desk") {
    TEST_CASE("entries come five at a time, and none when the version is known") {
        const ClusterView view = cluster_of(12, 9);
        proto::Hosts asked{};
        CHECK(hosts_page(view, asked).count == 5);
        asked.first = 10;
        const proto::Hosts last = hosts_page(view, asked);
        CHECK(last.count == 2);
        CHECK(last.total == 12);
        CHECK(std::string(last.entries[1].name) == "h11");
        asked.first = 4000;
        CHECK(hosts_page(view, asked).count == 0);
        asked = {};
        asked.version = 9;
        CHECK(hosts_page(view, asked).count == 0);
        asked.version = 8;
        CHECK(hosts_page(view, asked).count == 5);
    }

    TEST_CASE("a lease that has run out admits nothing, however the daemon last saw it") {
        ClusterView view = cluster_of(2, 9);
        view.admits_until = fabricd::BootClock::now() + std::chrono::minutes(1);
        CHECK(hosts_page(view, {}).flags == (proto::kHostsAdmit | proto::kHostsInCluster));
        view.admits_until = fabricd::BootClock::now() - std::chrono::milliseconds(1);
        CHECK(hosts_page(view, {}).flags == proto::kHostsInCluster);
    }

    TEST_CASE("a session hears of all hosts, and only of changes after that") {
        Rig rig(cluster_of(12, 9));
        REQUIRE(rig.ask().value());
        REQUIRE(rig.known.hosts.size() == 12);
        CHECK(rig.known.admits);
        CHECK(rig.known.hosts[0].is_self);
        CHECK(rig.known.hosts[11].name == "h11");
        CHECK(rig.known.hosts[11].state == proto::HostState::kLost);
        CHECK(rig.known.hosts[11].state_ms == 1011);
        CHECK(rig.known.hosts[11].fence == proto::FenceStage::kPerson);
        CHECK(rig.known.hosts[10].fence == proto::FenceStage::kNone);
        CHECK_FALSE(rig.ask().value());
        rig.show(cluster_of(3, 10));
        CHECK(rig.ask().value());
        CHECK(rig.known.hosts.size() == 3);
    }

    TEST_CASE("a host holds its place until it has another one, or its lease has run out") {
        ClusterView view = cluster_of(2, 9);
        Rig rig(view);
        HostWatch watch(*rig.session);
        const auto holds = [&] { return watch.holds("h0", 100, rig.session->default_deadline()); };
        CHECK(holds().ok());
        view.admits = false;
        rig.show(view);
        CHECK(holds().error().code == Errc::kBusy);
        view.admits = true;
        view.version = 10;
        view.hosts[0].incarnation = 102;
        rig.show(view);
        CHECK(holds().error().code == Errc::kPeer);
    }

    TEST_CASE("a daemon in no cluster knows no hosts") {
        Rig rig(ClusterView{});
        CHECK(rig.ask().ok());
        CHECK(rig.known.hosts.empty());
        CHECK_FALSE(rig.ask().value());
        const auto place = HostWatch(*rig.session).own_place(rig.session->default_deadline());
        REQUIRE(place.ok());
        CHECK(place->name.empty());
    }

    TEST_CASE("ranks of a daemon without a place in its cluster join no groups over hosts") {
        ClusterView view = cluster_of(3, 9);
        const auto place_in = [](Rig& rig) {
            return HostWatch(*rig.session).own_place(rig.session->default_deadline());
        };
        Rig rig(view);
        CHECK(place_in(rig).value().name == "h0");
        // Another daemon has its name: the entry is not its own, and admits nothing.
        view.hosts[0].is_self = false;
        view.version = 10;
        rig.show(view);
        CHECK(place_in(rig).error().code == Errc::kBusy);
        view.hosts.clear();
        view.version = 11;
        rig.show(view);
        CHECK(place_in(rig).error().code == Errc::kBusy);
    }

    TEST_CASE("an incarnation is gone when it is lost, fenced, or followed by another") {
        KnownHosts known;
        known.hosts = {{"a", 7, proto::HostState::kUp, false},
                       {"a", 5, proto::HostState::kFenced, false},
                       {"b", 6, proto::HostState::kSuspect, false},
                       {"c", 8, proto::HostState::kLost, false},
                       {"d", 0, proto::HostState::kListed, false}};
        CHECK_FALSE(is_gone(known, "a", 7));
        CHECK(is_gone(known, "a", 5));
        CHECK(is_gone(known, "a", 4));
        CHECK_FALSE(is_gone(known, "a", 9));  // not heard of yet
        CHECK_FALSE(is_gone(known, "b", 6));
        CHECK(is_gone(known, "c", 8));
        CHECK_FALSE(is_gone(known, "d", 3));
        CHECK_FALSE(is_gone(known, "unheard", 1));
    }

    TEST_CASE(
        "which ranks of a group go on is the desk's word, and without one nothing is settled") {
        proto::Message request = proto::make_request(proto::Type::kSurvivors, 7);
        request.survivors.group[15] = 9;
        request.survivors.members[3] = 6;
        fabricd::ClusterDesk desk;
        CHECK(fabricd::cluster_reply(request, desk).survivors.settled == proto::Settled::kNoStore);
        using fabricd::Verdict;
        const std::pair<Verdict, proto::Settled> words[] = {
            {Verdict::kPending, proto::Settled::kPending},
            {Verdict::kTheseGoOn, proto::Settled::kTheseGoOn},
            {Verdict::kOthersGoOn, proto::Settled::kOthersGoOn},
            {Verdict::kNoStore, proto::Settled::kNoStore},
            {Verdict::kTooMany, proto::Settled::kTooMany}};
        for (const auto& [verdict, settled] : words) {
            fabricd::Survivors asked;
            desk.settle = [&, said = verdict](const fabricd::Survivors& survivors) {
                asked = survivors;
                return said;
            };
            const proto::Message reply = fabricd::cluster_reply(request, desk);
            CHECK(reply.survivors.settled == settled);
            CHECK(reply.header.request_id == 7);
            CHECK(asked.group[15] == 9);
            CHECK(asked.ranks == fabricd::RankSet{0, 0, 0, 6});
        }
    }
}
