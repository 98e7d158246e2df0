#include "libfabricshm/client/farewell.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <vector>

#include "libfabricshm/client/arena.hpp"
#include "libfabricshm/client/session.hpp"
#include "libfabricshm/proto/codec.hpp"
#include "tests/support/fake_daemon.hpp"

using namespace fabricshm;
using namespace std::chrono_literals;
using proto::Type;
using test_support::FakeDaemon;

namespace {

std::shared_ptr<Session> attach(const FakeDaemon& daemon) {
    SessionOptions options;
    options.sockets = {daemon.path()};
    options.label = "test";
    return Session::open(options).value();
}

/// A daemon of a pool that several hosts share.
struct SharedPool {
    FakeDaemon daemon;
    SharedPool() { daemon.share_pool("clflush"); }
};

bool all_answered() {
    const auto deadline = Clock::now() + 30s;
    while (unanswered_farewells() != 0 && Clock::now() < deadline) std::this_thread::yield();
    return unanswered_farewells() == 0;
}

}  // namespace

TEST_SUITE("client.farewell") {
    TEST_CASE("a session says goodbye, and asks whether it has arrived") {
        SharedPool pool;
        attach(pool.daemon)->close();
        CHECK(all_answered());
        CHECK(pool.daemon.sessions() == 0);
        CHECK(pool.daemon.count(Type::kBye) == 2);
    }

    TEST_CASE("at a daemon of one host the end of the connection is enough") {
        FakeDaemon daemon;
        attach(daemon)->close();
        CHECK(unanswered_farewells() == 0);
        CHECK(daemon.wait_for(Type::kBye, 1));
        CHECK(daemon.count(Type::kBye) == 1);
    }

    TEST_CASE("a session that is closed while the daemon is away says goodbye to the next one") {
        SharedPool pool;
        auto session = attach(pool.daemon);
        pool.daemon.die();
        while (session->connected()) std::this_thread::yield();
        session->close();
        session.reset();
        CHECK(unanswered_farewells() == 1);
        pool.daemon.come_back();
        CHECK(all_answered());
        CHECK(pool.daemon.sessions() == 0);
        CHECK(pool.daemon.count(Type::kHello) == 1);  // without coming back first
    }

    TEST_CASE("a daemon that ends before it answers is asked again") {
        SharedPool pool;
        auto session = attach(pool.daemon);
        pool.daemon.be_silent(Type::kBye);
        session->close();
        session.reset();
        // The goodbye itself, and the question.
        REQUIRE(pool.daemon.wait_for(Type::kBye, 2));
        pool.daemon.die();
        CHECK(unanswered_farewells() == 1);
        pool.daemon.speak();
        pool.daemon.come_back();
        CHECK(all_answered());
        CHECK(pool.daemon.sessions() == 0);
    }

    TEST_CASE("a daemon that can't serve it now is asked again, one that does not know it is not") {
        SharedPool pool;
        auto session = attach(pool.daemon);
        pool.daemon.die();
        while (session->connected()) std::this_thread::yield();
        session.reset();
        pool.daemon.refuse_next(Type::kBye, {Errc::kBusy, 0, "later"});
        pool.daemon.come_back();
        CHECK(all_answered());
        CHECK(pool.daemon.count(Type::kBye) == 2);
        CHECK(pool.daemon.sessions() == 0);

        session = attach(pool.daemon);
        pool.daemon.forget_everything();
        session.reset();
        CHECK(all_answered());
        CHECK(pool.daemon.count(Type::kBye) == 4);
    }

    TEST_CASE("no goodbye is said while an arena of the session is mapped") {
        SharedPool pool;
        auto session = attach(pool.daemon);
        auto arena = Arena::open(session, "arena", 1 << 20, 0);
        REQUIRE(arena.ok());
        const auto before = session->identity().id;
        // The daemon has lost its past: the process goes on as another session.
        pool.daemon.die();
        pool.daemon.forget_everything();
        pool.daemon.come_back();
        while (session->identity().id == before) std::this_thread::yield();
        CHECK(pool.daemon.count(Type::kBye) == 0);
        CHECK(unanswered_farewells() == 0);
        arena.value().reset();
        CHECK(all_answered());
        CHECK(pool.daemon.count(Type::kBye) == 1);
        CHECK(pool.daemon.last(Type::kBye).hello.session_id == before);
        CHECK(pool.daemon.sessions() == 1);
        session.reset();
        CHECK(all_answered());
        CHECK(pool.daemon.sessions() == 0);
    }

    TEST_CASE("fifty sessions that end while the daemon is away") {
        SharedPool pool;
        std::vector<std::shared_ptr<Session>> sessions;
        for (int i = 0; i < 50; ++i) sessions.push_back(attach(pool.daemon));
        pool.daemon.die();
        sessions.clear();
        pool.daemon.come_back();
        CHECK(all_answered());
        CHECK(pool.daemon.sessions() == 0);
    }

    TEST_CASE("a forked child says nothing of its parent's sessions, and goodbye of its own") {
        SharedPool pool;
        auto session = attach(pool.daemon);
        auto stay = std::make_unique<Stay>(std::vector{pool.daemon.path()}, session->identity());
        auto away = attach(pool.daemon);
        pool.daemon.die();
        while (away->connected()) std::this_thread::yield();
        away.reset();  // the parent's thread is about to say it
        const pid_t child = ::fork();
        if (child == 0) {
            stay.reset();
            session->close();
            const bool is_silent = unanswered_farewells() == 0;
#ifdef __SANITIZE_THREAD__
            // Its runtime refuses threads in the child of a process that had some.
            ::_exit(is_silent ? 0 : 1);
#else
            SessionOptions options;
            options.sockets = {pool.daemon.path()};
            options.timeout = 20s;
            auto opened = Session::open(options);
            const bool is_open = opened.ok();
            if (is_open) opened.value().reset();
            ::_exit(is_silent && is_open && all_answered() ? 0 : 1);
#endif
        }
        pool.daemon.come_back();
        int status = 1;
        REQUIRE(::waitpid(child, &status, 0) == child);
        CHECK(status == 0);
        CHECK(all_answered());
        CHECK(pool.daemon.sessions() == 1);
        // Closed first: a session that comes back after its goodbye goes on as another one.
        session->close();
        stay.reset();
        CHECK(all_answered());
        CHECK(pool.daemon.sessions() == 0);
    }
}
