// How the real fabricd starts, refuses to start, and ends.

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "libfabricshm/base/version.hpp"
#include "libfabricshm/os/fd.hpp"
#include "tests/multiproc/fabricd/ready.hpp"
#include "tests/support/program.hpp"

using test_support::becomes_true;
using Daemon = test_support::ReadyDaemon;
using test_support::has;
using test_support::Output;
using test_support::run_program;
namespace fs = std::filesystem;

namespace {

/// A folder of its own that goes with the test.
struct Folder {
    Folder() { REQUIRE(::mkdtemp(path) != nullptr); }
    ~Folder() { fs::remove_all(path); }
    std::string operator/(const std::string& name) const { return std::string(path) + "/" + name; }
    char path[32] = "/tmp/fabric-start-XXXXXX";
};

/// Runs fabricd with its sockets in `folder`; it is expected to end by itself.
Output fabricd(const Folder& folder, std::vector<std::string> words) {
    words.insert(words.begin(), {FABRICD_PATH, std::string("--server-runtime-dir=") + folder.path,
                                 "--pool-capacity=16MiB"});
    return run_program(words, {{"XDG_CONFIG_HOME", folder / "none"}});
}

void write_file(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
}

}  // namespace

TEST_SUITE("fabricd.start") {
    TEST_CASE("a device file with a mistake keeps it from starting, before there is a pool") {
        const Folder folder;
        const std::string file = folder / "d.toml";
        write_file(file, "[[device]]\nname = 'gpu0'\n");
        const Output output = fabricd(folder, {"--devices-file", file});
        CHECK(output.code == 2);
        CHECK(has(output.error, file + ":1: the device has no kind (devices.file)"));
    }

    TEST_CASE("help, version and the configuration are printed without starting anything") {
        const Folder folder;
        CHECK(has(fabricd(folder, {"--help"}).out, "--pool-capacity VALUE"));
        CHECK(fabricd(folder, {"--version"}).out ==
              std::string("fabricd ") + FABRIC_VERSION + "\n");
        const Output printed = fabricd(folder, {"--print-config", "--log-level", "debug"});
        CHECK(printed.code == 0);
        CHECK(has(printed.out, "[pool]\n"));
        CHECK(has(printed.out, "level = \"debug\""));
        write_file(folder / "f.toml", printed.out);
        CHECK(fabricd(folder, {"--print-config", "--config", folder / "f.toml"}).out ==
              printed.out);
    }

    TEST_CASE("a mistake in the configuration is one line that names it, and exit code 2") {
        const Folder folder;
        const std::string file = folder / "f.toml";
        const auto refused = [&](const std::string& toml, const std::string& part) {
            write_file(file, toml);
            const Output output = fabricd(folder, {"--config", file});
            CAPTURE(output.error);
            CHECK(output.code == 2);
            CHECK(has(output.error, "fabricd: " + file + part));
            CHECK(output.error.find('\n') == output.error.size() - 1);
        };
        refused("[pool]\ncapacty = 1\n",
                ":2: unknown key \"pool.capacty\" (did you mean pool.capacity?)");
        refused("\n[pol]\n", ":2: unknown key \"pol\" (did you mean pool?)");
        refused("[log]\nlevel = 'loud'\n", ":2: bad value \"loud\" for log.level");
        refused("[log\n", ":1: ");
        fs::create_directory(folder / "d");
        const Output directory = fabricd(folder, {"--config", folder / "d"});
        CHECK(directory.code == 2);
        CHECK(has(directory.error, folder / "d: is a folder, wanted a file"));
        const Output option = fabricd(folder, {"--pool-numa-node=9999"});
        CHECK(option.code == 2);
        CHECK(has(option.error, "--pool-numa-node: bad value \"9999\""));
        CHECK(fabricd(folder, {"--no-such-option"}).code == 2);
    }

    TEST_CASE("what the host does not have is one line that names the key, and exit code 2") {
        const Folder folder;
        const auto refused = [&](std::vector<std::string> words, const std::string& part) {
            const Output output = fabricd(folder, std::move(words));
            CAPTURE(output.error);
            CHECK(output.code == 2);
            CHECK(has(output.error, part));
            CHECK_FALSE(fs::exists(folder / "attach.sock"));
        };
        refused({"--pool-backend=emu", "--pool-capacity=60TiB"}, "pool.capacity");
        refused({"--pool-backend=numa", "--pool-numa-node=1000"}, "pool.numa_node");
        refused({"--pool-backend=dax", "--pool-dax-device=/dev/null"}, "pool.dax_device");
        refused({"--log-file=/nowhere/log"}, "log.file");
        REQUIRE(::mkdir((folder / "open").c_str(), 0700) == 0);
        REQUIRE(::chmod((folder / "open").c_str(), 01777) == 0);
        refused({"--state-dir=" + (folder / "open")}, "writable by all users");
        refused({"--server-socket-group=no-such-group"},
                "fabricd: there is no group 'no-such-group' on this host (server.socket_group)");
        refused({"--server-admin-socket=/nowhere/admin.sock"}, "server.admin_socket");
    }

    TEST_CASE("what the host fails ends the start with code 1, after which systemd tries again") {
        const Folder folder;
        // All of the host's memory: there is so much, but some of it is always in use.
        const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
        const std::uint64_t bytes = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
        const Output output = run_program(
            {FABRICD_PATH, std::string("--server-runtime-dir=") + folder.path, "--pool-backend=emu",
             "--pool-huge-pages=off", "--pool-capacity=" + std::to_string(bytes)},
            {{"XDG_CONFIG_HOME", folder / "none"}});
        CAPTURE(output.error);
        CHECK(output.code == 1);
        CHECK(has(output.error, "pool.capacity"));
    }

    TEST_CASE("a damaged journal is kept and a new one begun, or refused where the key says so") {
        Daemon daemon;
        daemon.kill();
        const std::string journal = daemon.folder() + "/state/journal";
        REQUIRE(fs::exists(journal));
        fs::resize_file(journal, fs::file_size(journal) - 1);
        const Output refused = run_program({FABRICD_PATH, "--server-runtime-dir=" + daemon.folder(),
                                            "--pool-backend=emu", "--pool-capacity=16MiB",
                                            "--state-damaged-journal=refuse"});
        CAPTURE(refused.error);
        CHECK(refused.code == 2);
        CHECK(has(refused.error, "the journal is damaged (state.damaged_journal)"));
        CHECK(fs::exists(journal));
        daemon.start();
        daemon.await_ready(2);
        CHECK(has(daemon.log(), "the file ends too early"));
        CHECK(has(daemon.log(), "1 of 1 records can't be believed"));
        CHECK(fs::exists(journal + ".bad"));
        CHECK(daemon.stop() == 0);
    }

    TEST_CASE("a second daemon is refused and leaves the first alone") {
        const Daemon daemon;
        const Output second = run_program({FABRICD_PATH, "--server-runtime-dir=" + daemon.folder(),
                                           "--pool-backend=emu", "--pool-capacity=16MiB"});
        CHECK(second.code == 2);
        CHECK(has(second.error, "another fabricd serves " + daemon.socket()));
        CHECK(run_program({FABRICCTL_PATH, "status", "--socket", daemon.folder() + "/admin.sock"})
                  .code == 0);
    }
}

