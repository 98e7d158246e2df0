// fabricctl against the real fabricd, with a real session in it.

#include <doctest/doctest.h>
#include <fabricshm/fabricshm.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "libfabricshm/base/version.hpp"
#include "tests/multiproc/fabricd/ctl.hpp"
#include "tests/support/children.hpp"
#include "tests/support/documented_fields.hpp"
#include "tests/support/program.hpp"

using nlohmann::json;
using Daemon = test_support::ReadyDaemon;
using test_support::ctl;
using test_support::has;
using test_support::Output;

namespace {

json ctl_json(const Daemon& daemon, std::vector<std::string> words) {
    words.push_back("--json");
    const Output output = ctl(daemon, words);
    REQUIRE(output.code == 0);
    return json::parse(output.out);
}

/// A session with an arena, a tensor and a group of one.
struct Job {
    /// `timeout_ms` of the session's calls; 0: the default.
    explicit Job(const Daemon& daemon, std::int64_t timeout_ms = 0) {
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = daemon.socket().c_str();
        options.label = "ctl-test";
        options.timeout_ms = timeout_ms;
        REQUIRE(fabricshm_session_open(&options, &session) == 0);
        REQUIRE(fabricshm_arena_open(session, "job", 8 << 20, 0, &arena) == 0);
        const std::int64_t shape[] = {100, 10};
        REQUIRE(fabricshm_tensor_create(arena, "weights", FABRICSHM_F32, 2, shape, &tensor) == 0);
        REQUIRE(fabricshm_group_join(arena, "world", 0, 1, 20000, &group) == 0);
    }
    ~Job() {
        fabricshm_group_leave(group);
        fabricshm_session_close(session);
    }

    fabricshm_session* session = nullptr;
    fabricshm_arena* arena = nullptr;
    fabricshm_tensor tensor{};
    fabricshm_group* group = nullptr;
};

/// fabricctl that goes on while the test does.
class Viewer {
  public:
    Viewer(const Daemon& daemon, const std::string& name, std::vector<std::string> words)
        : out_(daemon.folder() + "/" + name), program_([&] {
              words.insert(words.begin(), FABRICCTL_PATH);
              words.push_back("--socket=" + daemon.folder() + "/admin.sock");
              if (std::freopen(out_.c_str(), "w", stdout) == nullptr) return 90;
              if (std::freopen((out_ + ".err").c_str(), "w", stderr) == nullptr) return 91;
              std::vector<char*> arguments;
              for (std::string& word : words) arguments.push_back(word.data());
              arguments.push_back(nullptr);
              ::execv(FABRICCTL_PATH, arguments.data());
              return 92;
          }) {}

    std::string said() const { return text_of(out_) + text_of(out_ + ".err"); }
    void signal(int number) const { ::kill(program_.pid(), number); }
    int wait() { return program_.wait(); }

  private:
    static std::string text_of(const std::string& path) {
        std::ifstream file(path);
        return {std::istreambuf_iterator<char>(file), {}};
    }

    std::string out_;
    test_support::Child program_;
};

/// The picture of a dashboard that said where it is, and with which token; "": not yet.
std::string picture_of(const std::string& said) {
    const std::regex url("http://([0-9.]+):([0-9]+)/#t=(\\S+)\n");
    std::smatch found;
    if (!std::regex_search(said, found, url)) return "";
    const std::string host = found[1].str() + ":" + found[2].str();
    const std::string request = "GET /api/v1/picture HTTP/1.1\\r\\nHost: " + host +
                                "\\r\\nX-Fabric-Token: " + found[3].str() +
                                "\\r\\nConnection: close\\r\\n\\r\\n";
    return test_support::run_program({"/bin/bash", "-c",
                                      "exec 3<>/dev/tcp/" + found[1].str() + "/" + found[2].str() +
                                          " && printf '" + request + "' >&3 && cat <&3"})
        .out;
}

}  // namespace

