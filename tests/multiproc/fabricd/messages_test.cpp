// What trainers and operators read when something is refused: what was wanted, what there is, which
// option it was, and what to do.

#include <doctest/doctest.h>
#include <fabricshm/fabricshm.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "libfabricshm/os/fd.hpp"
#include "tests/multiproc/fabricd/ctl.hpp"

using Daemon = test_support::ReadyDaemon;
using test_support::ctl;
using test_support::has;
using test_support::Output;

namespace {

struct Session {
    explicit Session(const Daemon& daemon, const char* device = nullptr) {
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = daemon.socket().c_str();
        options.device = device;
        code = fabricshm_session_open(&options, &session);
    }
    ~Session() {
        if (session != nullptr) fabricshm_session_close(session);
    }
    int arena(const char* name, std::uint64_t bytes, fabricshm_arena** made = nullptr) const {
        fabricshm_arena* arena = nullptr;
        return fabricshm_arena_open(session, name, bytes, 0, made != nullptr ? made : &arena);
    }
    int code = 0;
    fabricshm_session* session = nullptr;
};

std::string text() {
    return fabricshm_error_text();
}

std::string uid() {
    return std::to_string(::geteuid());
}

constexpr std::uint64_t kMiB = 1 << 20;

}  // namespace

TEST_SUITE("fabricd.messages") {
    TEST_CASE("an arena that does not fit hears of the pool, or of its own maximum") {
        const Daemon daemon({"--arena-max-bytes=300MiB", "--arena-default-bytes=2MiB"});
        const Session session(daemon);
        REQUIRE(session.code == FABRICSHM_OK);
        CHECK(session.arena("large", 280 * kMiB) == FABRICSHM_ENOMEM);
        CHECK_MESSAGE(has(text(), "arena 'large'"), text());
        CHECK_MESSAGE(has(text(), "wanted 280 MiB, the pool has 256 MiB free of 256 MiB"), text());
        CHECK_MESSAGE(has(text(), "pool.capacity"), text());
        CHECK(session.arena("larger", 301 * kMiB) == FABRICSHM_ENOMEM);
        CHECK_MESSAGE(has(text(),
                          "wanted 301 MiB, an arena may have 300 MiB at most "
                          "(arena.max_bytes)"),
                      text());
    }

    TEST_CASE("a quota names the user, what it holds and how the quota is changed") {
        const Daemon daemon({"--limits-user-quota=64MiB"});
        const Session session(daemon);
        CHECK(session.arena("job", 65 * kMiB) == FABRICSHM_ENOMEM);
        CHECK_MESSAGE(
            has(text(), "wanted 65 MiB, user " + uid() + " has 0 B of its quota of 64 MiB"),
            text());
        CHECK_MESSAGE(has(text(), "limits.user_quota, or fabricctl quota user:" + uid()), text());
    }

    TEST_CASE("memory that does not fit into the arena, and a count that is reached") {
        const Daemon daemon({"--limits-arenas-per-session=1"});
        const Session session(daemon);
        fabricshm_arena* arena = nullptr;
        REQUIRE(session.arena("job", kMiB, &arena) == FABRICSHM_OK);
        CHECK(fabricshm_alloc(arena, 2 * kMiB) == nullptr);
        CHECK_MESSAGE(has(text(), "wanted 2 MiB, arena 'job' has 1 MiB free of 1 MiB"), text());
        CHECK(session.arena("second", kMiB) == FABRICSHM_ENOMEM);
        CHECK_MESSAGE(has(text(),
                          "this session has 1 arenas, as many as it may "
                          "(limits.arenas_per_session)"),
                      text());
    }

    TEST_CASE("a device's quota and a device that there is not") {
        const Daemon plain;
        const std::string file = plain.folder() + "/d.toml";
        std::ofstream(file) << "[[device]]\nname = 'gpu0'\nkind = 'gpu'\ngflops = 1.0\n"
                               "memory = '64MiB'\nlink_gbytes_per_s = 1.0\nlink_latency = '1us'\n"
                               "vgpu_memory = '1MiB'\n";
        const Daemon daemon({"--devices-file=" + file});
        const Session session(daemon, "gpu0");
        REQUIRE_MESSAGE(session.code == FABRICSHM_OK, text());
        fabricshm_arena* arena = nullptr;
        REQUIRE(session.arena("job", 8 * kMiB, &arena) == FABRICSHM_OK);
        fabricshm_region region{};
        CHECK(fabricshm_region_create(arena, 2 * kMiB, &region) == FABRICSHM_ENOMEM);
        CHECK_MESSAGE(has(text(),
                          "wanted 2 MiB, device 'gpu0' has 0 B of its quota of 1 MiB in use "
                          "(fabricctl quota gpu0)"),
                      text());
        const Session wrong(daemon, "gpu7");
        CHECK(wrong.code == FABRICSHM_ENOENT);
        CHECK_MESSAGE(has(text(), "there is no device 'gpu7' in the device file"), text());
        const Output output = ctl(daemon, {"quota", "gpu7", "1M"});
        CHECK(output.code == 1);
        CHECK_MESSAGE(has(output.error, "there is no device 'gpu7'"), output.error);
        const Output more = ctl(daemon, {"quota", "gpu0", "65M"});
        CHECK_MESSAGE(has(more.error, "device 'gpu0' has 64 MiB of memory, less than 65 MiB"),
                      more.error);
    }

    TEST_CASE("while it drains, clients hear that and not of a live process") {
        const Daemon daemon;
        const Session before(daemon);
        REQUIRE(ctl(daemon, {"drain"}).code == 0);
        const Session session(daemon);
        CHECK(session.code == FABRICSHM_EBUSY);
        CHECK_MESSAGE(has(text(), "fabricd is draining and takes no new sessions"), text());
        CHECK(before.arena("job", kMiB) == FABRICSHM_EBUSY);
        CHECK_MESSAGE(has(text(), "fabricd is draining and takes no new arenas"), text());
    }

    TEST_CASE("fabricctl names what there is not") {
        const Daemon daemon;
        const auto refused = [&](std::vector<std::string> words, const std::string& part) {
            const Output output = ctl(daemon, std::move(words));
            CHECK(output.code != 0);
            CHECK_MESSAGE(has(output.error, part), output.error);
            CHECK_FALSE(has(output.error, "ask fabricd"));
        };
        refused({"quota", "user:nosuch", "1G"}, "there is no user 'nosuch' on this host");
        refused({"quota", "user:0", "1M"}, "a user's quota is 0, for none, or 2 MiB at least");
        refused({"regions", "--arena", "999"}, "there is no arena 999");
        refused({"vgpu-resize", "x", "1G"}, "there is no vGPU 'x'");
        refused({"vgpu-share", "x", "10"}, "there is no vGPU 'x'");
        refused({"statsu"}, "unknown command 'statsu' (did you mean status?)");
    }

    TEST_CASE("a connection that is closed unanswered is no absent daemon") {
        // As a daemon does that has no descriptor left.
        const Daemon plain;
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        const std::string path = plain.folder() + "/closing.sock";
        std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
        const fabricshm::Fd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
        REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
        REQUIRE(::listen(listener.get(), 1) == 0);
        std::thread closer([&] {
            // Until the session gives up, which asks again as after a restart.
            while (fabricshm::Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC))) {
            }
        });
        fabricshm_session_options options{};
        options.struct_size = sizeof options;
        options.socket = path.c_str();
        options.timeout_ms = 500;
        fabricshm_session* session = nullptr;
        CHECK(fabricshm_session_open(&options, &session) == FABRICSHM_EDAEMON);
        CHECK_MESSAGE(has(text(), "fabricd closed the connection unanswered"), text());
        ::shutdown(listener.get(), SHUT_RDWR);  // ends accept4()
        closer.join();
        options.socket = "/nonexistent/attach.sock";
        CHECK(fabricshm_session_open(&options, &session) == FABRICSHM_EDAEMON);
        CHECK_MESSAGE(has(text(), "no fabricd listens there: start it"), text());
    }

    TEST_CASE("a host without a place for one more session says how many it has") {
        const Daemon daemon({"--limits-sessions=1", "--limits-sessions-per-user=100"});
        // Sixteen beyond the limit are kept for root and the daemon's user, which this process is.
        std::vector<std::unique_ptr<Session>> admitted;
        for (int i = 0; i < 17; ++i) {
            admitted.push_back(std::make_unique<Session>(daemon));
            REQUIRE(admitted.back()->code == FABRICSHM_OK);
        }
        const Session last(daemon);
        CHECK(last.code == FABRICSHM_ENOMEM);
        CHECK_MESSAGE(has(text(), "this host has 17 sessions, as many as it may (limits.sessions)"),
                      text());
    }
}