TEST_SUITE("fabricd.start end") {
    TEST_CASE("SIGTERM and SIGINT end it with code 0 and remove its sockets") {
        for (const int number : {SIGTERM, SIGINT}) {
            Daemon daemon;
            struct stat status {};
            REQUIRE(::stat((daemon.folder() + "/admin.sock").c_str(), &status) == 0);
            CHECK((status.st_mode & 0777) == 0600);
            ::kill(daemon.pid(), number);
            CHECK(daemon.stop() == 0);
            CHECK_FALSE(fs::exists(daemon.socket()));
            CHECK_FALSE(fs::exists(daemon.folder() + "/admin.sock"));
            CHECK(has(daemon.log(), "stopping"));
        }
    }

    TEST_CASE("after SIGKILL the next daemon takes the place") {
        Daemon daemon;
        daemon.kill();
        CHECK(fs::exists(daemon.folder() + "/admin.sock"));
        daemon.start();
        daemon.await_ready(2);
        CHECK(run_program({FABRICCTL_PATH, "status", "--socket", daemon.folder() + "/admin.sock"})
                  .code == 0);
        CHECK(daemon.stop() == 0);
    }

    TEST_CASE("SIGHUP opens the log file again and takes the level from the file") {
        Daemon daemon({"--config=/dev/null"});
        const std::string log = daemon.folder() + "/log";
        fs::rename(log, log + ".1");
        ::kill(daemon.pid(), SIGHUP);
        CHECK(becomes_true([&] { return has(daemon.log(), "reloaded: log level debug"); }));
        CHECK_FALSE(has(daemon.log(), "waits for a restart"));
    }

    TEST_CASE("SIGHUP says which of the changed keys wait for a restart") {
        const Folder folder;
        const std::string file = folder / "f.toml";
        write_file(file, "[limits]\nsessions = 7\n");
        Daemon daemon({"--config=" + file});
        write_file(file, "[limits]\nsessions = 8\n[arena]\nmax_bytes = '1GiB'\n");
        ::kill(daemon.pid(), SIGHUP);
        CHECK(becomes_true([&] {
            return has(daemon.log(),
                       "waits for a restart: arena.max_bytes (0, now 1GiB), "
                       "limits.sessions (7, now 8)\n");
        }));
    }

    TEST_CASE("users that are admitted and can't open the socket are a warning") {
        const Daemon closed({"--server-allow-uids=4000000001"});
        CHECK(has(closed.log(), "server.allow_uids names users that can't open the socket"));
        const Daemon open({"--server-allow-uids=4000000001", "--server-socket-mode=0666"});
        CHECK_FALSE(has(open.log(), "can't open the socket"));
    }
}

