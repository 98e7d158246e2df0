#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "libfabricshm/base/reason.hpp"
#include "tests/support/registry_host.hpp"

using namespace test_support;

namespace {

/// A duplicate of the descriptor a client would have kept.
fabricshm::Fd kept(RegistryHost& host, ArenaId arena) {
    return fabricshm::Fd(::dup(host.registry->descriptors(arena).at(0)));
}

Error adopt(RegistryHost& host, SessionId who, ArenaId arena, const fabricshm::Fd& fd) {
    const std::uint64_t id = ++host.requests;
    const auto asked = host.registry->adopt_arena({who, id}, arena, fabricshm::Fd(::dup(fd.get())));
    return asked.ok() ? host.answer(id).error : asked.error();
}

}  // namespace

TEST_SUITE("pool.registry_restore") {
    TEST_CASE("after a restart sessions come back, present their arena and go on") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice, "job", 1 << 24);
        host.arena(bob);
        const auto region = host.region(alice, arena, 4096).value();
        const auto tensor = host.tensor(bob, arena, "w").value();
        const auto groups = host.together({alice, bob}, arena, "ring");
        const fabricshm::Fd fd = kept(host, arena);

        host.restart();
        REQUIRE(host.restored.ok());
        CHECK(host.registry->daemon_epoch() == 2);
        CHECK(host.registry->problems().empty());
        CHECK(host.region(alice, arena).ok());  // accounts alone, no memory needed
        CHECK(host.join(alice, arena, "other", 0, 1) == 0);
        CHECK(host.last_error.code == Errc::kBusy);
        CHECK(host.registry->resume_session(alice, kAlice, kToken).ok());
        CHECK(adopt(host, alice, arena, fd).code == Errc::kOk);
        CHECK(host.registry->resume_session(bob, kBob, kToken).ok());
        CHECK(adopt(host, bob, arena, fd).code == Errc::kOk);
        CHECK(host.work.adopted == std::vector<ArenaId>{arena});
        CHECK(host.registry->expire(kNow + 1h).empty());
        CHECK(host.registry->open_region(bob, region).value().offset == region.offset);
        CHECK(host.registry->open_region(alice, tensor.region).ok());
        CHECK(host.registry->leave_group(alice, groups[0]).ok());
        CHECK(host.session({105, 1, 1}) != bob);
    }

    TEST_CASE("an arena keeps its link page, whatever the next daemon emulates") {
        const fabricshm::LinkImage links{};
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const ArenaId plain = host.arena(alice, "plain");
        CHECK(host.memory.linked.empty());
        host.links = &links;
        host.restart();
        REQUIRE(host.restored.ok());
        const ArenaId linked = host.arena(alice, "linked");
        CHECK(host.memory.linked == std::set<ArenaId>{linked});
        CHECK(host.region(alice, linked)->offset >= fabricshm::kLinkPageBytes);
        CHECK(host.region(alice, plain)->offset == 0);

        host.links = nullptr;
        host.restart();
        REQUIRE(host.restored.ok());
        CHECK(host.memory.linked.empty());
        // The page is not to be given away: the same regions as before, and none over it.
        CHECK(host.region(alice, linked)->offset >= fabricshm::kLinkPageBytes);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("an arena too small for a link page is refused") {
        const fabricshm::LinkImage links{};
        RegistryHost host;
        host.links = &links;
        host.renew();
        const SessionId alice = host.session(kAlice);
        CHECK(host.arena(alice, "tiny", 4096) == ArenaId::kNone);
        CHECK(host.last_error.code == Errc::kNoMemory);
        CHECK(host.arena(alice, "large", 3 * 4096) != ArenaId::kNone);
    }

    TEST_CASE("only the arena's own file is adopted, and only for sessions that had it open") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId mallory = host.session(kMallory);
        const ArenaId arena = host.arena(alice);
        const fabricshm::Fd fd = kept(host, arena);
        host.restart();
        const fabricshm::PoolPiece forged = NotedWork::make(64 * 4096);
        CHECK(adopt(host, alice, arena, forged.fd).code == Errc::kCorrupt);
        CHECK(adopt(host, alice, ArenaId{99}, fd).code == Errc::kNotFound);
        CHECK(adopt(host, mallory, arena, fd).code == Errc::kNotFound);
        REQUIRE(::ftruncate(fd.get(), 4096) == 0);
        CHECK(adopt(host, alice, arena, fd).code == Errc::kCorrupt);
        CHECK(host.work.adopted.empty());
    }

    TEST_CASE("of an arena on several devices each is compared, for each session that presents") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice);
        CHECK(host.arena(bob) == arena);
        host.restart();
        fabricshm::PoolPiece piece = NotedWork::make(64 * 4096);
        piece.others.push_back(NotedWork::make(64 * 4096).fd);
        piece.others.push_back(NotedWork::make(64 * 4096).fd);
        const auto copy_of = [](const fabricshm::Fd& fd) { return fabricshm::Fd(::dup(fd.get())); };
        const fabricshm::Fd first = copy_of(piece.fd), second = copy_of(piece.others[0]),
                            third = copy_of(piece.others[1]);
        const fabricshm::Fd another = NotedWork::make(64 * 4096).fd;
        REQUIRE(host.registry->found_in_pool(arena, std::move(piece)));
        const auto outcome = [&](SessionId who, std::vector<const fabricshm::Fd*> presented) {
            fabricshm::PresentedFiles files(copy_of(*presented[0]));
            for (std::size_t i = 1; i < presented.size(); ++i) {
                files.others.push_back(copy_of(*presented[i]));
            }
            const std::uint64_t id = ++host.requests;
            const auto asked = host.registry->adopt_arena({who, id}, arena, std::move(files));
            return asked.ok() ? host.answer(id).error.code : asked.error().code;
        };
        CHECK(outcome(alice, {&first, &second, &third}) == Errc::kOk);
        CHECK(outcome(bob, {&first, &second, &another}) == Errc::kCorrupt);
        const auto wrong = host.registry->adopt_arena({bob, 99}, arena, copy_of(first));
        CHECK(fabricshm::explanation_of(wrong.error())
                  .find("lies on 3 devices, and 1 are presented") != std::string::npos);
        CHECK(outcome(bob, {&first}) == Errc::kCorrupt);
        CHECK(outcome(bob, {&first, &second}) == Errc::kCorrupt);
        CHECK(outcome(bob, {&first, &third, &second}) == Errc::kCorrupt);
        CHECK(outcome(bob, {&another, &second, &third}) == Errc::kCorrupt);
        CHECK(outcome(bob, {&first, &second, &third, &third}) == Errc::kCorrupt);
        CHECK(outcome(bob, {&first, &second, &third}) == Errc::kOk);
    }

    TEST_CASE("a session that has other files mapped is granted nothing there, but may close it") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice);
        REQUIRE(host.arena(bob) == arena);
        const fabricshm::Fd fd = kept(host, arena);
        host.restart();
        const fabricshm::PoolPiece forged = NotedWork::make(64 * 4096);
        REQUIRE(adopt(host, bob, arena, fd).code == Errc::kOk);
        REQUIRE(adopt(host, alice, arena, forged.fd).code == Errc::kCorrupt);
        const auto granted_to = [&](SessionId who) {
            return host.registry->create_region(who, {raw(arena), 0, 0, 0, 4096});
        };
        CHECK(granted_to(alice).error().code == Errc::kCorrupt);
        CHECK(granted_to(bob).ok());
        // Nor does it open for others, which would read there what the session wrote elsewhere.
        const SessionId later = host.session(kAlice);
        CHECK(host.arena(later) == ArenaId::kNone);
        CHECK(host.last_error.code == Errc::kCorrupt);
        SUBCASE("with the right ones it goes on") {
            REQUIRE(adopt(host, alice, arena, fd).code == Errc::kOk);
            CHECK(granted_to(alice).ok());
        }
        SUBCASE("closed and opened again it is no stranger") {
            REQUIRE(host.registry->close_arena({alice, ++host.requests}, arena).ok());
            CHECK(granted_to(alice).error().code == Errc::kNotFound);
            REQUIRE(host.arena(alice) == arena);
            CHECK(granted_to(alice).ok());
            CHECK(host.arena(later) == arena);
        }
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("what no session claims within the grace is dropped") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice);
        const ArenaId other = host.arena(bob, "other");
        host.restart();
        REQUIRE(host.registry->resume_session(alice, kAlice, kToken).ok());
        host.registry->expire(kNow + 9s);
        CHECK(host.registry->snapshot(kNow).arenas.size() == 2);
        host.registry->expire(kNow + 10s);
        const Snapshot after = host.registry->snapshot(kNow);
        CHECK(after.sessions.size() == 1);
        CHECK(after.arenas.empty());  // alice came back, but without the arena
        CHECK(host.registry->problems().empty());
        std::sort(host.work.destroyed.begin(), host.work.destroyed.end());
        CHECK(host.work.destroyed == std::vector<ArenaId>{arena, other});
        CHECK(host.arena(alice) != ArenaId::kNone);
    }

    TEST_CASE(
        "a session that opens an arena that is still away waits for it, or gets a new one when it "
        "is gone") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice);
        const fabricshm::Fd fd = kept(host, arena);
        host.restart();
        const SessionId bob = host.session(kBob);
        REQUIRE(host.registry->open_arena({bob, 71}, RegistryHost::arena_body("job", 0)).ok());
        CHECK_FALSE(host.answered(71));
        SUBCASE("adopted") {
            CHECK(adopt(host, alice, arena, fd).code == Errc::kOk);
            CHECK(host.answer(71).error.code == Errc::kOk);
        }
        SUBCASE("dropped") {
            host.registry->expire(kNow + 10s);
            const Answer got = host.answer(71);
            REQUIRE(got.error.code == Errc::kOk);
            CHECK(std::get<proto::ArenaOpen>(got.body).arena_id != raw(arena));
        }
    }

    TEST_CASE(
        "a session that asks for an arena before its dead holders are noticed gets a new one") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice);
        host.restart();
        const SessionId bob = host.session(kBob);
        const SessionId carol = host.session(kBob);
        REQUIRE(host.registry->open_arena({bob, 71}, RegistryHost::arena_body("job", 1)).ok());
        REQUIRE(host.registry->open_arena({carol, 72}, RegistryHost::arena_body("job", 0)).ok());
        SUBCASE("and so does every session that asked after") {
            host.registry->end_session(alice, "its process ended");
            const Answer first = host.answer(71);
            REQUIRE(first.error.code == Errc::kOk);
            const auto made = std::get<proto::ArenaOpen>(first.body);
            CHECK(made.arena_id != raw(arena));
            CHECK(made.bytes == 4096);  // as the first of them asked
            CHECK(std::get<proto::ArenaOpen>(host.answer(72).body).arena_id == made.arena_id);
            CHECK(host.registry->snapshot(kNow).arenas.size() == 1);
        }
        SUBCASE("unless nothing new is given out any more") {
            host.registry->set_draining(true);
            host.registry->end_session(alice, "its process ended");
            CHECK(host.answer(71).error.code == Errc::kBusy);
            CHECK(host.answer(72).error.code == Errc::kBusy);
            CHECK(host.registry->snapshot(kNow).arenas.empty());
        }
    }

    TEST_CASE("sessions that never got the arena they were granted get a new one at once") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId lost = host.arena(alice);
        host.arena(bob);
        host.restart();
        REQUIRE(host.restored.ok());
        REQUIRE(host.registry->resume_session(alice, kAlice, kToken).ok());
        REQUIRE(host.registry->resume_session(bob, kBob, kToken).ok());

        const auto job = RegistryHost::arena_body("job", 4096);
        REQUIRE(host.registry->open_arena({alice, 71}, job).ok());
        CHECK(host.registry->snapshot(kNow).arenas.size() == 1);  // bob might have it
        REQUIRE(host.registry->open_arena({bob, 72}, job).ok());
        CHECK(host.answer(71).error.code == Errc::kOk);
        CHECK(host.answer(72).error.code == Errc::kOk);
        const auto arenas = host.registry->snapshot(kNow).arenas;
        REQUIRE(arenas.size() == 1);
        CHECK(arenas[0].id != raw(lost));
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("a session that waits for an arena that none brings back is given a new one") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        host.arena(alice);
        host.restart();
        const auto job = RegistryHost::arena_body("job", 4096);
        REQUIRE(host.registry->open_arena({bob, 71}, job).ok());
        host.registry->expire(kNow + 10s);  // alice does not come
        CHECK(host.answer(71).error.code == Errc::kOk);
    }

    TEST_CASE("an arena that was being dropped is not kept for any session") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice);
        host.registry->end_session(alice, "test");
        auto& entries = host.journal.contents.entries;
        while (entries.back().type != RecordType::kArenaGone) entries.pop_back();
        entries.pop_back();
        host.restart();
        REQUIRE(host.restored.ok());
        CHECK(host.registry->next_deadline() <= kNow);
        host.registry->expire(kNow);
        CHECK(host.registry->snapshot(kNow).arenas.empty());
        CHECK(host.work.destroyed.back() == arena);
    }

    TEST_CASE("a rank that died while there was no daemon is marked when the arena is back") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice, "job", 1 << 24);
        host.arena(bob);
        host.region(bob, arena).value();
        const auto groups = host.together({alice, bob}, arena, "ring");
        const fabricshm::Fd fd = kept(host, arena);
        host.restart();
        host.registry->end_session(bob, "gone");
        CHECK(host.memory.dead.empty());
        CHECK(host.registry->snapshot(kNow).arenas.at(0).bytes_quarantined == 4096);
        CHECK(adopt(host, alice, arena, fd).code == Errc::kOk);
        const std::vector<std::pair<std::uint64_t, int>> marked{{groups[0].block_offset, 1}};
        CHECK(host.memory.dead == marked);
        host.restart();
        CHECK(host.restored.ok());
        CHECK(host.registry->snapshot(kNow).arenas.at(0).bytes_quarantined == 4096);
    }

    TEST_CASE(
        "an answer that was lost with the daemon is given again to its owner, once more only") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice, "job", 1 << 24);
        host.arena(bob);
        const auto tensor = host.tensor(alice, arena, "w").value();
        const auto groups = host.together({alice, bob}, arena, "ring");
        CHECK(host.tensor(alice, arena, "w").error().code == Errc::kExists);
        const fabricshm::Fd fd = kept(host, arena);
        host.restart();
        REQUIRE(host.registry->resume_session(alice, kAlice, kToken).ok());
        REQUIRE(host.registry->resume_session(bob, kBob, kToken).ok());
        REQUIRE(adopt(host, alice, arena, fd).code == Errc::kOk);
        CHECK(host.tensor(alice, arena, "w").value().region.offset == tensor.region.offset);
        CHECK(host.tensor(bob, arena, "w").error().code == Errc::kExists);
        const proto::Group again = host.group_of(host.join(alice, arena, "ring", 0, 2));
        CHECK(again.group_id == groups[0].group_id);
        CHECK(host.join(alice, arena, "ring", 1, 2) == 0);
        host.registry->expire(kNow + 10s);
        CHECK(host.join(alice, arena, "ring", 0, 2) == 0);
        CHECK(host.tensor(alice, arena, "w").error().code == Errc::kExists);
    }

    TEST_CASE("a tensor of more dimensions than there are, or with an endless name, is refused") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        host.tensor(alice, host.arena(alice), "w").value();
        auto& entries = host.journal.contents.entries;
        const auto entry = std::find_if(entries.begin(), entries.end(), [](const auto& one) {
            return one.type == RecordType::kTensor;
        });
        REQUIRE(entry != entries.end());
        TensorRecord record{};
        REQUIRE(entry->payload.size() == sizeof record);
        std::memcpy(&record, entry->payload.data(), sizeof record);
        SUBCASE("dimensions") {
            record.ndim = proto::kDimsMax + 1;
        }
        SUBCASE("name") {
            std::memset(record.name, 'w', sizeof record.name);
        }
        std::memcpy(entry->payload.data(), &record, sizeof record);
        host.restart();
        CHECK(host.restored.error().code == Errc::kCorrupt);
    }

    TEST_CASE("a shrink that was cut short between its records is complete") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice, "job", 1 << 24);
        host.arena(bob);
        const auto groups = host.together({alice, bob}, arena, "ring");
        host.registry->end_session(bob, "test");
        const auto asked = host.shrink(alice, groups[0]);
        const proto::Group smaller = host.group_of(asked);
        REQUIRE(smaller.world == 1);
        const fabricshm::Fd fd = kept(host, arena);
        auto& entries = host.journal.contents.entries;
        const auto cut = std::find_if(entries.begin(), entries.end(), [](const auto& entry) {
            return entry.type == RecordType::kGroupShrunk;
        });
        entries.erase(cut, entries.end());
        host.restart();
        REQUIRE(host.restored.ok());
        REQUIRE(adopt(host, alice, arena, fd).code == Errc::kOk);
        CHECK(host.group_of(host.shrink(alice, groups[0])).group_id == smaller.group_id);
    }

    TEST_CASE("the compacted journal says the same as the long one") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice, "job", 1 << 24);
        host.arena(bob);
        host.together({alice, bob}, arena, "ring");
        host.region(bob, arena).value();
        const auto freed = host.region(alice, arena).value();
        REQUIRE(host.registry->free_region(alice, arena, RegionId{freed.region_id}).ok());
        host.registry->end_session(bob, "test");

        MemoryJournal compact;
        REQUIRE(host.registry->write_journal(compact).ok());
        host.journal.contents = compact.contents;
        host.restart();
        REQUIRE(host.restored.ok());
        MemoryJournal again;
        REQUIRE(host.registry->write_journal(again).ok());
        REQUIRE(again.contents.entries.size() == compact.contents.entries.size());
        for (std::size_t i = 1; i < again.contents.entries.size(); ++i) {
            CHECK(again.contents.entries[i].payload == compact.contents.entries[i].payload);
        }
    }

    TEST_CASE("a journal that gives bytes to two owners is refused") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice);
        REQUIRE(host.region(alice, arena).ok());
        RegionRecord twice{};
        twice.arena = raw(arena);
        twice.region = 2;
        twice.generation = 1;
        twice.session = raw(alice);
        twice.bytes = 4096;
        twice.state = static_cast<std::uint32_t>(LeaseState::kHeld);
        REQUIRE(host.journal.add(twice).ok());
        host.restart();
        CHECK(host.restored.error().code == Errc::kCorrupt);
    }

    TEST_CASE("an arena that the device itself remembers needs no session to present it") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice);
        host.restart();
        CHECK_FALSE(host.registry->found_in_pool(ArenaId{99}, NotedWork::make(4096)));
        CHECK_FALSE(host.registry->found_in_pool(arena, NotedWork::make(4096)));
        CHECK(host.registry->found_in_pool(arena, NotedWork::make(64 * 4096)));
        REQUIRE(host.registry->resume_session(alice, kAlice, kToken).ok());
        host.registry->expire(kNow + 10s);
        CHECK(host.registry->snapshot(kNow).arenas.size() == 1);
    }

    TEST_CASE("quarantined regions whose group ended just before a crash are free afterwards") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId arena = host.arena(alice, "job", 1 << 24);
        host.arena(bob, "job");
        REQUIRE(host.region(alice, arena, 4096).ok());
        const auto groups = host.together({alice, bob}, arena, "ring");
        const fabricshm::Fd fd = kept(host, arena);
        host.registry->end_session(alice, "its process ended");
        REQUIRE(host.registry->leave_group(bob, groups[1]).ok());
        // As if it had been killed after the group's end was written, before the region's.
        auto& records = host.journal.contents.entries;
        while (records.back().type != RecordType::kGroupGone) records.pop_back();
        host.restart();
        REQUIRE(host.registry->resume_session(bob, kBob, kToken).ok());
        CHECK(host.registry->snapshot(kNow).arenas[0].bytes_quarantined == 4096);
        REQUIRE(adopt(host, bob, arena, fd).code == Errc::kOk);
        CHECK(host.registry->snapshot(kNow).arenas[0].bytes_quarantined == 0);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("an adoption that fails after the grace ends the arena and all waits for it") {
        RegistryHost host;
        const SessionId alice = host.session(kAlice);
        const ArenaId arena = host.arena(alice);
        const fabricshm::Fd fd = kept(host, arena);
        host.restart();
        host.work.later = true;
        REQUIRE(host.registry->resume_session(alice, kAlice, kToken).ok());
        REQUIRE(
            host.registry->adopt_arena({alice, 70}, arena, fabricshm::Fd(::dup(fd.get()))).ok());
        host.registry->expire(kNow + 10s);
        CHECK(host.registry->snapshot(kNow).arenas.size() == 1);  // it is being looked at
        host.work.later = false;
        host.registry->arena_adopted(arena, Error{Errc::kNoMemory, 0, "test adoption"});
        CHECK(host.answer(70).error.code == Errc::kNoMemory);
        CHECK(host.registry->snapshot(kNow).arenas.empty());
        CHECK(host.arena(alice) != ArenaId::kNone);
        CHECK(host.registry->problems().empty());
    }

    // Everything that a restarted daemon takes from its living holders, cut off after every record.
    TEST_CASE("a session that may resume after a crash still has every region that it was given") {
        for (const bool given_up : {true, false}) {
            RegistryHost host;
            const SessionId alice = host.session(kAlice);
            const ArenaId arena = host.arena(alice);
            REQUIRE(host.region(alice, arena, 4096).ok());
            REQUIRE(host.region(alice, arena, 4096).ok());
            host.restart();
            const std::size_t before = host.journal.contents.entries.size();
            // With its arena not presented, or with the session itself away for too long.
            if (given_up) REQUIRE(host.registry->resume_session(alice, kAlice, kToken).ok());
            host.registry->expire(kNow + 10s);
            const JournalContents all = host.journal.contents;
            REQUIRE(all.entries.size() > before);
            for (std::size_t kept_records = before; kept_records <= all.entries.size();
                 ++kept_records) {
                CAPTURE(kept_records);
                host.journal.contents.entries.assign(
                    all.entries.begin(),
                    all.entries.begin() + static_cast<std::ptrdiff_t>(kept_records));
                host.restart();
                REQUIRE(host.restored.ok());
                CHECK(host.registry->problems().empty());
                const bool resumes = host.registry->resume_session(alice, kAlice, kToken).ok();
                const Snapshot now = host.registry->snapshot(kNow);
                const bool has_arena = resumes && !now.arenas.empty();
                if (has_arena) CHECK(now.regions.size() == 2);
            }
        }
    }
}
