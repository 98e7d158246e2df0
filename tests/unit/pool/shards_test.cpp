// Shards in the registry: copies, swaps, readers, deaths and restarts.

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>

#include "libfabricshm/shm/shard_header.hpp"
#include "tests/support/books_host.hpp"

using namespace test_support;
using fabricshm::ShardHeader;
using fabricshm::ShardPin;
using fabricshm::ShardWord;

namespace {

constexpr Bytes kShardBytes = 8192;
constexpr Bytes kHeaderBytes = fabricshm::kShardHeaderBytes;

/// Alice owns the shard job/s, Bob has it open.
struct ShardHost : RegistryHost {
    explicit ShardHost(Bytes arena_bytes = 64 * 4096) {
        devices = {{"small", "gpu", 1.0, 100, 64 * 4096, 4 * 4096, 1.0, 0, {}},
                   {"label", "gpu", 1.0, 100, 64 * 4096, 4 * 4096, 1.0, 0, {}},
                   {"gone", "gpu", 1.0, 100, 64 * 4096, 4 * 4096, 1.0, 0, {}}};
        devices[0].numa_node = 3;
        devices[2].numa_node = 4;  // which the machine does not have
        renew();
        alice = session(kAlice);
        bob = session(kBob);
        job = arena(alice, "job", arena_bytes);
        arena(bob);
        REQUIRE(registry->create_shard(alice, body()).ok());
        REQUIRE(registry->open_shard({bob, ++requests}, body(), kNow).ok());
        opened = std::get<proto::Shard>(answer(requests).body);
    }
    proto::Shard body() const {
        proto::Shard shard{};
        shard.header.arena_id = raw(job);
        copy_name(shard.name, "s");
        shard.dtype = 5;  // u8
        shard.ndim = 1;
        shard.shape[0] = kShardBytes;
        return shard;
    }
    ShardHeader& header() {
        const auto span = memory.span(job, opened.header.offset, kHeaderBytes).value();
        return *reinterpret_cast<ShardHeader*>(span.data);
    }
    void unpin_all(int place) {
        header().readers[opened.slot].pins[place].fetch_and(~std::uint64_t{0xffffffff});
    }
    fabricshm::ShardKey key() const { return {opened.header.region_id, opened.header.generation}; }
    Result<ShardPin> pin() {
        return fabricshm::pin_shard(header(), key(), opened.slot, raw(bob), 0,
                                    fabricshm::Clock::now());
    }
    void unpin(const ShardPin& pin) {
        fabricshm::unpin_shard(header(), opened.slot, raw(bob), pin);
    }
    Result<void> move(const char* target = "here") {
        ended.reset();
        return registry->move_shard({"job/s", target, 0},
                                    [this](const Result<void>& outcome) { ended = outcome; });
    }
    /// Plays the thread that copies.
    void copy() {
        REQUIRE(copies.jobs.size() == 1);
        const CopyJob order = copies.jobs.front();
        copies.jobs.clear();
        const ShardWord seen = fabricshm::word_of(header());
        std::memcpy(order.to.data, order.from.data, order.bytes);
        registry->shard_copied(order.shard, seen);
    }
    ShardView view() const {
        const auto all = registry->snapshot(kNow);
        return all.shards.empty() ? ShardView{} : all.shards.front();
    }
    Bytes used() const {
        Bytes sum = 0;
        for (const auto& arena : registry->snapshot(kNow).arenas) sum += arena.bytes_used;
        return sum;
    }
    /// After a restart: Alice and Bob come back and present the arena.
    void come_back(const std::vector<ArenaId>& arenas) {
        for (const SessionId who : {alice, bob}) {
            REQUIRE(registry->resume_session(who, who == alice ? kAlice : kBob, kToken).ok());
            for (const ArenaId id : arenas) {
                fabricshm::Fd again(::dup(files.at(id).get()));
                REQUIRE(registry->adopt_arena({who, ++requests}, id, std::move(again)).ok());
            }
        }
    }
    void keep_files(const std::vector<ArenaId>& arenas) {
        for (const ArenaId id : arenas) {
            files[id] = fabricshm::Fd(::dup(registry->descriptors(id).at(0)));
        }
    }
    std::string problem() const {
        const auto found = registry->problems();
        return found.empty() ? "" : found.front();
    }

