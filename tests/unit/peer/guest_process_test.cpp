#include "fabricd/peer/guest_process.hpp"

#include <doctest/doctest.h>

#include <string>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/proto/codec.hpp"

using namespace fabricd;
namespace proto = fabricshm::proto;

namespace {

constexpr std::uint64_t kSession = 7;
constexpr OpenRange kFirst{ArenaId{1}, 0, 100};
constexpr OpenRange kSecond{ArenaId{2}, 100, 50};
using Ranges = std::set<OpenRange>;

GuestProcesses with_two_arenas() {
    GuestProcesses processes;
    processes[kSession].ranges = {kFirst, kSecond};
    return processes;
}

proto::Message request(proto::Type type, ArenaId arena) {
    proto::Message made = proto::make_request(type, 1);
    made.arena.arena_id = raw(arena);
    return made;
}

}  // namespace

TEST_SUITE("peer.guest_process") {
    TEST_CASE("a client of a guest hears that the owner is away, and not its own daemon") {
        const auto away = owner_is_away("a:7070", "the owner of the pool has gone");
        CHECK(away.code == fabricshm::Errc::kDaemon);  // so that the library tries again
        const std::string text = fabricshm::explanation_of(away);
        CHECK(text.find("fabricd of this host is there") == 0);
        CHECK(text.find("a:7070 (pool.owner)") != std::string::npos);
        CHECK(text.find("has gone") != std::string::npos);
    }

    TEST_CASE("before an arena is closed its own range has to be out of the caches") {
        GuestProcesses processes = with_two_arenas();
        const auto close = request(proto::Type::kArenaClose, kSecond.arena);
        CHECK(ranges_before(processes, kSession, close) == Ranges{kSecond});
        // It may be refused; then it is there still.
        CHECK(ranges_before(processes, kSession, close) == Ranges{kSecond});
        forget_arena(processes, kSession, kSecond.arena);
        CHECK(processes[kSession].ranges == Ranges{kFirst});
    }

    TEST_CASE("before a goodbye all of them, which are then no longer its own") {
        GuestProcesses processes = with_two_arenas();
        const auto bye = request(proto::Type::kBye, ArenaId::kNone);
        CHECK(ranges_before(processes, kSession, bye) == Ranges{kFirst, kSecond});
        CHECK(processes[kSession].ranges.empty());
    }

    TEST_CASE("a goodbye without a hello is of a session of its own process alone") {
        GuestProcesses processes = with_two_arenas();
        processes[kSession].pid = 40;
        auto bye = request(proto::Type::kBye, ArenaId::kNone);
        bye.hello.session_id = kSession;
        CHECK(leaver_of(processes, 40, bye) == kSession);
        CHECK(leaver_of(processes, 41, bye) == 0);
        auto hello = request(proto::Type::kHello, ArenaId::kNone);
        hello.hello.session_id = kSession;
        CHECK(leaver_of(processes, 40, hello) == 0);
        bye.hello.session_id = 8;
        CHECK(leaver_of(processes, 40, bye) == 0);
        processes[kSession].has_ended = true;
        bye.hello.session_id = kSession;
        CHECK(leaver_of(processes, 40, bye) == 0);
    }

    TEST_CASE("the process of a session that the owner has ended is watched no longer") {
        GuestProcesses processes = with_two_arenas();
        processes[kSession].watch = 5;
        const auto bye = request(proto::Type::kBye, ArenaId::kNone);
        const auto busy = proto::make_error_reply(bye.header, {fabricshm::Errc::kBusy, 0, ""});
        CHECK(forget_left(processes, kSession, busy) == 0);
        CHECK(processes.count(kSession) == 1);
        const auto gone = proto::make_error_reply(bye.header, {fabricshm::Errc::kNotFound, 0, ""});
        CHECK(forget_left(processes, kSession, gone) == 5);
        CHECK(processes.empty());
        CHECK(forget_left(processes, kSession, proto::make_reply(bye)) == 0);
        // What it wrote is on its way out of the caches: it goes when that is done.
        processes[kSession].has_ended = true;
        CHECK(forget_left(processes, kSession, proto::make_reply(bye)) == 0);
        CHECK(processes.count(kSession) == 1);
    }

    TEST_CASE("ranges that could not be written out stay") {
        GuestProcesses processes = with_two_arenas();
        auto ranges =
            ranges_before(processes, kSession, request(proto::Type::kBye, ArenaId::kNone));
        keep_ranges(processes, kSession, ranges);
        CHECK(processes[kSession].ranges == Ranges{kFirst, kSecond});
        keep_ranges(processes, 8, ranges);
        CHECK(processes.count(8) == 0);
    }

    TEST_CASE("other requests, and those of other sessions, wait for nothing") {
        GuestProcesses processes = with_two_arenas();
        CHECK(ranges_before(processes, kSession, request(proto::Type::kArenaOpen, kFirst.arena))
                  .empty());
        CHECK(ranges_before(processes, 8, request(proto::Type::kBye, kFirst.arena)).empty());
        forget_arena(processes, 8, kFirst.arena);
        CHECK(processes[kSession].ranges.size() == 2);
    }
}
