// fabricctl health, events, inspect and evict, and the log and metrics behind them.

#include <doctest/doctest.h>
#include <fabricshm/fabricshm.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "tests/multiproc/fabricd/ctl.hpp"
#include "tests/support/children.hpp"
#include "tests/support/job.hpp"
#include "tests/support/temporary_directory.hpp"

using Daemon = test_support::ReadyDaemon;
using nlohmann::json;
using test_support::becomes_true;
using test_support::ctl;
using test_support::has;
using test_support::Output;

namespace {

json ctl_json(const Daemon& daemon, std::vector<std::string> words) {
    words.push_back("--json");
    const Output output = ctl(daemon, words);
    REQUIRE_MESSAGE(output.code == 0, output.error);
    return json::parse(output.out);
}

/// A process with a session and the arena "job", which waits to be ended. With `ignores_term`
/// SIGTERM does not end it.
class Victim {
  public:
    Victim(const Daemon& daemon, bool ignores_term) {
        int ready[2];
        REQUIRE(::pipe(ready) == 0);
        pid_ = ::fork();
        if (pid_ == 0) live(daemon.socket(), ignores_term, ready[1]);
        ::close(ready[1]);
        char byte = 0;
        started = ::read(ready[0], &byte, 1) == 1;
        ::close(ready[0]);
    }
    ~Victim() {
        ::kill(pid_, SIGKILL);
        (void)status();
    }
    /// As waitpid() gives it.
    int status() {
        if (!status_) {
            int status = 0;
            ::waitpid(pid_, &status, 0);
            status_ = status;
        }
        return *status_;
    }
    pid_t pid() const { return pid_; }
    bool started = false;

  private:
    [[noreturn]] static void live(const std::string& socket, bool ignores_term, int ready) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        // The test program has a handler of its own.
        ::signal(SIGTERM, ignores_term ? SIG_IGN : SIG_DFL);
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = socket.c_str();
        options.label = "victim";
        fabricshm_session* session = nullptr;
        fabricshm_arena* arena = nullptr;
        const bool there = fabricshm_session_open(&options, &session) == 0 &&
                           fabricshm_arena_open(session, "job", 1 << 20, 0, &arena) == 0;
        if (!there || ::write(ready, "", 1) != 1) ::_exit(1);
        for (;;) ::pause();
    }
    pid_t pid_ = -1;
    std::optional<int> status_;
};