    SessionId alice, bob;
    ArenaId job = ArenaId::kNone;
    proto::Shard opened{};
    std::optional<Result<void>> ended;
    std::map<ArenaId, fabricshm::Fd> files;
};

}  // namespace

TEST_SUITE("pool.shards") {
    TEST_CASE("a moved shard is elsewhere, and its old bytes are free") {
        ShardHost host;
        const ShardView before = host.view();
        const Bytes used = host.used();
        REQUIRE(host.move().ok());
        CHECK(host.view().state == ShardState::kMoving);
        CHECK(host.move().error().code == Errc::kBusy);
        host.copy();
        REQUIRE(host.ended);
        CHECK(host.ended->ok());
        CHECK(host.view().offset != before.offset);
        CHECK(host.view().state == ShardState::kHere);
        CHECK(host.view().moves == 1);
        CHECK(host.registry->shard("job/s")->offset == host.view().offset);
        for (const char* name : {"job/other", "other/s", "job", ""}) {
            CHECK_FALSE(host.registry->shard(name));
        }
        CHECK(host.used() == used);
        const auto pin = host.pin();
        REQUIRE(pin.ok());
        CHECK(pin->offset == host.view().offset);
        CHECK(host.problem() == "");
    }

    TEST_CASE("a caller that asks for some shards gets those that there are, and the devices") {
        ShardHost host;
        proto::Shard other = host.body();
        copy_name(other.name, "other");
        REQUIRE(host.registry->create_shard(host.alice, other).ok());
        const ShardId wanted{host.job, RegionId{host.opened.header.region_id}};
        const Places places = host.registry->places({wanted, {host.job, RegionId{999}}}, kNow);
        REQUIRE(places.shards.size() == 1);
        CHECK(places.shards[0].name == "job/s");
        CHECK(places.devices.size() == 3);
        CHECK(host.registry->places({}, kNow).shards.empty());
        CHECK(host.registry->snapshot(kNow).shards.size() == 2);
    }

    // Touching them takes as long as reading them: deaths of clients would wait meanwhile.
    TEST_CASE("the control thread touches the header of a shard that moves, and not its elements") {
        ShardHost host(128 * 4096);
        proto::Shard body = host.body();
        copy_name(body.name, "large");
        body.shape[0] = 30 * 4096;
        REQUIRE(host.registry->create_shard(host.alice, body).ok());
        host.memory.made_present = 0;
        REQUIRE(host.registry->move_shard({"job/large", "here", 0}, nullptr).ok());
        CHECK(host.copies.jobs.size() == 1);
        CHECK(host.memory.made_present == kHeaderBytes);
    }

    TEST_CASE("a session has the shards open that it opened, whatever it says") {
        ShardHost host;
        const SessionId carol = host.session({103, 1000, 1000});
        const std::uint64_t shard = host.opened.header.region_id;
        fabricshm::ShardReads told[fabricshm::kShardsTold] = {
            {raw(host.job), shard + 100, 1, 1}, {raw(host.job), shard, 1, 1}, {99, shard, 1, 1}};
        CHECK(host.registry->shards_open(host.bob, told) == 0b010);
        CHECK(host.registry->shards_open(host.alice, told) == 0b010);
        CHECK(host.registry->shards_open(carol, told) == 0);
    }

    TEST_CASE("a copy during which the owner published is made again, and not without end") {
        ShardHost host;
        const Bytes used = host.used();
        const auto publish = [&] {
            REQUIRE(fabricshm::begin_write(host.header(), host.key()).ok());
            fabricshm::publish_shard(host.header());
        };
        REQUIRE(host.move().ok());
        const ShardWord stale = fabricshm::word_of(host.header());
        publish();
        host.registry->shard_copied(host.copies.jobs.front().shard, stale);
        CHECK_FALSE(host.ended);
        REQUIRE(host.copies.jobs.size() == 2);
        host.copies.jobs.erase(host.copies.jobs.begin());
        host.copy();
        CHECK(host.ended->ok());
        REQUIRE(host.move().ok());
        int copies = 0;
        for (; !host.ended && copies < 100; ++copies) {
            const ShardId id = host.copies.jobs.back().shard;
            publish();
            host.registry->shard_copied(id, stale);
        }
        CHECK(copies == 8);
        CHECK(host.ended->error().code == Errc::kBusy);
        CHECK(host.used() == used);
        CHECK(host.problem() == "");
    }

    TEST_CASE("an old copy is kept for as long as a session reads it") {
        ShardHost host;
        const Bytes used = host.used();
        const auto pin = host.pin();
        REQUIRE(pin.ok());
        REQUIRE(host.move().ok());
        host.copy();
        CHECK(host.ended->ok());
        CHECK(host.view().state == ShardState::kDraining);
        CHECK(host.used() == used + kShardBytes);
        CHECK(host.move().error().code == Errc::kBusy);
        host.registry->expire(kNow);
        const TimePoint next = host.registry->next_deadline();
        CHECK(next > kNow);
        CHECK(next < kNow + 1s);
        host.registry->expire(next);
        CHECK(host.view().state == ShardState::kDraining);
        host.unpin(*pin);
        host.registry->expire(kNow + 10s);
        CHECK(host.view().state == ShardState::kHere);
        CHECK(host.used() == used);
    }

    TEST_CASE(
        "ranks of a group move their shards; what one leaves at its death waits for the group") {
        ShardHost host(4096 * 4096);
        const Bytes used = host.used();
        const auto groups = host.together({host.alice, host.bob}, host.job, "g");
        const Bytes block = host.used() - used;
        REQUIRE(host.move().ok());
        host.copy();
        CHECK(host.view().state == ShardState::kHere);
        CHECK(host.used() == used + block);
        host.registry->end_session(host.alice, "died");
        CHECK(host.used() == used + block);
        CHECK(host.registry->leave_group(host.bob, groups[1]).ok());
        CHECK(host.used() == kHeaderBytes);
        CHECK(host.problem() == "");
    }

    TEST_CASE("a reader that dies lets go of what it read") {
        ShardHost host;
        const Bytes used = host.used();
        REQUIRE(host.pin().ok());
        REQUIRE(host.move().ok());
        host.copy();
        host.registry->end_session(host.bob, "died");
        CHECK(host.view().state == ShardState::kHere);
        CHECK(host.view().readers == 1);
        CHECK(host.used() == used);
        CHECK(host.problem() == "");
    }

    TEST_CASE("an owner that dies ends the shard, not the reads under way") {
        ShardHost host;
        const auto pin = host.pin();
        REQUIRE(pin.ok());
        host.registry->end_session(host.alice, "died");
        CHECK(host.pin().error().code == Errc::kNotFound);
        CHECK(host.view().state == ShardState::kRetired);
        CHECK(host.used() == kHeaderBytes + kShardBytes);
        host.unpin(*pin);
        host.registry->expire(kNow + 1s);
        host.registry->expire(kNow + 2s);
        CHECK(host.used() == kHeaderBytes);  // Bob may look at it until he closes it
        proto::Shard body{};
        body.header = host.opened.header;
        CHECK(host.registry->close_shard(host.bob, body).ok());
        CHECK(host.used() == 0);
        CHECK(host.registry->snapshot(kNow).shards.empty());
        CHECK(host.problem() == "");
    }

    TEST_CASE("an owner that dies in the middle of a move: the copier's bytes go to no other") {
        ShardHost host;
        REQUIRE(host.move().ok());
        const Bytes used = host.used();
        host.registry->end_session(host.alice, "died");
        CHECK(host.copies.jobs.front().progress->cancelled.load());
        CHECK(host.used() == used);
        host.registry->end_session(host.bob, "died");
        CHECK(host.registry->snapshot(kNow).arenas.size() == 1);  // the copier is still at work
        host.registry->shard_copied(host.copies.jobs.front().shard, Error{Errc::kClosed, 0, ""});
        CHECK(host.ended->error().code == Errc::kNotFound);
        CHECK(host.registry->snapshot(kNow).arenas.empty());
        CHECK(host.problem() == "");
    }

    TEST_CASE("a device's quota follows the shard") {
        ShardHost host;
        REQUIRE(host.move("device:small").ok());
        host.copy();
        CHECK(host.view().home_device == "small");
        CHECK(host.registry->snapshot(kNow).devices.front().bytes_used == kShardBytes);
        CHECK(host.move("device:none").error().code == Errc::kNotFound);
        CHECK(host.move("there").error().code == Errc::kInvalid);
        REQUIRE(host.move().ok());  // the second copy fits exactly
        host.copy();
        CHECK(host.registry->snapshot(kNow).devices.front().bytes_used == kShardBytes);
        host.registry->end_session(host.alice, "died");
        CHECK(host.registry->snapshot(kNow).devices.front().bytes_used == 0);
    }

    TEST_CASE("a shard that is given to a device goes to the pages of that device's node") {
        ShardHost host;
        REQUIRE(host.move("device:small").ok());
        REQUIRE(host.copies.jobs.size() == 1);
        CHECK(host.copies.jobs.front().node == 3);
        host.copy();
        CHECK(host.view().home_device == "small");
    }

    TEST_CASE("a move to a device that no node is known of, or that is not there, is refused") {
        ShardHost host;
        const auto label = host.move("device:label");
        CHECK(label.error().code == Errc::kUnsupported);
        CHECK(describe(label.error()).find("numa_node") != std::string::npos);
        CHECK(host.move("device:gone").error().code == Errc::kNotFound);
        CHECK(host.copies.jobs.empty());
        CHECK(host.view().home_device == "");
        CHECK(host.problem() == "");
    }

    TEST_CASE("a shard goes to another arena that its owner has, and that arena stays for it") {
        ShardHost host;
        CHECK(host.move("arena:far").error().code == Errc::kNotFound);
        const SessionId carol = host.session({103, 1000, 1000});
        const ArenaId far = host.arena(carol, "far");
        CHECK(host.move("arena:far").error().code == Errc::kDenied);
        host.arena(host.alice, "far");
        REQUIRE(host.move("arena:far").ok());
        host.copy();
        CHECK(host.view().home_arena == "far");
        CHECK(host.pin()->arena_id == raw(far));
        host.registry->end_session(carol, "died");
        CHECK(host.registry->close_arena({host.alice, 900}, far).error().code == Errc::kBusy);
        host.registry->end_session(host.alice, "died");
        CHECK(host.registry->snapshot(kNow).arenas.size() == 2);  // Bob reads there
        CHECK(host.problem() == "");
        host.registry->end_session(host.bob, "died");
        CHECK(host.registry->snapshot(kNow).arenas.empty());
        CHECK(host.problem() == "");
    }

    TEST_CASE("a daemon killed before the swap undoes the move, one killed after it finishes it") {
        for (const bool swapped : {false, true}) {
            CAPTURE(swapped);
            ShardHost host;
            const ArenaId far = host.arena(host.alice, "far");
            host.arena(host.bob, "far");
            host.keep_files({host.job, far});
            const Bytes used = host.used();
            REQUIRE(host.move("arena:far").ok());
            const ShardWord seen = fabricshm::word_of(host.header());
            if (swapped) REQUIRE(fabricshm::swap_places(host.header(), seen));
            host.restart();
            REQUIRE(host.restored.ok());
            CHECK(host.view().state == ShardState::kDraining);
            host.come_back({host.job, far});
            host.registry->expire(kNow);
            CHECK(host.view().home_arena == (swapped ? "far" : "job"));
            CHECK(host.view().state == ShardState::kHere);
            CHECK(host.used() == used);
            const auto pin = host.pin();
            REQUIRE(pin.ok());
            CHECK(pin->arena_id == raw(swapped ? far : host.job));
            CHECK(host.problem() == "");
            host.unpin(*pin);
            host.restart();  // what was settled is in the journal
            host.come_back({host.job, far});
            CHECK(host.view().home_arena == (swapped ? "far" : "job"));
        }
    }

    // The journal cut off after each of its records, as a kill between two of them leaves it.
    TEST_CASE("wherever a kill cuts the journal off, no copy is lost and none is left over") {
        ShardHost host;
        host.keep_files({host.job});
        const std::size_t begin = host.journal.contents.entries.size();
        REQUIRE(host.move().ok());
        host.copy();
        const auto entries = host.journal.contents.entries;
        const ShardWord now = fabricshm::word_of(host.header());
        for (std::size_t cut = begin; cut <= entries.size(); ++cut) {
            CAPTURE(cut);
            // Before the record of the swap the swap itself may or may not have happened.
            const bool before = cut < begin + 2;
            host.header().word.store(before ? 0 : now.bits);
            host.journal.contents.entries.assign(entries.begin(),
                                                 entries.begin() + static_cast<long>(cut));
            host.restart();
            REQUIRE(host.restored.ok());
            host.come_back({host.job});
            host.registry->expire(kNow);
            CHECK(host.view().state == ShardState::kHere);
            CHECK(host.used() == kHeaderBytes + kShardBytes);
            CHECK(host.pin()->offset == host.view().offset);
            CHECK(host.problem() == "");
            host.unpin_all(0);
            host.unpin_all(1);
        }
    }

    TEST_CASE("a shard whose header was not made before the kill has one afterwards") {
        ShardHost host;
        host.keep_files({host.job});
        host.header().magic.store(0);
        host.header().word.store(~0ULL);
        host.restart();
        host.come_back({host.job});
        const auto pin = host.pin();
        REQUIRE(pin.ok());
        CHECK(pin->word.version() == 0);
        CHECK(pin->offset == host.view().offset);
    }

    TEST_CASE("an owner that asks again after a restart gets the shard that it had made") {
        ShardHost host;
        host.keep_files({host.job});
        host.restart();
        host.come_back({host.job});
        const auto again = host.registry->create_shard(host.alice, host.body());
        REQUIRE(again.ok());
        CHECK(again->header.region_id == host.opened.header.region_id);
        CHECK(host.registry->create_shard(host.bob, host.body()).error().code == Errc::kExists);
        host.registry->expire(kNow + 11s);
        CHECK(host.registry->create_shard(host.alice, host.body()).error().code == Errc::kExists);
    }

    // Each is dropped with what it holds of the other one, and takes the other one along.
    TEST_CASE("two arenas that hold copies of each other's shards both go after a restart") {
        ShardHost host;
        const ArenaId far = host.arena(host.alice, "far");
        REQUIRE(host.move("arena:far").ok());
        host.copy();
        proto::Shard other = host.body();
        other.header.arena_id = raw(far);
        REQUIRE(host.registry->create_shard(host.alice, other).ok());
        REQUIRE(host.registry->move_shard({"far/s", "arena:job", 0}, nullptr).ok());
        const CopyJob order = host.copies.jobs.front();
        host.copies.jobs.clear();
        const auto& header = *reinterpret_cast<const ShardHeader*>(order.header.data);
        host.registry->shard_copied(order.shard, fabricshm::word_of(header));
        host.restart();
        REQUIRE(host.restored.ok());
        SUBCASE("when no session comes back") {}
        SUBCASE("when their owner comes back without them") {
            REQUIRE(host.registry->resume_session(host.alice, kAlice, kToken).ok());
        }
        host.registry->expire(kNow + 1h);
        CHECK(host.registry->snapshot(kNow).arenas.empty());
        CHECK(host.view().state == ShardState::kUnknown);
        CHECK(host.problem() == "");
    }

    TEST_CASE("an arena that was kept for another one's readers is given up along with that one") {
        ShardHost host;
        const ArenaId far = host.arena(host.alice, "far");
        REQUIRE(host.move("arena:far").ok());
        host.copy();
        REQUIRE(host.pin().ok());
        host.registry->end_session(host.alice, "test");
        REQUIRE(host.registry->snapshot(kNow).arenas.size() == 2);  // Bob reads in the far one
        host.restart();
        REQUIRE(host.restored.ok());
        REQUIRE(host.registry->resume_session(host.bob, kBob, kToken).ok());
        SUBCASE("when neither is presented") {}
        SUBCASE("when the device remembers the far one") {
            REQUIRE(host.registry->found_in_pool(far, NotedWork::make(64 * 4096)));
        }
        host.registry->expire(kNow + 1h);
        CHECK(host.registry->snapshot(kNow).arenas.empty());
        CHECK(host.problem() == "");
    }

    TEST_CASE("a shard that was freed while a session has it open is not moved any more") {
        ShardHost host;
        proto::Shard body{};
        body.header = host.opened.header;
        std::strcpy(body.target, "here");
        REQUIRE(host.registry->free_shard(host.alice, body).ok());
        REQUIRE(host.view().state == ShardState::kRetired);
        CHECK(host.registry->ask_move(host.alice, body).error().code == Errc::kNotFound);
        CHECK(host.copies.jobs.empty());
        CHECK(host.problem() == "");
    }

    TEST_CASE("a move that waits for its arena to grow ends with its shard") {
        RegistryHost host;
        host.first_step = 2 * fabricshm::kMiB;
        host.renew();
        const SessionId alice = host.session(kAlice);
        const SessionId bob = host.session(kBob);
        const ArenaId job = host.arena(alice, "job", 16 * fabricshm::kMiB);
        REQUIRE(host.arena(bob, "job", 16 * fabricshm::kMiB) == job);
        proto::Shard body{};
        body.header.arena_id = raw(job);
        copy_name(body.name, "s");
        body.dtype = 5;
        body.ndim = 1;
        body.shape[0] = 3 << 19;
        REQUIRE(host.registry->create_shard(alice, body).ok());
        REQUIRE(host.registry->open_shard({bob, 99}, body, kNow).ok());
        std::optional<Result<void>> ended;
        REQUIRE(host.registry
                    ->move_shard({"job/s", "here", 0},
                                 [&](const Result<void>& outcome) { ended = outcome; })
                    .ok());
        REQUIRE(host.work.grown.size() == 1);
        host.registry->end_session(alice, "test");
        host.work.finish_growth();
        REQUIRE(ended.has_value());
        CHECK(ended->error().code == Errc::kNotFound);
        CHECK(host.registry->problems().empty());
    }

    // The copier still writes to the new place when no session has the home open any more.
    TEST_CASE("what is copied between two other arenas stays taken until the copy ends") {
        ShardHost host;
        const ArenaId far = host.arena(host.alice, "far");
        const ArenaId other = host.arena(host.alice, "other");
        REQUIRE(host.move("arena:far").ok());
        host.copy();
        const SessionId carol = host.session({103, 1000, 1000});
        REQUIRE(host.arena(carol, "other") == other);
        REQUIRE(host.move("arena:other").ok());
        const CopyJob order = host.copies.jobs.front();
        host.registry->end_session(host.alice, "test");
        host.registry->end_session(host.bob, "test");
        host.registry->expire(kNow + 1h);
        CHECK(host.used() >= kShardBytes);
        host.registry->shard_copied(order.shard, Error{Errc::kClosed, 0, "test"});
        CHECK(host.used() == 0);
        CHECK(host.problem() == "");
        const auto left = host.registry->snapshot(kNow).arenas;
        REQUIRE(left.size() == 1);
        CHECK(left[0].id == raw(other));
        host.registry->end_session(carol, "test");
        CHECK(host.registry->snapshot(kNow).arenas.empty());
        CHECK(far != other);
    }

    TEST_CASE("only the owner frees and moves it, and its regions can't be freed one by one") {
        ShardHost host;
        proto::Shard body{};
        body.header = host.opened.header;
        copy_name(body.name, "s");
        std::strcpy(body.target, "here");
        CHECK(host.registry->ask_move(host.bob, body).error().code == Errc::kDenied);
        CHECK(host.registry->free_shard(host.bob, body).error().code == Errc::kDenied);
        const auto freed =
            host.registry->free_region(host.alice, host.job, RegionId{body.header.region_id});
        CHECK(freed.error().code == Errc::kDenied);
        CHECK(host.registry->ask_move(host.alice, body).ok());
        host.copy();
        CHECK(host.registry->free_shard(host.alice, body).ok());
        CHECK(host.registry->free_shard(host.alice, body).error().code == Errc::kNotFound);
        CHECK(host.registry->create_shard(host.alice, host.body()).ok());  // the name is free
        CHECK(host.problem() == "");
    }

    TEST_CASE("an arena that may have been kept for a copy alone is named when the copy goes") {
        BooksHost host;
        Session& alice = host.session();
        Arena& home = host.arena({alice.id});
        Arena& other = host.arena({alice.id});
        proto::Shard body{};
        body.header.arena_id = raw(home.id);
        copy_name(body.name, "weights");
        body.dtype = 1;
        body.ndim = 1;
        body.shape[0] = 10;
        const auto made = host.shards.create(alice.id, body, host.out).value();
        const ShardId id{home.id, RegionId{made.header.region_id}};
        Shard& shard = host.books.shard(id);
        const RegionId copy = host.regions.make_copy(alice, other, 4096, "", id).value();
        shard.copies[1] = ShardCopy{other.id, copy, other.leases.find(copy)->epoch};
        host.books.loose_shards.insert(id);
        CHECK(host.out.left.empty());
        host.shards.sweep_all(host.out);
        CHECK_FALSE(shard.copies[1]);
        CHECK(host.out.left == std::vector{other.id});
        CHECK(other.regions.empty());
        CHECK(host.books.problems().empty());
    }
}