TEST_SUITE("fabricd.start systemd") {
    TEST_CASE("it says when it is ready, that it lives, and that it ends") {
        const Folder folder;
        const fabricshm::Fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strcpy(address.sun_path, (folder / "notify").c_str());
        REQUIRE(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
        timeval timeout{30, 0};
        ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
        const auto next = [&] {
            char text[256];
            const ssize_t got = ::recv(socket.get(), text, sizeof text, 0);
            return got > 0 ? std::string(text, static_cast<std::size_t>(got)) : "nothing came";
        };
        ::setenv("NOTIFY_SOCKET", address.sun_path, 1);
        ::setenv("WATCHDOG_USEC", "300000", 1);
        Daemon daemon;
        ::unsetenv("NOTIFY_SOCKET");
        ::unsetenv("WATCHDOG_USEC");
        CHECK(has(next(), "READY=1\nSTATUS=Serving " + daemon.socket()));
        for (int i = 0; i < 3; ++i) CHECK(next() == "WATCHDOG=1");
        // Heard while it ends: the queue may be full of its signs of life.
        ::kill(daemon.pid(), SIGTERM);
        std::string last = next();
        while (last == "WATCHDOG=1") last = next();
        CHECK(last == "STOPPING=1");
        CHECK(daemon.stop() == 0);
    }

    TEST_CASE("the shipped units are such as systemd accepts") {
        if (!fs::exists("/usr/bin/systemd-analyze")) return;
        const Folder folder;
        const std::string units = fs::path(FABRICD_UNIT).parent_path();
        for (const std::string name :
             {"fabricd.service", "fabric-data.service", "fabric-dashboard.service",
              "fabric-metrics-bridge.service"}) {
            std::ifstream unit(units + "/" + name);
            std::ofstream copy(folder / name);
            int lines = 0;
            for (std::string line; std::getline(unit, line); ++lines) {
                // Manual and program are not installed where the unit expects them.
                if (line.rfind("Documentation=", 0) == 0) continue;
                const bool is_start = line.rfind("ExecStart=", 0) == 0;
                copy << (is_start ? std::string("ExecStart=") + FABRICD_PATH : line) << '\n';
            }
            copy.close();
            CHECK(lines > 40);
            const Output output =
                run_program({"/usr/bin/systemd-analyze", "verify", folder / name});
            CAPTURE(output.error);
            CHECK(output.code == 0);
            CHECK_FALSE(has(output.error, "Unknown"));
        }
    }
}

TEST_SUITE("fabricd.start dax") {
    TEST_CASE("a stand-in device is formatted once, refused when it holds other data") {
        const Folder folder;
        const std::string device = folder / "device";
        write_file(device, "something else");
        fs::resize_file(device, 16 << 20);
        const Output refused = fabricd(
            folder, {"--pool-backend=dax", "--pool-dax-device=" + device, "--pool-capacity=0"});
        CHECK(refused.code == 2);
        CHECK(has(refused.error, "holds other data"));

        const std::vector<std::string> dax = {"--pool-backend=dax", "--pool-capacity=0",
                                              "--pool-dax-device=" + device};
        auto format = dax;
        format.push_back("--format");
        { const Daemon daemon(format); }
        Daemon daemon(dax);
        CHECK_FALSE(has(daemon.log().substr(daemon.log().rfind("pool dax")), "formatted"));
        const Output status =
            run_program({FABRICCTL_PATH, "status", "--socket", daemon.folder() + "/admin.sock"});
        CHECK(has(status.out, "UUID"));
    }

    TEST_CASE("a pool over two stand-ins starts again with both, and names the one that is wrong") {
        const Folder folder;
        for (const char* name : {"one", "two", "blank"}) {
            write_file(folder / name, "");
            fs::resize_file(folder / name, 16 << 20);
        }
        const auto dax = [&](const std::string& devices) {
            return std::vector<std::string>{"--pool-backend=dax", "--pool-capacity=0",
                                            "--pool-dax-devices=" + devices};
        };
        const std::string one = folder / "one";
        const std::string two = folder / "two";
        { const Daemon daemon(dax(one + "," + two)); }
        {
            Daemon daemon(dax(one + "," + two));
            CHECK_FALSE(has(daemon.log().substr(daemon.log().rfind("pool dax")), "formatted"));
            const Output status = run_program(
                {FABRICCTL_PATH, "status", "--socket", daemon.folder() + "/admin.sock"});
            CHECK(has(status.out, one + ", " + two));
            CHECK(has(status.out, "stripes of 2 MiB"));
        }
        const auto refused = [&](const std::string& devices) {
            const Output output = fabricd(folder, dax(devices));
            CHECK(output.code == 2);
            return output.error;
        };
        CHECK(has(refused(two + "," + one), two + " is device 2 of 2"));
        CHECK(has(refused(one), one + " is device 1 of 2"));
        CHECK(has(refused(one + "," + (folder / "blank")), "blank has no label"));
        CHECK(has(refused(one + "," + two + "," + (folder / "blank")), "and 3 are named"));
    }

    TEST_CASE("a dax pool for several users has to be asked for") {
        const Folder folder;
        const Output output = fabricd(folder, {"--pool-backend=dax", "--server-allow-uids=1,2"});
        CHECK(output.code == 2);
        CHECK(has(output.error, "pool.dax_trust_users"));
    }
}
