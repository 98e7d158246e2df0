// Quotas of devices and users that change while the daemon runs, and after it was killed.

#include <doctest/doctest.h>

#include "tests/support/books_host.hpp"

using namespace test_support;

namespace {

struct QuotaHost : RegistryHost {
    QuotaHost() {
        devices = {{"gpu0", "gpu", 1.0, 100, 64 * 4096, 4 * 4096, 1.0, 0, {}}};
        renew();
        alice = registry->open_session(kAlice, "test", kToken, kNow, "gpu0").value();
        job = arena(alice);
    }
    Result<QuotaState> set(const char* subject, Bytes bytes, std::int64_t grace_ms = 10'000) {
        return registry->set_quota({subject, bytes, grace_ms}, kNow);
    }
    DeviceView device(TimePoint now = kNow) const {
        return registry->snapshot(now).devices.front();
    }
    SessionId alice;
    ArenaId job;
};

/// Two devices that have the pool between them; "gpu0" holds 3 pages, "gpu1" nothing.
struct ShiftHost : RegistryHost {
    ShiftHost() {
        devices = {{"gpu0", "gpu", 1.0, 100, 64 * 4096, 8 * 4096, 1.0, 0, {}},
                   {"gpu1", "gpu", 1.0, 100, 64 * 4096, 4 * 4096, 1.0, 0, {}}};
        renew();
        alice = registry->open_session(kAlice, "test", kToken, kNow, "gpu0").value();
        job = arena(alice);
        REQUIRE(region(alice, job, 3 * 4096).ok());
    }
    /// In pages.
    Errc shift(Bytes from, Bytes to, Bytes other_from, Bytes other_to) {
        // The one that takes comes first: the order does not matter.
        return registry
            ->shift_quotas(
                {{"gpu1", other_from * 4096, other_to * 4096}, {"gpu0", from * 4096, to * 4096}},
                kNow)
            .error()
            .code;
    }
    std::pair<Bytes, Bytes> quotas() const {
        const auto views = registry->snapshot(kNow).devices;
        return {views[0].spec.quota_bytes / 4096, views[1].spec.quota_bytes / 4096};
    }
    using Pages = std::pair<Bytes, Bytes>;
    SessionId alice;
    ArenaId job;
};

}  // namespace

