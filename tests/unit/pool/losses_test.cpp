#include <doctest/doctest.h>

#include <algorithm>

#include "tests/support/books_host.hpp"

using namespace test_support;

namespace {

constexpr Bytes kPage = 4096;

proto::Region loss(ArenaId arena, std::uint64_t offset, Bytes bytes = 1) {
    return {raw(arena), 0, 0, offset, bytes};
}

std::string state_of(RegistryHost& host, std::uint64_t region) {
    for (const auto& view : host.registry->snapshot(kNow).regions) {
        if (view.id == region) return std::string(name_of(view.state));
    }
    return "";
}

// Sessions that heard of a loss without having asked.
std::vector<SessionId> told(RegistryHost& host) {
    std::vector<SessionId> sessions;
    for (const Answer& answer : host.registry->take_answers()) {
        if (answer.to.request_id == 0) sessions.push_back(answer.to.session);
    }
    return sessions;
}

}  // namespace

TEST_SUITE("pool.losses") {
    TEST_CASE("a lost page is named, shown, reported to all sessions, and never granted again") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice, "job", 16 * kPage);
        host.arena(bob);
        const auto region = host.region(alice, arena, 4 * kPage).value();

        const auto news = host.registry->note_lost(bob, loss(arena, region.offset + kPage + 5));
        REQUIRE(news.ok());
        CHECK(news->region_id == region.region_id);
        CHECK(news->offset == region.offset + kPage);
        CHECK(news->bytes == kPage);
        CHECK(told(host) == std::vector<SessionId>{alice, bob});
        CHECK(state_of(host, region.region_id) == "bad");
        const auto opened = host.registry->open_region(bob, region);
        CHECK(opened.error().code == Errc::kPoisoned);
        CHECK(opened.error().detail == static_cast<int>(region.region_id));
        CHECK(host.registry->problems().empty());

        REQUIRE(host.registry->free_region(alice, arena, RegionId{region.region_id}).ok());
        CHECK(host.registry->problems().empty());
        CHECK(state_of(host, 0) == "bad");
        CHECK(host.region(alice, arena, 16 * kPage).error().code == Errc::kNoMemory);
        for (int i = 0; i < 15; ++i) {
            const auto other = host.region(alice, arena, kPage);
            REQUIRE(other.ok());
            CHECK(other->offset != region.offset + kPage);
        }
        CHECK(host.region(alice, arena, kPage).error().code == Errc::kNoMemory);
    }

    TEST_CASE("reported twice it is one loss, and the second time no session is notified") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice);
        REQUIRE(host.registry->note_lost(alice, loss(arena, 0, 2 * kPage)).ok());
        CHECK(told(host).size() == 1);
        const std::size_t records = host.journal.contents.entries.size();
        REQUIRE(host.registry->note_lost(alice, loss(arena, kPage)).ok());
        CHECK(told(host).empty());
        CHECK(host.journal.contents.entries.size() == records);
    }

    TEST_CASE("losses of arenas and bytes that a session does not have are refused") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId mallory = host.session(kMallory);
        const ArenaId arena = host.arena(alice, "job", 16 * kPage);
        CHECK(host.registry->note_lost(mallory, loss(arena, 0)).error().code == Errc::kNotFound);
        const auto outside = host.registry->note_lost(alice, loss(arena, 15 * kPage, 2 * kPage));
        CHECK(outside.error().code == Errc::kInvalid);
        CHECK(told(host).empty());
    }

    TEST_CASE("what is lost stays lost over a restart, whichever session held it") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice, "job", 16 * kPage);
        const auto held = host.region(alice, arena, 2 * kPage).value();
        const auto freed = host.region(alice, arena, 2 * kPage).value();
        REQUIRE(host.registry->note_lost(alice, loss(arena, held.offset)).ok());
        REQUIRE(host.registry->note_lost(alice, loss(arena, freed.offset)).ok());
        REQUIRE(host.registry->note_lost(alice, loss(arena, 10 * kPage, 3 * kPage)).ok());
        REQUIRE(host.registry->free_region(alice, arena, RegionId{freed.region_id}).ok());

        bool compacted = false;
        SUBCASE("with the journal as it grew") {}
        SUBCASE("with the compacted one") {
            compacted = true;
        }
        if (compacted) {
            MemoryJournal compact;
            REQUIRE(host.registry->write_journal(compact).ok());
            host.journal.contents = compact.contents;
        }
        host.restart();
        REQUIRE(host.restored.ok());
        CHECK(host.registry->problems().empty());
        CHECK(state_of(host, held.region_id) == "bad");
        REQUIRE(host.registry->free_region(alice, arena, RegionId{held.region_id}).ok());
        CHECK(host.registry->problems().empty());
        int granted = 0;
        while (host.region(alice, arena, kPage).ok()) ++granted;
        CHECK(granted == 16 - 5);
    }

    TEST_CASE("a group block is made elsewhere when the hardware lost its place") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice, "job", 1 << 24);
        host.memory.lost_blocks = 1;
        const auto groups = host.together({alice}, arena, "ring");
        REQUIRE(groups.size() == 1);
        CHECK(groups[0].block_bytes != 0);
        REQUIRE(host.memory.formatted.size() == 2);
        CHECK(host.memory.formatted[0] != host.memory.formatted[1]);
        CHECK(host.registry->problems().empty());
        REQUIRE(host.registry->leave_group(alice, groups[0]).ok());
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a tensor on lost memory is not handed out") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice);
        const auto tensor = host.tensor(alice, arena, "w").value();
        REQUIRE(host.registry->note_lost(alice, loss(arena, tensor.region.offset)).ok());
        host.registry->take_answers();
        REQUIRE(host.registry->open_tensor({alice, 9}, RegistryHost::tensor_body(arena, "w"), kNow)
                    .ok());
        CHECK(host.answer(9).error.code == Errc::kPoisoned);
    }

    TEST_CASE("lost bytes are written down once, and each session of the arena hears of it") {
        BooksHost host;
        const SessionId alice = host.session().id;
        const SessionId bob = host.session().id;
        Arena& arena = host.arena({alice, bob});
        const proto::Region where{raw(arena.id), 0, 0, 2 * 4096 + 8, 8};
        REQUIRE(host.losses.note(alice, where, host.out).ok());
        CHECK(host.out.answers.size() == 2);
        REQUIRE(host.losses.note(bob, where, host.out).ok());
        CHECK(host.out.answers.size() == 2);
        CHECK(host.records(RecordType::kLost) == 1);
        CHECK(arena.space.bytes_used() == 4096);
        CHECK(host.books.problems().empty());
    }
}