/// A rank of "world" that adds up 1000 floats, the last one when `go` is open.
int add_up(const std::string& socket, int rank, int world, const test_support::Gate& go) {
    const test_support::Job job(socket);
    fabricshm_group* group = nullptr;
    if (!job.ok || fabricshm_group_join(job.arena, "world", rank, world, 60'000, &group) != 0)
        return test_support::failed(1);
    if (rank == world - 1 && !go.wait()) return 2;
    std::vector<float> values(1000, 1.0F);
    if (fabricshm_allreduce(group, values.data(), values.data(), values.size(), FABRICSHM_F32,
                            FABRICSHM_SUM) != 0) {
        return test_support::failed(3);
    }
    // Stays until the list has been fetched once more: a page goes with its session.
    return go.wait(2) ? 0 : 4;
}

}  // namespace

TEST_SUITE("fabricd.operator") {
    TEST_CASE("waiting names the rank that is late, its process and the operation") {
        const Daemon daemon;
        test_support::Gate go;
        std::vector<test_support::Child> ranks;
        for (const int rank : {0, 1, 2}) {
            ranks.emplace_back([&, rank] { return add_up(daemon.socket(), rank, 3, go); });
        }
        json row;
        CHECK(becomes_true([&] {
            const json rows = ctl_json(daemon, {"waiting"})["waiting"];
            row = rows.empty() ? json() : rows.at(0);
            return rows.size() == 1 && row["operation"] != "join" &&
                   row["waiting_ranks"] == json{0, 1};
        }));
        CAPTURE(row.dump());
        CHECK(row["arena"] == "job");
        CHECK(row["group"] == "world");
        CHECK(row["world"] == 3);
        CHECK(row["operation"] == "allreduce");
        CHECK(row["bytes"] == 4000);
        CHECK(row["waited_ms"].get<int>() >= 2000);
        CHECK(row["late"].size() == 1);
        CHECK(row["late"][0]["rank"] == 2);
        CHECK(row["late"][0]["pid"] == ranks[2].pid());
        const std::string text = ctl(daemon, {"waiting"}).out;
        CHECK_MESSAGE(has(text, "allreduce"), text);
        CHECK_MESSAGE(has(text, "0-1"), text);
        go.open();
        CHECK(becomes_true([&] { return ctl_json(daemon, {"waiting"})["waiting"].empty(); }));
        go.open();
        for (auto& rank : ranks) CHECK(rank.wait() == 0);
    }

    TEST_CASE("health says that all is well, how long an answer takes, and what is not well") {
        const Daemon daemon;
        const Output well = ctl(daemon, {"health"});
        CHECK(well.code == 0);
        CHECK_MESSAGE(has(well.out, "ok: fabricd "), well.out);
        const json line = ctl_json(daemon, {"health"});
        CHECK(line["health"] == "ok");
        CHECK(line["round_trip_ms"].get<double>() > 0.0);
        CHECK(line["round_trip_ms"].get<double>() <= line["round_trip_most_ms"].get<double>());
        REQUIRE(ctl(daemon, {"drain"}).code == 0);
        const Output draining = ctl(daemon, {"health"});
        CHECK(draining.code == 1);
        CHECK(has(draining.out, "draining: fabricd "));
        CHECK(has(draining.error, "not well: draining"));
    }

    TEST_CASE("a disk that takes no pages of vGPUs keeps nothing but them from being served") {
        const test_support::TemporaryDirectory devices;
        const std::string file = devices.file("devices.toml");
        std::ofstream(file) << "[[device]]\nname = 'a'\nkind = 'gpu'\ngflops = 1000.0\n"
                               "memory = '1GiB'\nlink_gbytes_per_s = 50.0\ngpu = '0'\n"
                               "vgpu_memory = '256MiB'\n";
        Daemon daemon({"--devices-file=" + file});
        CHECK(ctl(daemon, {"health"}).code == 0);
        daemon.kill();
        // No folder can be made there: as on a disk that is read-only.
        const std::string folder = daemon.folder() + "/state/vgpu";
        std::filesystem::remove_all(folder);
        std::ofstream(folder) << "";
        daemon.start();
        daemon.await_ready(2);
        CHECK(has(daemon.log(), "no vGPUs until fabricd is started again"));
        const Output unwell = ctl(daemon, {"health"});
        CHECK(unwell.code == 1);
        CHECK_MESSAGE(has(unwell.out, "no vGPUs until"), unwell.out);
        CHECK(has(ctl(daemon, {"status"}).out, "ALARM"));
        CHECK(ctl_json(daemon, {"vgpus"})["vgpus"].empty());
        {
            const Victim client(daemon, false);
            CHECK(client.started);
        }
        std::filesystem::remove(folder);
        daemon.kill();
        daemon.start();
        daemon.await_ready(3);
        CHECK(ctl(daemon, {"health"}).code == 0);
    }

    TEST_CASE("events are the log's newest lines, with the caller of a drain") {
        const Daemon daemon;
        REQUIRE(ctl(daemon, {"drain"}).code == 0);
        const Output output = ctl(daemon, {"events", "--last", "3"});
        CHECK_MESSAGE(has(output.out, "info: audit: draining is on, asked by uid " +
                                          std::to_string(::getuid()) + ", pid "),
                      output.out);
        const json events = ctl_json(daemon, {"events", "--last", "0"})["events"];
        CHECK(events.at(0)["number"] == 1);
        CHECK(events.size() > 2);
        CHECK(ctl_json(daemon, {"events", "--last", "1"})["events"].size() == 1);
    }

    TEST_CASE("inspect shows what has an id or a name, and what belongs to it") {
        const Daemon daemon;
        const Victim victim(daemon, false);
        REQUIRE(victim.started);
        const json by_name = ctl_json(daemon, {"inspect", "job"})["inspect"];
        CHECK(by_name["arenas"].at(0)["name"] == "job");
        CHECK(by_name["sessions"].at(0)["label"] == "victim");
        const std::string pid = std::to_string(victim.pid());
        const json by_pid = ctl_json(daemon, {"inspect", pid})["inspect"];
        CHECK(by_pid["sessions"].at(0)["label"] == "victim");
        CHECK(by_pid["arenas"].at(0)["name"] == "job");
        CHECK(has(ctl(daemon, {"inspect", "victim"}).out, "victim"));
        const Output none = ctl(daemon, {"inspect", "nosuch"});
        CHECK(none.code == 1);
        CHECK(has(none.error, "nothing has the id or name 'nosuch'"));
    }

    TEST_CASE("evict ends the processes of an arena, and one that ignores SIGTERM by force") {
        const Daemon daemon;
        Victim first(daemon, false);
        REQUIRE(first.started);
        const Output output = ctl(daemon, {"evict", "arena:job"});
        CHECK_MESSAGE(output.code == 0, output.error);
        CHECK(has(output.out, "(pid " + std::to_string(first.pid()) + ", victim) has ended"));
        CHECK(WTERMSIG(first.status()) == SIGTERM);
        // Its memory is free when the command returns, or a moment later.
        CHECK(becomes_true([&] { return ctl_json(daemon, {"arenas"})["arenas"].empty(); }));

        Victim second(daemon, true);
        REQUIRE(second.started);
        const json session = ctl_json(daemon, {"sessions"})["sessions"].at(0);
        const std::string id = std::to_string(session["id"].get<std::uint64_t>());
        const json evicted = ctl_json(daemon, {"evict", id, "--grace", "0.05"})["evicted"];
        CHECK(evicted.at(0)["killed"] == true);
        CHECK(WTERMSIG(second.status()) == SIGKILL);
        CHECK(ctl_json(daemon, {"sessions"})["sessions"].empty());

        CHECK(has(ctl(daemon, {"evict", "7777"}).error, "there is no session '7777'"));
        CHECK(has(ctl(daemon, {"evict", "arena:none"}).error, "there is no arena 'none'"));
    }

    TEST_CASE("the log may be JSON, and names the user that asked for the end") {
        Daemon daemon({"--log-format=json"});
        REQUIRE(ctl(daemon, {"shutdown"}).code == 0);
        (void)daemon.stop();
        std::ifstream log(daemon.folder() + "/log");
        bool asked = false;
        for (std::string line; std::getline(log, line);) {
            const json object = json::parse(line, nullptr, false);
            REQUIRE_MESSAGE(object.is_object(), line);
            asked = asked || has(object["text"], "audit: shutdown, asked by uid ");
        }
        CHECK(asked);
    }

    TEST_CASE("env shows what fabricctl itself was given") {
        const Output output =
            test_support::run_program({FABRICCTL_PATH, "env"}, {{"FABRIC_TUNING", "/some/file"}});
        CHECK(output.code == 0);
        CHECK(has(output.out, "/some/file"));
    }
}