TEST_SUITE("fabricd.ctl") {
    TEST_CASE("tune measures without a daemon and writes what the library reads") {
        const Daemon daemon;  // for its folder only
        const std::string file = daemon.folder() + "/tuning.conf";
        const Output output = test_support::run_program(
            {FABRICCTL_PATH, "tune", "--ranks", "2", "--quick", "--json", "--output", file});
        REQUIRE(output.code == 0);
        const json line = json::parse(output.out);
        CHECK(line["path"] == file);
        CHECK(has(line["tuning"]["2"], "2.flat_max_bytes = "));
        std::ifstream written(file);
        std::string first;
        CHECK(std::getline(written, first));
        const Output wrong = test_support::run_program({FABRICCTL_PATH, "tune", "--ranks", "1"});
        CHECK(wrong.code == 2);
        CHECK(has(wrong.error, "--ranks"));
    }

    TEST_CASE("doctor finds the daemon that runs, leaves no session, and names one that hangs") {
        const Daemon daemon;
        const auto check = [](const json& view, const std::string& name) {
            for (const json& row : view["checks"]) {
                if (row["check"] == name) return row;
            }
            return json();
        };
        // Its exit code is the host's, of which a test knows nothing.
        const Output well = ctl(daemon, {"doctor", "--json"});
        const json view = json::parse(well.out);
        CHECK(well.code == (view["ill"] == true ? 1 : 0));
        CHECK(check(view, "admin-socket")["grade"] == "ok");
        CHECK(check(view, "attach-socket")["grade"] == "ok");
        CHECK(has(check(view, "attach-socket")["finding"], "version 1 of the protocol"));
        CHECK(test_support::becomes_true(
            [&] { return has(ctl(daemon, {"events"}).out, "session 1 ends: goodbye"); }));
        CHECK(ctl_json(daemon, {"sessions"})["sessions"].empty());

        ::kill(daemon.pid(), SIGSTOP);
        ::waitpid(daemon.pid(), nullptr, WUNTRACED);
        const Output hangs = ctl(daemon, {"doctor", "--json"});
        const auto begin = std::chrono::steady_clock::now();
        const Output silent = ctl(daemon, {"status", "--timeout", "0.5"});
        const Output watched = ctl(daemon, {"top", "--timeout", "0.5"});
        CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
        ::kill(daemon.pid(), SIGCONT);
        for (const Output& output : {silent, watched}) {
            CHECK(output.code == 1);
            CHECK(
                has(output.error, "fabricd at " + daemon.folder() + "/admin.sock does not answer"));
            CHECK(has(output.error, "within 500 ms (--timeout)"));
        }
        CHECK(hangs.code == 1);
        CHECK(check(json::parse(hangs.out), "admin-socket")["grade"] == "problem");
        CHECK(has(check(json::parse(hangs.out), "attach-socket")["finding"], "no answer within"));
    }

    TEST_CASE("doctor needs no daemon, and says what is wrong with a configuration") {
        const Daemon daemon;  // for its folder only
        const std::string file = daemon.folder() + "/wrong.toml";
        std::ofstream(file) << "[pool]\nsize = 3\n";
        const std::string socket = "--socket=" + daemon.folder() + "/none/admin.sock";
        const Output wrong = test_support::run_program(
            {FABRICCTL_PATH, "doctor", "--json", "--config", file, socket});
        CHECK(wrong.code == 1);
        const json view = json::parse(wrong.out);
        CHECK(view["checks"][0]["grade"] == "problem");
        CHECK(has(view["checks"][0]["finding"], "wrong.toml:2"));
        CHECK(view["checks"][2]["grade"] == "note");
        const Output none =
            test_support::run_program({FABRICCTL_PATH, "doctor", "--config", file + ".not"});
        CHECK(none.code == 2);
        // What it names as the way to see the mistake says the same.
        const Output print =
            test_support::run_program({FABRICD_PATH, "--config=" + file, "--print-config"});
        CHECK(print.code == 2);
        CHECK(has(print.error, "wrong.toml:2"));
    }

    TEST_CASE("every view shows a job, to people and to programs") {
        const Daemon daemon;
        const Job job(daemon);

        const json status = ctl_json(daemon, {"status"})["status"];
        CHECK(status["pid"] == daemon.pid());
        CHECK(status["version"] == FABRIC_VERSION);
        CHECK(status["sessions"] == 1);
        CHECK(status["arenas"] == 1);
        CHECK(status["draining"] == false);
        CHECK(status["pool"]["backend"] == "emu");
        CHECK(status["pool"]["capacity_bytes"] == 256 << 20);
        CHECK(status["pool"]["used_bytes"] == 8 << 20);

        const json arena = ctl_json(daemon, {"arenas"})["arenas"].at(0);
        CHECK(arena["name"] == "job");
        CHECK(arena["bytes"] == 8 << 20);
        CHECK(arena["sessions"] == 1);
        const json session = ctl_json(daemon, {"sessions"})["sessions"].at(0);
        CHECK(session["label"] == "ctl-test");
        CHECK(session["connected"] == true);
        const json group = ctl_json(daemon, {"groups"})["groups"].at(0);
        CHECK(group["name"] == "world");
        CHECK(group["world"] == 1);
        CHECK(group["state"] == "complete");
        CHECK(ctl_json(daemon, {"pools"})["pools"].at(0)["used_bytes"] == 8 << 20);

        bool found = false;
        const json regions = ctl_json(daemon, {"regions"})["regions"];
        for (const json& region : regions) {
            found = found || region["tensor_name"] == "weights";
        }
        CHECK(found);
        const std::string id = std::to_string(arena["id"].get<std::uint64_t>());
        CHECK_FALSE(ctl_json(daemon, {"regions", "--arena", id})["regions"].empty());
        const auto none = ctl(daemon, {"regions", "--arena", "999999"});
        CHECK(none.code == 1);
        CHECK(has(none.error, "999999"));

        CHECK(has(ctl(daemon, {"status"}).out, "emu"));
        CHECK(has(ctl(daemon, {"arenas"}).out, "job"));
        CHECK(has(ctl(daemon, {"regions"}).out, "weights"));
        CHECK(has(ctl(daemon, {"sessions"}).out, "ctl-test"));
        CHECK(has(ctl(daemon, {"groups"}).out, "1/1"));
        CHECK(has(ctl(daemon, {"top", "--count", "1"}).out, "job"));
    }

    TEST_CASE("a device has the quota of its file, and shows the sessions that compute on it") {
        const Daemon folder;  // for its folder only
        const std::string file = folder.folder() + "/devices.toml";
        std::ofstream(file) << "[[device]]\nname = 'npu0'\nkind = 'npu'\ngflops = 3\n"
                               "memory = '1GiB'\nvgpu_memory = '1MiB'\nlink_gbytes_per_s = 8\n";
        const Output checked =
            test_support::run_program({FABRICCTL_PATH, "devices", "--json", "--file", file});
        CHECK(json::parse(checked.out)["devices"].at(0)["vgpu_memory_bytes"] == 1 << 20);

        const Daemon daemon({"--devices-file", file});
        CHECK(ctl_json(daemon, {"devices"})["devices"].at(0)["sessions"] == 0);
        // A user's quota of 0 is no limit; a device's is nothing.
        CHECK(has(ctl(daemon, {"quota", "npu0", "0"}).out, "npu0: 0 B, 0 B used"));
        CHECK(has(ctl(daemon, {"quota", "user:0", "0"}).out, "no limit"));
        CHECK(has(ctl(daemon, {"quota", "npu0", "1M"}).out, "npu0: 1 MiB"));
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = daemon.socket().c_str();
        options.device = "npu1";
        fabricshm_session* session = nullptr;
        CHECK(fabricshm_session_open(&options, &session) == FABRICSHM_ENOENT);
        CHECK(has(fabricshm_error_text(), "device 'npu1'"));
        options.device = "npu0";
        REQUIRE(fabricshm_session_open(&options, &session) == 0);
        fabricshm_arena* arena = nullptr;
        REQUIRE(fabricshm_arena_open(session, "job", 8 << 20, 0, &arena) == 0);
        fabricshm_region region;
        CHECK(fabricshm_region_create(arena, 2 << 20, &region) == FABRICSHM_ENOMEM);
        CHECK(has(fabricshm_error_text(), "arena 'job' on device 'npu0'"));
        CHECK(fabricshm_region_create(arena, 1 << 20, &region) == 0);
        const json device = ctl_json(daemon, {"devices"})["devices"].at(0);
        CHECK(device["sessions"] == 1);
        CHECK(device["bytes_used"] == 1 << 20);
        CHECK(ctl_json(daemon, {"sessions"})["sessions"].at(0)["device"] == "npu0");
        CHECK(has(ctl(daemon, {"devices"}).out, "attached"));
        fabricshm_session_close(session);
        ::setenv("FABRIC_DEVICE", "npu0", 1);
        options.device = nullptr;
        REQUIRE(fabricshm_session_open(&options, &session) == 0);
        ::unsetenv("FABRIC_DEVICE");
        CHECK(ctl_json(daemon, {"devices"})["devices"].at(0)["sessions"] == 1);
        fabricshm_session_close(session);
    }

    TEST_CASE("a mistake in a device file is one line and code 2") {
        const Daemon folder;  // for its folder only
        const std::string file = folder.folder() + "/devices.toml";
        std::ofstream(file) << "[[device]]\nname = 'npu0'\n";
        const Output output =
            test_support::run_program({FABRICCTL_PATH, "devices", "--file", file});
        CHECK(output.code == 2);
        CHECK(output.error == "fabricctl: --file: " + file + ":1: the device has no kind\n");
    }

    TEST_CASE("a watch gives one line of JSON per picture and ends after its count") {
        const Daemon daemon;
        const Output output = ctl(daemon, {"arenas", "--watch", "0.1", "--count", "3", "--json"});
        // Shards, which the daemon's watch does not carry, are watched like the others.
        const Output shards = ctl(daemon, {"shards", "--watch", "0.1", "--count", "2", "--json"});
        CHECK(std::count(shards.out.begin(), shards.out.end(), '\n') == 2);
        CHECK(output.code == 0);
        CHECK(output.out == "{\"arenas\":[]}\n{\"arenas\":[]}\n{\"arenas\":[]}\n");
    }

    TEST_CASE("while draining new sessions are refused, afterwards they are not") {
        const Daemon daemon;
        CHECK(ctl(daemon, {"drain"}).out == "fabricd is draining\n");
        CHECK(ctl_json(daemon, {"status"})["status"]["draining"] == true);
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = daemon.socket().c_str();
        fabricshm_session* session = nullptr;
        CHECK(fabricshm_session_open(&options, &session) == FABRICSHM_EBUSY);
        CHECK(ctl_json(daemon, {"drain", "--off"})["draining"] == false);
        CHECK(fabricshm_session_open(&options, &session) == 0);
        fabricshm_session_close(session);
    }

    TEST_CASE("a drain waits for sessions, counts them, and says when its time is over") {
        const Daemon daemon;
        {
            const Job job(daemon);
            const Output over = ctl(daemon, {"drain", "--wait", "0.1"});
            CHECK(over.code == 1);
            CHECK(has(over.error, "1 sessions left"));
        }
        const Output done = ctl(daemon, {"drain", "--wait", "60"});
        CHECK(done.code == 0);
        CHECK(has(done.error, "0 sessions left"));
    }

    TEST_CASE("shutdown ends the daemon, and then none answers: code 3") {
        Daemon daemon;
        CHECK(ctl(daemon, {"shutdown", "--wait", "60"}).out == "fabricd has ended\n");
        const Output gone = ctl(daemon, {"status"});
        CHECK(gone.code == 3);
        CHECK(has(gone.error, "fabricctl: no fabricd answers at " + daemon.folder() +
                                  "/admin.sock (start it, "));
        CHECK(gone.error.find('\n') == gone.error.size() - 1);
        CHECK(gone.out.empty());
        daemon.stop();
    }

    TEST_CASE("output that does not arrive is a failure, and one line says so") {
        const Daemon daemon;
        const std::string socket = " --socket " + daemon.folder() + "/admin.sock";
        for (const std::string& words :
             {"status" + socket, "sessions --json --watch 0.1" + socket, "health" + socket,
              std::string("env"), std::string("--help")}) {
            CAPTURE(words);
            const Output output = test_support::run_program(
                {"/bin/sh", "-c", std::string(FABRICCTL_PATH) + " " + words + " > /dev/full"});
            CHECK(output.code == 1);
            CHECK(has(output.error, "fabricctl: can't write all of the output"));
            CHECK(output.error.find('\n') == output.error.size() - 1);
        }
    }

    TEST_CASE("a path that no socket can have is named as that, and tune writes to no device") {
        const Output output = test_support::run_program(
            {FABRICCTL_PATH, "status", "--socket", std::string(200, 'x')});
        CHECK(output.code == 1);
        CHECK(has(output.error, "--socket: a path of 200 bytes is too long"));
        const Output tune = test_support::run_program(
            {FABRICCTL_PATH, "tune", "--ranks", "2", "--quick", "--output", "/dev/full"});
        CHECK(tune.code == 1);
        CHECK(tune.error == "fabricctl: tune: /dev/full is no plain file\n");
    }

    TEST_CASE("docs/fabricctl.md has each field of each command's JSON") {
        const Daemon daemon;
        const Job job(daemon);
        const std::string file = daemon.folder() + "/trace.json";
        const std::vector<std::vector<std::string>> commands = {
            {"status"},
            {"pools"},
            {"arenas"},
            {"regions"},
            {"sessions"},
            {"groups"},
            {"waiting"},
            {"devices"},
            {"shards"},
            {"health"},
            {"events"},
            {"decisions"},
            {"hosts"},
            {"vgpus"},
            {"inspect", "job"},
            {"top", "--count", "1"},
            {"trace", "--seconds", "0.01", "-o", file},
            {"drain"}};
        for (const auto& words : commands) {
            CAPTURE(words[0]);
            const json line = ctl_json(daemon, words);
            CHECK(test_support::undocumented(line, words[0]) == "");
        }
    }

    TEST_CASE("shutdown waits for the daemon's process, whatever watches it") {
        Daemon daemon;
        Viewer watch(daemon, "watch", {"sessions", "--watch", "60", "--json"});
        Viewer page(daemon, "page", {"dashboard", "--listen", "127.0.0.1:0"});
        REQUIRE(test_support::becomes_true([&] { return has(watch.said(), "sessions"); }));
        // It shows the daemon, and so has a watch open.
        const std::string shown = "\"pid\":" + std::to_string(daemon.pid());
        REQUIRE(test_support::becomes_true([&] { return has(picture_of(page.said()), shown); }));

        CHECK(ctl(daemon, {"shutdown", "--wait", "60"}).out == "fabricd has ended\n");
        siginfo_t ended{};
        CHECK(::waitid(P_PID, static_cast<id_t>(daemon.pid()), &ended,
                       WEXITED | WNOHANG | WNOWAIT) == 0);
        CHECK(ended.si_pid == daemon.pid());
        daemon.stop();  // reaps it
        // Its place is free, at once.
        daemon.start();
        daemon.await_ready(2);
        CHECK(watch.wait() == 3);
        page.signal(SIGINT);
        CHECK(page.wait() == 0);
    }

    TEST_CASE("each session's end is in the log or in a count, also when none follows") {
        const Daemon daemon;
        constexpr int kSessions = 200;
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = daemon.socket().c_str();
        for (int i = 0; i < kSessions; ++i) {
            fabricshm_session* session = nullptr;
            REQUIRE(fabricshm_session_open(&options, &session) == 0);
            fabricshm_session_close(session);
        }
        const std::regex ended("session [0-9]+ ends: |([0-9]+) ends of sessions were not logged");
        CHECK(test_support::becomes_true([&] {
            const std::string log = daemon.log();
            int known = 0;
            for (auto at = std::sregex_iterator(log.begin(), log.end(), ended);
                 at != std::sregex_iterator(); ++at) {
                known += (*at)[1].matched ? std::stoi((*at)[1]) : 1;
            }
            return known == kSessions;
        }));
    }

    TEST_CASE("a daemon that ends during a watch ends the watch with code 3") {
        Daemon daemon;
        // Its first picture is the sign that it watches; head then ends, and so the pipe.
        const Output output = test_support::run_program(
            {"/bin/sh", "-c",
             std::string(FABRICCTL_PATH) + " status --watch 0.1 --json --socket " +
                 daemon.folder() + "/admin.sock | { read line; kill -TERM " +
                 std::to_string(daemon.pid()) + "; cat > /dev/null; echo \"$line\"; }"});
        CHECK(output.code == 0);
        CHECK(json::parse(output.out)["status"]["pid"] == daemon.pid());
        CHECK(has(output.error, "no fabricd answers"));
        daemon.stop();
    }

    TEST_CASE("a daemon killed in the middle of a catalogue write keeps the arenas before it") {
        char device[] = "/tmp/fabric-dax-XXXXXX";
        const int fd = ::mkstemp(device);
        REQUIRE(::ftruncate(fd, 32 << 20) == 0);
        ::close(fd);
        // Formatting writes the catalogue twice and the job's arena once: the fourth is torn.
        ::setenv("FABRIC_FAULT", "dax.catalogue_torn:kill:4", 1);
        Daemon daemon({"--pool-backend=dax", "--pool-capacity=0",
                       std::string("--pool-dax-device=") + device});
        ::unsetenv("FABRIC_FAULT");
        // The call that finds the death waits so long for the daemon to come back.
        const Job job(daemon, 5000);
        static_cast<char*>(fabricshm_arena_base(job.arena))[8000000] = 42;
        fabricshm_arena* torn = nullptr;
        CHECK(fabricshm_arena_open(job.session, "torn", 4 << 20, 0, &torn) == FABRICSHM_EDAEMON);
        daemon.kill();  // reaps it
        daemon.start();
        daemon.await_ready(2);

        const json arenas = ctl_json(daemon, {"arenas"})["arenas"];
        REQUIRE(arenas.size() == 1);
        CHECK(arenas[0]["name"] == "job");
        CHECK(static_cast<char*>(fabricshm_arena_base(job.arena))[8000000] == 42);
        std::remove(device);
    }

    TEST_CASE("discover works without a daemon") {
        const Output text = test_support::run_program({FABRICCTL_PATH, "discover"});
        CHECK(text.code == 0);
        CHECK(has(text.out, "pool.backend = \"auto\" takes "));
        const Output output = test_support::run_program({FABRICCTL_PATH, "discover", "--json"});
        CHECK(json::parse(output.out)["choice"].contains("backend"));
    }

    TEST_CASE("the socket is found by the environment") {
        const Daemon daemon;
        const Output output = test_support::run_program(
            {FABRICCTL_PATH, "status"}, {{"FABRIC_ADMIN_SOCKET", daemon.folder() + "/admin.sock"}});
        CHECK(output.code == 0);
        CHECK(has(output.out, "serving"));
    }

    TEST_CASE("output that can't be written is a failure") {
        const Daemon daemon;
        const Output output =
            test_support::run_program({"/bin/sh", "-c",
                                       std::string(FABRICCTL_PATH) + " status --socket " +
                                           daemon.folder() + "/admin.sock > /dev/full"});
        CHECK(output.code == 1);
    }
}
