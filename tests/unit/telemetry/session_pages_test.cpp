#include "fabricd/telemetry/session_pages.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "libfabricshm/os/mapping.hpp"

using namespace fabricd;
using fabricshm::DirectiveImage;
using fabricshm::Errc;
using fabricshm::Fd;
using fabricshm::Mapping;

namespace {

constexpr std::int64_t kStaleNs = 1'000;

// The session's end of its telemetry page.
class Writer {
  public:
    explicit Writer(const Fd& page)
        : mapping_(Mapping::map(page, 0, fabricshm::kTelemetryFileBytes, {}).value()) {}
    void write(std::int64_t now_ns, std::uint64_t samples, std::int32_t world = 0) {
        auto image = fabricshm::empty_telemetry();
        image.written_ns = now_ns;
        image.samples = samples;
        if (world > 0) {
            image.group_id = 9;
            image.rank = 0;
            image.world = world;
        }
        image.peers.resize(static_cast<std::size_t>(world));
        for (auto& peer : image.peers) peer.bytes_to = samples;
        fabricshm::write_telemetry_head(mapping_.data(), image);
        fabricshm::write_telemetry_peers(mapping_.data(), image);
    }
    std::byte* data() { return mapping_.data(); }

  private:
    Mapping mapping_;
};

PageOwner owner(std::uint64_t session) {
    return {session, 100 + static_cast<std::int32_t>(session), 0, "job", "gpu0"};
}

DirectiveImage order(std::uint64_t serial, std::uint32_t interval) {
    DirectiveImage image{};
    image.serial = serial;
    image.sync_interval = interval;
    return image;
}

DirectiveImage read(const Fd& page) {
    const auto mapping = Mapping::map(page, 0, 4096, {.writable = false}).value();
    DirectiveImage image{};
    std::uint64_t seen = 0;
    (void)fabricshm::read_directives(mapping.data(), image, seen);
    return image;
}

}  // namespace

