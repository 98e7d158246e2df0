#include "libfabricshm/client/session.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>
#include <vector>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/client/fork_guard.hpp"
#include "libfabricshm/os/poison.hpp"
#include "libfabricshm/proto/codec.hpp"
#include "tests/support/fake_daemon.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;
using proto::Message;
using proto::Type;
using test_support::FakeDaemon;

namespace {

TimePoint soon() {
    return Clock::now() + 30s;
}

std::shared_ptr<Session> attach(const FakeDaemon& daemon, Duration timeout = 30s) {
    SessionOptions options;
    options.sockets = {daemon.path()};
    options.timeout = timeout;
    options.label = "test";
    return Session::open(options).value();
}

/// Made before any thread logs, and the last to go.
class CountedWarnings {
  public:
    CountedWarnings() {
        count_ = 0;
        set_log_sink([](LogLevel level, const char*) { count_ += level == LogLevel::kWarning; });
    }
    ~CountedWarnings() { set_log_sink(nullptr); }
    CountedWarnings(const CountedWarnings&) = delete;
    CountedWarnings& operator=(const CountedWarnings&) = delete;

    int count() const { return count_; }

  private:
    static inline std::atomic<int> count_ = 0;
};

Message arena_request(const char* name) {
    Message request = proto::make_request(Type::kArenaOpen, 0);
    REQUIRE(proto::set_name(request.arena_open.name, name, "name").ok());
    return request;
}

std::uint64_t open_arena(Session& session, const char* name = "job") {
    const auto reply = session.call(arena_request(name), "open arena", soon(), Retry::kHarmless);
    return reply.value().arena_open.arena_id;
}

Message region_request(Type type, std::uint64_t arena, std::uint64_t region, Bytes bytes) {
    Message request = proto::make_request(type, 0);
    request.region = {arena, region, 0, 0, bytes};
    return request;
}

Result<Message> create_region(Session& session, std::uint64_t arena, TimePoint deadline) {
    return session.call(region_request(Type::kRegionCreate, arena, 0, 4096), "create region",
                        deadline, Retry::kNever);
}

}  // namespace

