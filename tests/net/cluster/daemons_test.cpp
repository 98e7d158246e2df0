// Daemons in one cluster, on one machine: what each shows of the others while they are stopped,
// killed and started again.

#include <doctest/doctest.h>
#include <fabricshm/fabricshm.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "libfabricshm/proto/codec.hpp"
#include "tests/support/daemon.hpp"
#include "tests/support/etcd_process.hpp"
#include "tests/support/program.hpp"
#include "tests/support/wire_client.hpp"

namespace proto = fabricshm::proto;
using namespace std::chrono_literals;
using test_support::Daemon;
using test_support::EtcdProcesses;
using Json = nlohmann::json;

namespace {

std::vector<std::string> options_of(const EtcdProcesses& etcd, const std::string& host) {
    return {"--cluster-etcd=" + etcd.endpoint_list(), "--cluster-name=test",
            "--cluster-host-name=" + host, "--cluster-ttl=2s"};
}

test_support::Output ctl(const Daemon& daemon, std::vector<std::string> words) {
    words.insert(words.begin(), FABRICCTL_PATH);
    words.push_back("--socket=" + daemon.folder() + "/admin.sock");
    return test_support::run_program(words);
}

Json hosts_of(const Daemon& daemon) {
    const auto output = ctl(daemon, {"hosts", "--json"});
    return output.code == 0 ? Json::parse(output.out) : Json::object();
}

/// The newest incarnation of a host, as the daemon shows it; an empty object: none.
Json host_in(const Json& view, const std::string& name) {
    for (const auto& host : view.value("hosts", Json::array())) {
        if (host["name"] == name && host["newest"] == true) return host;
    }
    return Json::object();
}

Json incarnation_in(const Json& view, std::uint64_t incarnation) {
    for (const auto& host : view.value("hosts", Json::array())) {
        if (host["incarnation"] == incarnation) return host;
    }
    return Json::object();
}

/// Asks until `wanted`; the last answer, or null when it does not come in half a minute.
Json eventually(const Daemon& daemon, const std::function<bool(const Json&)>& wanted) {
    const auto end = std::chrono::steady_clock::now() + 30s;
    while (std::chrono::steady_clock::now() < end) {
        Json view = hosts_of(daemon);
        if (wanted(view)) return view;
    }
    return nullptr;
}

constexpr const char* kStates[] = {"listed", "up", "back", "suspect", "lost", "fenced"};
// What `fabricctl hosts` says of each fabricshm_fence.
constexpr const char* kFences[] = {
    "",         "waits for a person", "command runs", "command failed", "command by ",
    "boot by ", "self by ",           "left by ",     "operator by "};

/// A session of the library in this process.
struct LibrarySession {
    explicit LibrarySession(const Daemon& daemon) {
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = daemon.socket().c_str();
        REQUIRE(fabricshm_session_open(&options, &session) == FABRICSHM_OK);
    }
    ~LibrarySession() { fabricshm_session_close(session); }

    fabricshm_cluster cluster{};
    std::vector<fabricshm_host> hosts{64};
    fabricshm_session* session = nullptr;

    void ask() {
        hosts.resize(64);
        cluster.struct_size = sizeof cluster;
        REQUIRE(fabricshm_session_hosts(session, hosts.data(), 64, &cluster) == FABRICSHM_OK);
        hosts.resize(static_cast<std::size_t>(cluster.total));
    }