TEST_SUITE("pool.quotas") {
    TEST_CASE("what one device gives another one takes, all of it or nothing") {
        ShiftHost host;
        using Pages = ShiftHost::Pages;
        // Not what was decided from: one that was set since, and one that shrinks.
        CHECK(host.shift(7, 3, 4, 8) == Errc::kBusy);
        REQUIRE(host.registry->set_quota({"gpu0", 2 * 4096, 10'000}, kNow).ok());
        CHECK(host.shift(2, 1, 4, 5) == Errc::kBusy);
        CHECK(host.shift(8, 7, 4, 5) == Errc::kBusy);
        REQUIRE(host.registry->set_quota({"gpu0", 8 * 4096, 0}, kNow).ok());
        // One page less than it holds; more than there is; more than the device has; no such
        // device.
        CHECK(host.shift(8, 2, 4, 10) == Errc::kBusy);
        CHECK(host.shift(8, 7, 4, 6) == Errc::kInvalid);
        CHECK(host.shift(8, 3, 4, 65) == Errc::kInvalid);
        CHECK(host.registry->shift_quotas({{"gpu7", 4096, 4096}}, kNow).error().code ==
              Errc::kNotFound);
        CHECK(host.quotas() == Pages{8, 4});
        CHECK_FALSE(host.registry->quotas().shrink());
        const std::uint64_t changes = host.registry->quotas().changes();

        CHECK(host.shift(8, 3, 4, 9) == Errc::kOk);
        CHECK(host.quotas() == Pages{3, 9});
        CHECK_FALSE(host.registry->quotas().shrink());
        CHECK(host.registry->quotas().changes() > changes);
        CHECK(host.region(host.alice, host.job).error().code == Errc::kNoMemory);
        host.restart();
        CHECK(host.quotas() == Pages{3, 9});
    }

    TEST_CASE("a daemon killed in the middle of a shift has promised nothing twice") {
        ShiftHost host;
        const std::size_t before = host.journal.contents.entries.size();
        REQUIRE(host.shift(8, 3, 4, 9) == Errc::kOk);
        const auto written = host.journal.contents.entries;
        for (std::size_t records = before; records <= written.size(); ++records) {
            CAPTURE(records);
            host.journal.contents.entries = {
                written.begin(), written.begin() + static_cast<std::ptrdiff_t>(records)};
            host.restart();
            REQUIRE(host.restored.ok());
            const auto [first, second] = host.quotas();
            CHECK(first + second <= 12);
        }
    }

    TEST_CASE("a shift that the journal has room for half of did not happen") {
        ShiftHost host;
        host.journal.room = 1;
        CHECK(host.shift(8, 3, 4, 9) == Errc::kNoMemory);
        CHECK(host.quotas() == ShiftHost::Pages{8, 4});
        // What it says of the one that would have given is not true any more.
        CHECK(host.registry->journal_behind());
        MemoryJournal fresh;
        REQUIRE(host.registry->write_journal(fresh).ok());
        host.journal = fresh;
        host.restart();
        CHECK(host.quotas() == ShiftHost::Pages{8, 4});

        // Where nothing of it was written there is nothing to put right.
        host.journal.room = 0;
        CHECK(host.shift(8, 3, 4, 9) == Errc::kNoMemory);
        CHECK_FALSE(host.registry->journal_behind());
    }

    TEST_CASE("a device's quota grows at once and shrinks when its sessions have given back") {
        QuotaHost host;
        const auto held = host.region(host.alice, host.job, 4 * 4096);
        REQUIRE(held.ok());
        CHECK(host.region(host.alice, host.job).error().code == Errc::kNoMemory);
        CHECK(host.set("gpu0", 6 * 4096)->quota_bytes == 6 * 4096);
        CHECK(host.region(host.alice, host.job).ok());
        const auto shrinking = host.set("gpu0", 2 * 4096);
        REQUIRE(shrinking.ok());
        CHECK(shrinking->quota_bytes == 6 * 4096);
        CHECK(shrinking->target_bytes == 2 * 4096);
        CHECK(shrinking->used_bytes == 5 * 4096);
        CHECK(host.device().quota_left_ms == 10'000);
        CHECK(host.region(host.alice, host.job).error().code == Errc::kNoMemory);
        CHECK(host.registry->free_region(host.alice, host.job, RegionId{held->region_id}).ok());
        host.registry->expire(kNow + 1s);
        CHECK(host.device().spec.quota_bytes == 2 * 4096);
        CHECK(host.device().quota_left_ms == 0);
    }

    TEST_CASE("only what a quota refuses counts as refused") {
        QuotaHost host;
        const ArenaId small = host.arena(host.alice, "small", 8 * 4096);
        const auto denied = [&] {
            return host.registry->account_of(host.alice, small, GroupId::kNone, 0).denied;
        };
        REQUIRE(host.set("gpu0", 64 * 4096).ok());
        // There is quota enough: a larger one would not make the arena larger.
        CHECK(host.region(host.alice, small, 20 * 4096).error().code == Errc::kNoMemory);
        CHECK(host.region(host.alice, small, ~Bytes{0}).error().code == Errc::kNoMemory);
        CHECK(denied() == 0);
        // Nor would it help one that asks for more than the arena has.
        REQUIRE(host.set("gpu0", 4096).ok());
        CHECK(host.region(host.alice, small, 9 * 4096).error().code == Errc::kNoMemory);
        CHECK(host.region(host.alice, small, Bytes{1} << 46).error().code == Errc::kNoMemory);
        CHECK(denied() == 0);
        CHECK(host.device().bytes_denied == 0);
        CHECK(host.region(host.alice, small, 8 * 4096).error().code == Errc::kNoMemory);
        CHECK(denied() == 8 * 4096);
    }

    TEST_CASE(
        "a session that asks again and again wants no more than its arenas can hold, each of them "
        "once") {
        QuotaHost host;
        const ArenaId small = host.arena(host.alice, "small", 8 * 4096);
        REQUIRE(host.region(host.alice, small, 2 * 4096).ok());
        REQUIRE(host.set("gpu0", 2 * 4096).ok());
        for (int i = 0; i < 100; ++i) {
            CHECK(host.region(host.alice, small, 6 * 4096).error().code == Errc::kNoMemory);
        }
        Bytes room = 0;
        for (const ArenaView& arena : host.registry->snapshot(kNow).arenas) {
            room += arena.bytes - arena.bytes_used;
        }
        const auto device = host.registry->places({}, kNow).devices.at(0);
        CHECK(device.bytes_denied > room);
        CHECK(device.arena_room_bytes == room);
    }

    TEST_CASE("no session loses memory when nothing is given back") {
        QuotaHost host;
        REQUIRE(host.region(host.alice, host.job, 4 * 4096).ok());
        REQUIRE(host.set("gpu0", 4096).ok());
        CHECK(host.registry->next_deadline() == kNow + 10s);
        host.registry->expire(kNow + 10s);
        CHECK(host.device().spec.quota_bytes == 4 * 4096);
        CHECK(host.registry->problems().empty());
    }

    TEST_CASE("what makes no sense is refused and changes nothing") {
        QuotaHost host;
        CHECK(host.set("gpu7", 4096).error().code == Errc::kNotFound);
        CHECK(host.set("user:alice", 4096).error().code == Errc::kNotFound);
        CHECK(host.set("gpu0", 65 * 4096).error().code == Errc::kInvalid);
        host.journal.broken = true;
        CHECK_FALSE(host.set("gpu0", 8 * 4096).ok());
        CHECK(host.device().spec.quota_bytes == 4 * 4096);
    }

    TEST_CASE("a user's quota bounds its next arenas") {
        QuotaHost host;
        CHECK(host.set("user:1000", 64 * 4096)->used_bytes == 64 * 4096);
        CHECK(host.arena(host.alice, "second") == ArenaId::kNone);
        CHECK(host.last_error.code == Errc::kNoMemory);
        CHECK(host.set("user:1000", 0)->quota_bytes == 0);
        CHECK(host.arena(host.alice, "second") != ArenaId::kNone);
    }

    TEST_CASE("a user's quota has one name, and the last word counts after a restart") {
        QuotaHost host;
        REQUIRE(host.set("user:1000", 64 * 4096).ok());
        REQUIRE(host.set("user:0001000", 65 * 4096).ok());
        REQUIRE(host.set("user:1000", 66 * 4096).ok());
        REQUIRE(host.set("user:00001000", 67 * 4096).ok());
        host.restart();
        const auto quotas = host.registry->quotas_of("", 1000, kNow);
        CHECK(quotas.user.limit_bytes == 67 * 4096);
    }

    TEST_CASE("what sessions hear: the limit, what it shrinks to, and until when") {
        QuotaHost host;
        using fabricshm::kNoLimit;
        const auto quotas = [&](const char* device, TimePoint now = kNow) {
            return host.registry->quotas_of(device, 1000, now);
        };
        CHECK(quotas("").device.limit_bytes == kNoLimit);
        CHECK(quotas("gone").device.limit_bytes == 0);
        CHECK(quotas("gpu0").device.limit_bytes == 4 * 4096);
        CHECK(quotas("gpu0").user.limit_bytes == kNoLimit);
        CHECK(quotas("gpu0").user.used_bytes == 64 * 4096);
        REQUIRE(host.region(host.alice, host.job, 4 * 4096).ok());

        const std::uint64_t before = host.registry->quotas().changes();
        REQUIRE(host.set("gpu0", 4096).ok());
        REQUIRE(host.set("user:1000", 10 * 4096, 3'000).ok());
        CHECK(host.registry->quotas().changes() == before + 2);
        CHECK(host.registry->quotas().shrink());
        const auto shrinking = quotas("gpu0", kNow + 1s);
        CHECK(shrinking.device.limit_bytes == 4 * 4096);
        CHECK(shrinking.device.target_bytes == 4096);
        CHECK(shrinking.device.used_bytes == 4 * 4096);
        CHECK(shrinking.device.deadline_ns == (kNow + 10s).time_since_epoch().count());
        CHECK(shrinking.user.limit_bytes == kNoLimit);
        CHECK(shrinking.user.target_bytes == 10 * 4096);
        CHECK(shrinking.user.deadline_ns == (kNow + 3s).time_since_epoch().count());

        host.registry->expire(kNow + 10s);
        CHECK(host.registry->quotas().changes() == before + 4);
        CHECK_FALSE(host.registry->quotas().shrink());
        CHECK(quotas("gpu0").device.limit_bytes == 4 * 4096);  // not below what is used
        CHECK(quotas("gpu0").device.deadline_ns == 0);
        CHECK(quotas("gpu0").user.limit_bytes == 64 * 4096);
    }

    TEST_CASE("after a restart quotas are what they were set to, until the file says otherwise") {
        QuotaHost host;
        REQUIRE(host.region(host.alice, host.job, 4 * 4096).ok());
        REQUIRE(host.set("gpu0", 2 * 4096).ok());
        REQUIRE(host.set("user:1000", 64 * 4096).ok());
        host.restart();
        REQUIRE(host.restored.ok());
        CHECK(host.device().spec.quota_bytes == 4 * 4096);
        CHECK(host.device().quota_target_bytes == 2 * 4096);
        CHECK_FALSE(host.registry->idle());
        // Rewritten, the journal says the same.
        MemoryJournal fresh;
        REQUIRE(host.registry->write_journal(fresh).ok());
        host.journal.contents = fresh.contents;
        host.restart();
        CHECK(host.device().quota_target_bytes == 2 * 4096);
        CHECK(host.device().quota_left_ms == 10'000);
        CHECK(host.registry->set_quota({"user:1000", 64 * 4096, 0}, kNow)->quota_bytes ==
              64 * 4096);
        host.devices.front().quota_bytes = 5 * 4096;
        host.restart();
        CHECK(host.device().spec.quota_bytes == 5 * 4096);
        CHECK(host.device().quota_target_bytes == 5 * 4096);
    }

    TEST_CASE("a quota that cannot be written down is not changed") {
        BooksHost host({{"gpu0", "gpu", 1.0, 100, 64 * 4096, 4 * 4096, 1.0, 0, {}}});
        host.file.broken = true;
        CHECK_FALSE(host.quotas.set({"gpu0", 4096, 0}, kNow).ok());
        CHECK(host.quotas.changes() == 0);
        CHECK(host.books.devices.quota_of("gpu0", kNow).quota_bytes == 4 * 4096);
        host.file.broken = false;
        CHECK(host.quotas.set({"gpu0", 4096, 0}, kNow).value().quota_bytes == 4096);
        CHECK(host.quotas.changes() == 1);
        CHECK(host.quotas.next_deadline() == TimePoint::max());
        CHECK(host.records(RecordType::kQuota) == 1);
    }
}