TEST_SUITE("client.session") {
    TEST_CASE("no daemon listening is kDaemon, and the daemon's refusal is its own") {
        SessionOptions options;
        options.sockets = {"/nonexistent/a", "/nonexistent/b"};
        CHECK(Session::open(options).error().code == Errc::kDaemon);

        FakeDaemon daemon;
        options.sockets = {"/nonexistent/a", daemon.path()};
        for (const Errc code : {Errc::kDenied, Errc::kVersion, Errc::kBusy}) {
            daemon.refuse_next(Type::kHello, {code, 0, ""});
            CHECK(Session::open(options).error().code == code);
        }
        CHECK(Session::open(options).ok());
    }

    TEST_CASE("requests of many threads each get their own answer") {
        FakeDaemon daemon;
        const auto session = attach(daemon);
        const std::uint64_t arena = open_arena(*session);
        CHECK(session->known_arena(arena).descriptor != nullptr);
        CHECK(session->known_arena(arena + 1).descriptor == nullptr);
        std::vector<std::thread> threads;
        std::vector<int> wrong(4, 0);
        for (int& errors : wrong) {
            threads.emplace_back([&] {
                for (int i = 0; i < 50; ++i) {
                    const auto made = create_region(*session, arena, soon());
                    if (!made.ok()) {
                        ++errors;
                        continue;
                    }
                    const auto id = made.value().region.region_id;
                    const auto found =
                        session->call(region_request(Type::kRegionOpen, arena, id, 0), "open",
                                      soon(), Retry::kHarmless);
                    const auto freed =
                        session->call(region_request(Type::kRegionFree, arena, id, 0), "free",
                                      soon(), Retry::kNever);
                    if (!found.ok() || found.value().region.region_id != id || !freed.ok())
                        ++errors;
                }
            });
        }
        for (auto& thread : threads) thread.join();
        CHECK(wrong == std::vector<int>(4, 0));
        CHECK(daemon.regions() == 0);
    }

    TEST_CASE("an error of the daemon comes back with its code and detail") {
        FakeDaemon daemon;
        const auto session = attach(daemon);
        const std::uint64_t arena = open_arena(*session);
        daemon.refuse_next(Type::kRegionCreate, {Errc::kPeer, 7, ""});
        const Error error = create_region(*session, arena, soon()).error();
        CHECK(error.code == Errc::kPeer);
        CHECK(error.detail == 7);
        CHECK(std::string(error.step) == "create region");
    }

    TEST_CASE("after a restart the session goes on as the same one and shows its arenas") {
        FakeDaemon daemon;
        const auto session = attach(daemon);
        const auto before = session->identity();
        const std::uint64_t arena = open_arena(*session, "one");
        open_arena(*session, "two");
        daemon.die();
        daemon.come_back();
        CHECK(create_region(*session, arena, soon()).ok());
        CHECK(daemon.count(Type::kArenaAdopt) == 2);
        CHECK(session->identity().id == before.id);
        CHECK(session->identity().daemon_epoch == before.daemon_epoch + 1);
    }

    TEST_CASE("a loss that is reported while arenas are presented is learnt, and none refused") {
        const CountedWarnings warnings;
        FakeDaemon daemon;
        const auto session = attach(daemon);
        const std::uint64_t arena = open_arena(*session, "one");
        const std::uint64_t other = open_arena(*session, "two");
        constexpr Bytes kWatched = 16384;
        const auto memory = std::make_unique<std::byte[]>(kWatched);
        const auto watch =
            std::make_shared<PoisonWatch>(memory.get(), kWatched, PoisonWatch::Source{nullptr});
        session->watch_losses(arena, watch);
        daemon.die();
        daemon.lose_before_next(Type::kArenaAdopt, {arena, 7, 1, 8192, 4096});
        daemon.come_back();
        CHECK(create_region(*session, other, soon()).ok());
        CHECK(warnings.count() == 0);
        CHECK(daemon.count(Type::kArenaAdopt) == 2);
        const auto lost = watch->lost();
        REQUIRE(lost.size() == 1);
        CHECK(lost[0].offset == 8192);
        CHECK(lost[0].bytes == 4096);
    }

    TEST_CASE("a harmless call in flight is asked again, one that makes something fails") {
        FakeDaemon daemon;
        const auto session = attach(daemon);
        const std::uint64_t arena = open_arena(*session);
        const auto made = create_region(*session, arena, soon()).value().region.region_id;
        daemon.be_silent(Type::kRegionOpen);
        daemon.be_silent(Type::kRegionCreate);
        Errc opened = Errc::kInternal, created = Errc::kInternal;
        std::thread opener([&] {
            opened = session->call(region_request(Type::kRegionOpen, arena, made, 0), "open",
                                   soon(), Retry::kHarmless)
                             .ok()
                         ? Errc::kOk
                         : Errc::kDaemon;
        });
        std::thread maker([&] { created = create_region(*session, arena, soon()).error().code; });
        REQUIRE(daemon.wait_for(Type::kRegionOpen, 1));
        REQUIRE(daemon.wait_for(Type::kRegionCreate, 2));
        daemon.die();
        maker.join();
        CHECK(created == Errc::kDaemon);
        daemon.speak();
        daemon.come_back();
        opener.join();
        CHECK(opened == Errc::kOk);
    }

    TEST_CASE("a call made while the daemon is away ends at its deadline or with its return") {
        FakeDaemon daemon;
        const auto session = attach(daemon);
        const std::uint64_t arena = open_arena(*session);
        daemon.die();
        while (session->connected()) std::this_thread::yield();
        CHECK(create_region(*session, arena, Clock::now() + 20ms).error().code == Errc::kDaemon);
        Errc created = Errc::kInternal;
        std::thread maker([&] {
            created = create_region(*session, arena, soon()).ok() ? Errc::kOk : Errc::kDaemon;
        });
        daemon.come_back();
        maker.join();
        CHECK(created == Errc::kOk);
    }

    TEST_CASE("a silent daemon is kDaemon, and what it gives too late goes back") {
        FakeDaemon daemon;
        const auto session = attach(daemon);
        const std::uint64_t arena = open_arena(*session);
        daemon.be_silent(Type::kRegionCreate);
        CHECK(create_region(*session, arena, Clock::now() + 20ms).error().code == Errc::kDaemon);
        daemon.answer_late();
        CHECK(daemon.wait_for(Type::kRegionFree, 1));
        CHECK(daemon.last(Type::kRegionFree).region.arena_id == arena);
    }

    TEST_CASE("a wait in the daemon gets the time that is left, and its timeout is the daemon's") {
        FakeDaemon daemon;
        const auto session = attach(daemon);
        Message request = proto::make_request(Type::kTensorOpen, 0);
        request.tensor.region.arena_id = open_arena(*session);
        REQUIRE(proto::set_name(request.tensor.name, "never", "name").ok());
        const auto late =
            session->call(request, "open tensor", Clock::now() + 50ms, Retry::kHarmless);
        CHECK(late.error().code == Errc::kTimeout);
        CHECK(daemon.last(Type::kTensorOpen).tensor.timeout_ms <= 50);
    }

    TEST_CASE("closing ends the calls in flight, in the daemon's presence and absence") {
        FakeDaemon daemon;
        for (const bool away : {false, true}) {
            const auto session = attach(daemon);
            const std::uint64_t arena = open_arena(*session);
            daemon.be_silent(Type::kRegionCreate);
            const int before = daemon.count(Type::kRegionCreate);
            Errc seen = Errc::kOk;
            if (away) daemon.die();
            while (away && session->connected()) std::this_thread::yield();
            std::thread caller([&] { seen = create_region(*session, arena, soon()).error().code; });
            if (!away) REQUIRE(daemon.wait_for(Type::kRegionCreate, before + 1));
            session->close();
            caller.join();
            CHECK(seen == Errc::kClosed);
            CHECK(create_region(*session, arena, soon()).error().code == Errc::kClosed);
        }
    }

    TEST_CASE("a daemon that lost its memory gets a new session without the old arenas") {
        FakeDaemon daemon;
        const auto session = attach(daemon);
        const std::uint64_t arena = open_arena(*session);
        const auto before = session->identity().id;
        daemon.die();
        daemon.forget_everything();
        daemon.come_back();
        CHECK(create_region(*session, arena, soon()).error().code == Errc::kNotFound);
        CHECK(session->identity().id != before);
        CHECK(session->known_arena(arena).descriptor == nullptr);
        CHECK(daemon.count(Type::kArenaAdopt) == 0);
        CHECK(open_arena(*session) != arena);
    }

    TEST_CASE("what was posted while the daemon was away arrives after its return") {
        FakeDaemon daemon;
        const auto session = attach(daemon);
        const std::uint64_t arena = open_arena(*session);
        daemon.die();
        while (session->connected()) std::this_thread::yield();
        session->post(region_request(Type::kRegionFree, arena, 9, 0));
        CHECK(daemon.count(Type::kRegionFree) == 0);
        daemon.come_back();
        CHECK(daemon.wait_for(Type::kRegionFree, 1));
    }

    TEST_CASE("more than fits into the socket is posted once each, away or not") {
        constexpr int kPosts = 3000;
        const auto post_all = [](Session& session, std::uint64_t arena) {
            for (int i = 0; i < kPosts; ++i) {
                session.post(region_request(Type::kRegionFree, arena, 9, 0));
            }
        };
        FakeDaemon daemon;
        const auto session = attach(daemon);
        const std::uint64_t arena = open_arena(*session);
        daemon.stop_reading(true);
        post_all(*session, arena);
        daemon.stop_reading(false);
        // Answered after all that was posted before it.
        CHECK(create_region(*session, arena, soon()).ok());
        CHECK(daemon.count(Type::kRegionFree) == kPosts);
        daemon.die();
        while (session->connected()) std::this_thread::yield();
        post_all(*session, arena);
        daemon.come_back();
        CHECK(create_region(*session, arena, soon()).ok());
        CHECK(daemon.count(Type::kRegionFree) == 2 * kPosts);
    }

    TEST_CASE("a forked child can't use the session and does not keep its connection open") {
        FakeDaemon daemon;
        const auto session = attach(daemon);
        const std::uint64_t arena = open_arena(*session);
        int gate[2];
        REQUIRE(::pipe(gate) == 0);
        const pid_t child = ::fork();
        if (child == 0) {
            const bool closed =
                create_region(*session, arena, soon()).error().code == Errc::kClosed;
            session->close();
            char byte = closed ? 'y' : 'n';
            [[maybe_unused]] const ssize_t written = ::write(gate[1], &byte, 1);
            for (;;) ::pause();
        }
        char answer = 0;
        REQUIRE(::read(gate[0], &answer, 1) == 1);
        CHECK(answer == 'y');
        CHECK(create_region(*session, arena, soon()).ok());
        // The child still lives: the daemon sees the end only if it has no copy of the socket.
        session->close();
        const auto deadline = soon();
        while (daemon.connections() != 0 && Clock::now() < deadline) std::this_thread::yield();
        CHECK(daemon.connections() == 0);
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
        ::close(gate[0]);
        ::close(gate[1]);
    }

    TEST_CASE("an arena's closing that a daemon did not answer is sent to the next one, once") {
        FakeDaemon daemon;
        const auto session = attach(daemon);
        const std::uint64_t arena = open_arena(*session, "one");
        const auto close = [&] {
            auto request = proto::make_request(Type::kArenaClose, 0);
            request.arena.arena_id = arena;
            session->post(request);
            session->forget_arena(arena);
        };
        daemon.be_silent(Type::kArenaClose);
        close();
        REQUIRE(daemon.wait_for(Type::kArenaClose, 1));
        daemon.die();
        daemon.speak();
        daemon.come_back();
        CHECK(daemon.wait_for(Type::kArenaClose, 2));
        CHECK(daemon.last(Type::kArenaClose).arena.arena_id == arena);
        // Answered now, and so not sent to a third one.
        const std::uint64_t other = open_arena(*session, "two");
        daemon.die();
        daemon.come_back();
        CHECK(create_region(*session, other, soon()).ok());
        CHECK(daemon.count(Type::kArenaClose) == 2);
    }

    TEST_CASE("a group's leaving that a daemon did not answer is sent to the next one, once") {
        FakeDaemon daemon;
        const auto session = attach(daemon);
        const std::uint64_t arena = open_arena(*session, "one");
        daemon.be_silent(Type::kGroupLeave);
        auto request = proto::make_request(Type::kGroupLeave, 0);
        request.group.arena_id = arena;
        request.group.group_id = 7;
        request.group.rank = 2;
        session->post(request);
        REQUIRE(daemon.wait_for(Type::kGroupLeave, 1));
        // The arena that is opened again is no answer to it.
        REQUIRE(open_arena(*session, "one") == arena);
        daemon.die();
        daemon.speak();
        daemon.come_back();
        REQUIRE(daemon.wait_for(Type::kGroupLeave, 2));
        CHECK(daemon.last(Type::kGroupLeave).group.group_id == 7);
        CHECK(daemon.last(Type::kGroupLeave).group.rank == 2);
        // Answered now, if with an error: not sent to a third one.
        CHECK(create_region(*session, arena, soon()).ok());
        daemon.die();
        daemon.come_back();
        CHECK(create_region(*session, arena, soon()).ok());
        CHECK(daemon.count(Type::kGroupLeave) == 2);
    }

    TEST_CASE("an arena that was opened again since is not closed by what was sent before") {
        FakeDaemon daemon;
        const auto session = attach(daemon);
        const std::uint64_t arena = open_arena(*session, "one");
        daemon.be_silent(Type::kArenaClose);
        auto request = proto::make_request(Type::kArenaClose, 0);
        request.arena.arena_id = arena;
        session->post(request);
        REQUIRE(daemon.wait_for(Type::kArenaClose, 1));
        REQUIRE(open_arena(*session, "one") == arena);
        daemon.die();
        daemon.speak();
        daemon.come_back();
        CHECK(create_region(*session, arena, soon()).ok());
        CHECK(daemon.count(Type::kArenaClose) == 1);
    }

    TEST_CASE("a hundred sessions come and go") {
        FakeDaemon daemon;
        for (int i = 0; i < 100; ++i) attach(daemon)->close();
        CHECK(daemon.wait_for(Type::kBye, 100));
    }
}