TEST_SUITE("telemetry.session_pages") {
    TEST_CASE("a sample has one entry for each page, by session, until the session ends") {
        SessionPages pages;
        Writer second(pages.open_telemetry(owner(2)).value());
        Writer first(pages.open_telemetry(owner(1)).value());
        REQUIRE(pages.open_directives(owner(3)).ok());
        std::vector<SessionSample> sessions;
        first.write(10'000, 5);
        pages.sample(sessions, 10'500, kStaleNs, 0, 1);
        REQUIRE(sessions.size() == 2);
        CHECK(sessions[0].session_id == 1);
        CHECK(sessions[0].pid == 101);
        CHECK(sessions[0].device == "gpu0");
        CHECK(sessions[0].image.samples == 5);
        CHECK_FALSE(sessions[0].stale);
        CHECK(sessions[1].stale);

        second.write(10'600, 6);
        Writer fourth(pages.open_telemetry(owner(4)).value());
        fourth.write(10'700, 7);
        pages.end(1);
        pages.end(1);
        pages.sample(sessions, 10'800, kStaleNs, 1, 1);
        REQUIRE(sessions.size() == 2);
        CHECK(sessions[0].image.samples == 6);
        CHECK(sessions[1].session_id == 4);
        CHECK(sessions[1].image.samples == 7);
    }

    TEST_CASE("a session that writes nothing for a while, or from far in the future, is stale") {
        SessionPages pages;
        Writer writer(pages.open_telemetry(owner(1)).value());
        std::vector<SessionSample> sessions;
        writer.write(10'000, 1);
        pages.sample(sessions, 11'000, kStaleNs, 0, 1);
        CHECK_FALSE(sessions[0].stale);
        pages.sample(sessions, 11'001, kStaleNs, 0, 1);
        CHECK(sessions[0].stale);
        writer.write(20'000, 2);
        pages.sample(sessions, 18'999, kStaleNs, 0, 1);
        CHECK(sessions[0].stale);
        // It wrote after the clock was read: that is as fresh as can be.
        pages.sample(sessions, 19'999, kStaleNs, 0, 1);
        CHECK_FALSE(sessions[0].stale);
    }

    TEST_CASE("the rows of each session are read in turn") {
        SessionPages pages;
        Writer a(pages.open_telemetry(owner(1)).value());
        Writer b(pages.open_telemetry(owner(2)).value());
        a.write(10, 5, 4);
        b.write(10, 6, 4);
        std::vector<SessionSample> sessions;
        pages.sample(sessions, 10, kStaleNs, 0, 2);
        CHECK(sessions[0].image.peers.at(3).bytes_to == 5);
        CHECK(sessions[1].image.peers.empty());
        pages.sample(sessions, 10, kStaleNs, 1, 2);
        CHECK(sessions[1].image.peers.size() == 4);
        CHECK(sessions[1].image.peers.at(3).bytes_to == 6);
    }

    TEST_CASE("a second page replaces the first, and its counters start again from 0") {
        SessionPages pages;
        Writer old(pages.open_telemetry(owner(1)).value());
        old.write(10, 500);
        std::vector<SessionSample> sessions;
        pages.sample(sessions, 10, kStaleNs, 0, 1);
        Writer fresh(pages.open_telemetry(owner(1)).value());
        old.write(20, 600);
        pages.sample(sessions, 20, kStaleNs, 0, 1);
        REQUIRE(sessions.size() == 1);
        CHECK(sessions[0].image.samples == 0);
        fresh.write(30, 3);
        pages.sample(sessions, 30, kStaleNs, 0, 1);
        CHECK(sessions[0].image.samples == 3);
    }

    TEST_CASE("a page whose writer never ends is sampled all the same") {
        SessionPages pages;
        Writer bad(pages.open_telemetry(owner(1)).value());
        Writer good(pages.open_telemetry(owner(2)).value());
        bad.write(10, 1);
        good.write(10, 2);
        std::vector<SessionSample> sessions;
        pages.sample(sessions, 10, kStaleNs, 0, 1);
        auto& page = *reinterpret_cast<fabricshm::TelemetryPage*>(bad.data());
        fabricshm::seqlock_begin(page.head_sequence);
        good.write(5'000, 3);
        pages.sample(sessions, 5'000, kStaleNs, 0, 1);
        CHECK(sessions[0].stale);
        CHECK(sessions[0].image.samples == 1);
        CHECK(sessions[1].image.samples == 3);
    }

    TEST_CASE("directives reach the session that asked for them, with rising serials only") {
        SessionPages pages;
        CHECK(pages.direct(1, order(1, 2)).error().code == Errc::kNotFound);
        const Fd page = pages.open_directives(owner(1)).value();
        CHECK(read(page).serial == 0);
        CHECK(pages.directed() == std::vector<std::uint64_t>{1});
        CHECK(pages.direct(1, order(3, 2)).ok());
        CHECK(read(page).sync_interval == 2);
        CHECK(pages.direct(1, order(3, 4)).error().code == Errc::kInvalid);
        DirectiveImage bad = order(4, 4);
        bad.batch_share[0] = 2;
        CHECK(pages.direct(1, bad).error().code == Errc::kInvalid);
        CHECK(read(page).sync_interval == 2);
        // A session that lost its page finds the same in the next one.
        CHECK(read(pages.open_directives(owner(1)).value()).sync_interval == 2);
    }

    TEST_CASE("quotas are announced to sessions that read directives, and news raise the serial") {
        SessionPages pages;
        const Fd page = pages.open_directives(owner(1)).value();
        Writer other(pages.open_telemetry(owner(2)).value());
        const auto quotas = [&] {
            const auto mapping = Mapping::map(page, 0, 4096, {.writable = false}).value();
            fabricshm::QuotaImage image{};
            std::uint64_t seen = 0;
            (void)fabricshm::read_quotas(mapping.data(), image, seen);
            return image;
        };
        pages.tell_quota(1, {0, {100, 100, 10, 0}, {200, 200, 20, 0}});
        pages.tell_quota(3, {});
        CHECK(quotas().serial == 1);
        const auto tell = [&](std::uint64_t target, std::uint64_t used) {
            pages.tell_quotas([&](const PageOwner& who) {
                CHECK(who.device == "gpu0");
                return fabricshm::QuotaImage{0, {100, target, used, 5}, {200, 200, 20, 0}};
            });
        };
        tell(60, 80);
        CHECK(quotas().serial == 2);
        CHECK(quotas().device.target_bytes == 60);
        tell(60, 70);
        CHECK(quotas().serial == 2);
        CHECK(quotas().device.used_bytes == 70);
    }

    TEST_CASE("a session cannot map its directives for writing") {
        SessionPages pages;
        const Fd page = pages.open_directives(owner(1)).value();
        CHECK(Mapping::map(page, 0, 4096, {.writable = true}).error().code == Errc::kDenied);
    }

    TEST_CASE("a session gets so many pages and no more, and another one is not concerned") {
        SessionPages pages;
        std::vector<Fd> kept;
        const auto fill = [&](auto open) {
            int count = 0;
            for (auto page = open(); page.ok() && count < 1000; page = open()) {
                kept.push_back(std::move(page).value());
                ++count;
            }
            return count;
        };
        CHECK(fill([&] { return pages.open_telemetry(owner(1)); }) ==
              SessionPages::kPagesOfSession);
        CHECK(fill([&] { return pages.open_directives(owner(1)); }) ==
              SessionPages::kPagesOfSession);
        CHECK(pages.open_telemetry(owner(1)).error().code == fabricshm::Errc::kNoMemory);
        CHECK(pages.open_telemetry(owner(2)).ok());
        // What it has is sampled on.
        std::vector<SessionSample> sessions;
        pages.sample(sessions, 0, kStaleNs, 0, 1);
        CHECK(sessions.size() == 2);
    }

    TEST_CASE("a user's sessions together get so many more pages than their first ones") {
        SessionPages pages;
        const auto of = [](std::uint64_t session, std::uint32_t uid) {
            PageOwner made = owner(session);
            made.uid = uid;
            return made;
        };
        int given = 0;
        std::uint64_t session = 0;
        for (bool full = false; !full && session < 100; full = given >= 1000) {
            ++session;
            while (pages.open_telemetry(of(session, 1000)).ok()) ++given;
            while (pages.open_directives(of(session, 1000)).ok()) ++given;
        }
        CHECK(given == 2 * 100 + SessionPages::kMorePagesOfUser);
        CHECK(pages.open_telemetry(of(101, 1000)).ok());  // its first
        CHECK(pages.open_telemetry(of(101, 1000)).error().code == Errc::kNoMemory);
        CHECK(pages.open_telemetry(of(102, 1001)).ok());
        CHECK(pages.open_telemetry(of(102, 1001)).ok());
        // Those of a session that has ended are free for others again.
        pages.end(1);
        CHECK(pages.open_telemetry(of(101, 1000)).ok());
    }

    TEST_CASE("a telemetry page that is replaced, or whose session ended, takes no memory") {
        SessionPages pages;
        const auto blocks = [](const Fd& page) {
            struct stat status {};
            return ::fstat(page.get(), &status) == 0 ? status.st_blocks : -1;
        };
        const Fd first = pages.open_telemetry(owner(1)).value();
        CHECK(blocks(first) > 0);
        const Fd second = pages.open_telemetry(owner(1)).value();
        CHECK(blocks(first) == 0);
        CHECK(blocks(second) > 0);
        pages.end(1);
        CHECK(blocks(second) == 0);
    }

    TEST_CASE("waits are those of all sessions, and a read makes no memory of a page's holes") {
        SessionPages pages;
        const auto blocks = [](const Fd& page) {
            struct stat status {};
            return ::fstat(page.get(), &status) == 0 ? status.st_blocks : -1;
        };
        const Fd first = pages.open_telemetry(owner(1)).value();
        const Fd second = pages.open_telemetry(owner(2)).value();
        CHECK(pages.open_directives(owner(3)).ok());
        const auto before = blocks(first);
        CHECK(pages.waits().empty());
        CHECK(blocks(first) == before);
        Writer writer(second);
        fabricshm::WaitRecord records[fabricshm::kWaitsShown] = {};
        for (const int place : {1, 6}) {
            records[place].arena_id = records[place].group_id = 9;
            records[place].rank = place;
            records[place].world = 8;
            add_late(records[place], 0);
        }
        records[3] = records[1];
        records[3].rank = 8;  // not in the world
        fabricshm::write_telemetry_waits(writer.data(), records);
        const auto waits = pages.waits();
        REQUIRE(waits.size() == 2);
        CHECK(waits[0].session_id == 2);
        CHECK(waits[0].record.rank == 1);
        CHECK(waits[1].record.rank == 6);
        pages.end(2);
        CHECK(pages.waits().empty());
    }
}