    /// Whether it hears what fabricctl was shown, but for what went on between the two.
    void check_against(const Json& view) {
        ask();
        CHECK((cluster.admits != 0) == view["admits"]);
        REQUIRE(hosts.size() == view["hosts"].size());
        for (std::size_t i = 0; i < hosts.size(); ++i) {
            const Json& shown = view["hosts"][i];
            CHECK(hosts[i].name == shown["name"].get<std::string>());
            CHECK(hosts[i].incarnation == shown["incarnation"]);
            CHECK(kStates[hosts[i].state] == shown["state"].get<std::string>());
            CHECK(((hosts[i].flags & FABRICSHM_HOST_SELF) != 0) == shown["self"]);
            CHECK(((hosts[i].flags & FABRICSHM_HOST_NEWEST) != 0) == shown["newest"]);
            CHECK(shown["fence"].get<std::string>().rfind(kFences[hosts[i].fence], 0) == 0);
            CHECK((hosts[i].fence == FABRICSHM_FENCE_NONE) ==
                  shown["fence"].get<std::string>().empty());
            if (hosts[i].state == FABRICSHM_HOST_LISTED) continue;
            const auto later = hosts[i].state_ms - shown["state_ms"].get<std::int64_t>();
            CHECK(later >= 0);
            CHECK(later < 10'000);
        }
    }
};

auto has_state(const std::string& name, const std::string& state) {
    return
        [name, state](const Json& view) { return host_in(view, name).value("state", "") == state; };
}

}  // namespace

TEST_SUITE("net.cluster.daemons") {
    TEST_CASE(
        "two daemons see each other; one that is stopped is lost, and comes back as another") {
        if (!test_support::has_etcd()) return;
        const EtcdProcesses etcd;
        const Daemon one(options_of(etcd, "a"));
        const Daemon two(options_of(etcd, "b"));
        const Json both = eventually(one, has_state("b", "up"));
        REQUIRE(both.is_object());
        CHECK(both["store"] == "etcd");
        CHECK(both["lease"] == "held");
        CHECK(both["admits"] == true);
        CHECK(host_in(both, "a")["self"] == true);
        const auto before = host_in(both, "b")["incarnation"].get<std::uint64_t>();

        // A session hears the same.
        LibrarySession library(one);
        library.check_against(hosts_of(one));
        auto session = test_support::WireClient::attach(one.socket()).value();
        const auto page = session.ask(proto::make_request(proto::Type::kHosts, 0)).value().hosts;
        REQUIRE(page.total == 2);
        CHECK(page.entries[0].flags == proto::kHostSelf);
        CHECK(std::string(page.entries[1].name) == "b");
        CHECK(page.entries[1].incarnation == before);
        CHECK(page.entries[1].state == proto::HostState::kUp);
        proto::Message same = proto::make_request(proto::Type::kHosts, 0);
        same.hosts.version = page.version;
        CHECK(session.ask(same).value().hosts.count == 0);

        ::kill(two.pid(), SIGSTOP);
        const Json gone = eventually(one, has_state("b", "lost"));
        CHECK(gone.is_object());
        library.check_against(hosts_of(one));
        CHECK(library.hosts[1].fence == FABRICSHM_FENCE_PERSON);
        const auto news = session.ask(same).value().hosts;
        CHECK(news.version > page.version);
        REQUIRE(news.count == 2);
        CHECK(news.entries[1].state == proto::HostState::kLost);

        // Its own clock has ended the lease: it ends what it has to, says so, and is a new
        // incarnation.
        ::kill(two.pid(), SIGCONT);
        const Json back = eventually(one, has_state("b", "up"));
        REQUIRE(back.is_object());
        CHECK(host_in(back, "b")["incarnation"].get<std::uint64_t>() > before);
        CHECK(incarnation_in(back, before)["state"] == "fenced");
        CHECK(incarnation_in(back, before)["fence"] == "self by b");
        library.check_against(back);
        CHECK(library.hosts[2].fence == FABRICSHM_FENCE_BY_SELF);
        CHECK(two.log().find("has ended") != std::string::npos);
    }

    TEST_CASE("a daemon that is killed and started again in time keeps its incarnation") {
        if (!test_support::has_etcd()) return;
        const EtcdProcesses etcd;
        const Daemon one(options_of(etcd, "a"));
        auto slow = options_of(etcd, "b");
        slow.back() = "--cluster-ttl=20s";
        Daemon two(slow);
        const Json both = eventually(one, has_state("b", "up"));
        REQUIRE(both.is_object());
        const auto before = host_in(both, "b")["incarnation"];
        two.kill();
        two.start();
        const Json again =
            eventually(two, [](const Json& view) { return view.value("lease", "") == "held"; });
        REQUIRE(again.is_object());
        CHECK(again["incarnation"] == before);
        CHECK(host_in(hosts_of(one), "b")["state"] == "up");

        // Ended without sessions, it leaves nothing to fence.
        two.stop();
        const Json left = eventually(one, has_state("b", "fenced"));
        REQUIRE(left.is_object());
        CHECK(host_in(left, "b")["fence"] == "left by b");
        LibrarySession(one).check_against(left);
    }

    TEST_CASE("a daemon whose name another one has shows no place as its own, and says so once") {
        if (!test_support::has_etcd()) return;
        const EtcdProcesses etcd;
        const Daemon one(options_of(etcd, "a"));
        REQUIRE(eventually(one, has_state("a", "up")).is_object());
        const Daemon two(options_of(etcd, "a"));
        // Refused more than once.
        const Json refused = eventually(two, [&](const Json& view) {
            return host_in(view, "a").value("state_ms", 0) > 3000 &&
                   !view["trouble"].get<std::string>().empty();
        });
        REQUIRE(refused.is_object());
        CHECK(refused["lease"] == "none");
        CHECK(host_in(refused, "a")["self"] == false);
        CHECK(host_in(hosts_of(one), "a")["self"] == true);
        const std::string log = two.log();
        const auto line = log.find("a host a is in the cluster");
        REQUIRE(line != std::string::npos);
        CHECK(log.find("a host a is in the cluster", line + 1) == std::string::npos);
    }

    TEST_CASE("a killed host is fenced by a person's word, and only by a confirmed one") {
        if (!test_support::has_etcd()) return;
        const EtcdProcesses etcd;
        const Daemon one(options_of(etcd, "a"));
        Daemon two(options_of(etcd, "b"));
        REQUIRE(eventually(one, has_state("b", "up")).is_object());
        CHECK(ctl(one, {"hosts", "fence", "b", "--confirmed"}).code == 1);
        CHECK(ctl(one, {"hosts", "fence", "nowhere", "--confirmed"}).code == 1);
        two.kill();
        const Json gone = eventually(one, has_state("b", "lost"));
        REQUIRE(gone.is_object());
        CHECK(host_in(gone, "b")["fence"] == "waits for a person");
        CHECK(ctl(one, {"hosts", "fence", "b"}).code == 2);
        CHECK(host_in(hosts_of(one), "b")["state"] == "lost");
        const auto done = ctl(one, {"hosts", "fence", "b", "--confirmed", "--json"});
        REQUIRE(done.code == 0);
        CHECK(host_in(Json::parse(done.out), "b")["fence"] == "operator by a");
        LibrarySession(one).check_against(Json::parse(done.out));
        const auto table = ctl(one, {"hosts"});
        CHECK(table.out.find("cluster test (etcd), host a, lease held") != std::string::npos);
        CHECK(table.out.find("operator by a") != std::string::npos);
    }

    TEST_CASE("a killed host is fenced by the command of one daemon, and others hear of it") {
        if (!test_support::has_etcd()) return;
        const EtcdProcesses etcd;
        const test_support::TemporaryDirectory folder;
        const std::string file = folder.file("fenced");
        auto with_command = options_of(etcd, "a");
        with_command.push_back("--cluster-fence-command=echo $FABRIC_FENCE_HOST >> " + file);
        const Daemon one(with_command);
        const Daemon watcher(options_of(etcd, "c"));
        Daemon two(options_of(etcd, "b"));
        REQUIRE(eventually(one, has_state("b", "up")).is_object());
        REQUIRE(eventually(watcher, has_state("b", "up")).is_object());
        two.kill();
        const Json gone = eventually(watcher, has_state("b", "fenced"));
        REQUIRE(gone.is_object());
        CHECK(host_in(gone, "b")["fence"] == "command by a");
        LibrarySession(watcher).check_against(gone);
        std::ifstream said(file);
        CHECK(std::string(std::istreambuf_iterator<char>(said), {}) == "b\n");
    }

    TEST_CASE(
        "without etcd a daemon serves its own host, calls none lost and makes nothing new over "
        "hosts") {
        if (!test_support::has_etcd()) return;
        EtcdProcesses etcd;
        const Daemon one(options_of(etcd, "a"));
        const Daemon two(options_of(etcd, "b"));
        REQUIRE(eventually(one, has_state("b", "up")).is_object());
        etcd.kill(0);
        const Json away =
            eventually(one, [](const Json& view) { return view.value("admits", true) == false; });
        REQUIRE(away.is_object());
        CHECK(host_in(away, "b")["state"] == "up");
        CHECK_FALSE(away["trouble"].get<std::string>().empty());
        CHECK(test_support::WireClient::attach(one.socket()).ok());
        // It comes back without its data: the records are written again, by hosts of before or
        // after.
        etcd.start(0, true);
        const Json again = eventually(one, [](const Json& view) {
            return view.value("admits", false) && host_in(view, "b").value("state", "") == "up";
        });
        CHECK(again.is_object());
    }

    TEST_CASE("a static list is shown as such, and no host of it is fenced") {
        const Daemon one({"--cluster-hosts=a,b", "--cluster-host-name=a"});
        const Json view =
            eventually(one, [](const Json& shown) { return shown.value("store", "") == "static"; });
        REQUIRE(view.is_object());
        CHECK(host_in(view, "a")["state"] == "listed");
        CHECK(host_in(view, "b")["state"] == "listed");
        CHECK(view["admits"] == true);
        LibrarySession(one).check_against(view);
        CHECK(ctl(one, {"hosts", "fence", "b", "--confirmed"}).code == 1);
    }

    TEST_CASE("a session of a daemon in no cluster hears of no hosts, and of wrong arguments") {
        const Daemon alone;
        LibrarySession library(alone);
        library.ask();
        CHECK(library.hosts.empty());
        CHECK(library.cluster.admits == 0);
        fabricshm_cluster& cluster = library.cluster;
        CHECK(fabricshm_session_hosts(library.session, nullptr, 0, &cluster) == FABRICSHM_OK);
        CHECK(fabricshm_session_hosts(library.session, nullptr, 1, &cluster) == FABRICSHM_EINVAL);
        CHECK(fabricshm_session_hosts(library.session, nullptr, -1, &cluster) == FABRICSHM_EINVAL);
        CHECK(fabricshm_session_hosts(library.session, nullptr, 0, nullptr) == FABRICSHM_EINVAL);
        CHECK(fabricshm_session_hosts(nullptr, nullptr, 0, &cluster) == FABRICSHM_EINVAL);
        cluster.struct_size = 8;
        CHECK(fabricshm_session_hosts(library.session, nullptr, 0, &cluster) == FABRICSHM_EINVAL);
    }
}
