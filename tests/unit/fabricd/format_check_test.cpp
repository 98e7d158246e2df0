#include "fabricd/service/format_check.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "fabricd/pool/image.hpp"
#include "fabricd/pool/journal.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;

namespace {

constexpr std::uint32_t kDevice = ~std::uint32_t{0};
constexpr std::uint64_t kArena = 60;

// A process that has ended and was waited for.
pid_t ended() {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return child;
}

struct Fixture {
    Fixture() {
        config.state.dir = folder.path();
        config.pool.dax_format = true;
    }
    // Sessions from 41 on, all of them in one arena.
    void write(const std::vector<pid_t>& pids, std::uint32_t seals = kDevice,
               const char* host = nullptr) const {
        PoolImage image{};
        image.daemon_epoch = 1;
        image.last_id = kArena;
        ArenaImage arena{};
        arena.record.arena = kArena;
        arena.record.bytes = 4096;
        arena.record.align = 4096;
        arena.record.seals = seals;
        std::strcpy(arena.record.name, "job");
        for (std::size_t i = 0; i < pids.size(); ++i) {
            const SessionId id{41 + i};
            SessionRecord record{};
            record.session = raw(id);
            record.pid = pids[i];
            image.sessions[id] = record;
            arena.sessions.insert(id);
            if (host == nullptr) continue;
            SessionHostRecord of{};
            of.session = raw(id);
            std::strcpy(of.host, host);
            image.hosts[id] = of;
        }
        image.arenas[ArenaId{kArena}] = arena;
        Journal journal(folder.file("journal"));
        REQUIRE(journal.rewrite([&](JournalSink& sink) { return write_image(image, sink); }).ok());
    }
    std::string outcome() const { return check_format(config).value_or(""); }

    test_support::TemporaryDirectory folder;
    Config config;
};

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_SUITE("fabricd.format_check") {
    TEST_CASE("a device is not formatted while a session that has an arena on it lives") {
        const Fixture fixture;
        fixture.write({::getpid(), ended(), ::getppid()});
        const std::string refused = fixture.outcome();
        CAPTURE(refused);
        CHECK(has(refused, "--format: 2 sessions of before"));
        CHECK(has(refused, "pid " + std::to_string(::getpid()) + ", "));
        CHECK(has(refused, "pid " + std::to_string(::getppid()) + ")"));
        CHECK(has(refused, fixture.folder.file("journal")));
    }

    TEST_CASE(
        "it is when they have ended, when their arenas are elsewhere, and without a journal") {
        const Fixture fixture;
        CHECK(fixture.outcome().empty());
        fixture.write({ended()});
        CHECK(fixture.outcome().empty());
        fixture.write({::getpid()}, 0);
        CHECK(fixture.outcome().empty());
        fixture.write({});
        CHECK(fixture.outcome().empty());
    }

    TEST_CASE("without --format nothing is asked") {
        Fixture fixture;
        fixture.write({::getpid()});
        fixture.config.pool.dax_format = false;
        CHECK(fixture.outcome().empty());
    }

    TEST_CASE("processes of other hosts can't be asked, and count") {
        const Fixture fixture;
        fixture.write({ended()}, kDevice, "far");
        CHECK(has(fixture.outcome(), "1 session of before"));
        CHECK(has(fixture.outcome(), "of host far"));
    }

    TEST_CASE("a damaged journal names no session: --format is the way out of it") {
        const Fixture fixture;
        std::ofstream(fixture.folder.file("journal")) << "no journal";
        CHECK(fixture.outcome().empty());
    }
}
