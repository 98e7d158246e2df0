#include "fabricd/server/shard_copier.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstring>

#include "libfabricshm/os/poison.hpp"

using namespace fabricd;
using fabricshm::kMiB;
using fabricshm::ShardHeader;
using namespace std::chrono_literals;

namespace {

constexpr TimePoint kNow{1h};
constexpr Bytes kBytes = 2 * kMiB + kMiB / 2;

/// A header and two places in one mapping whose lost pages are dealt with.
class Place {
  public:
    Place()
        : memory_(static_cast<std::byte*>(
              ::mmap(nullptr, kLength, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))),
          watch_(memory_, kLength, {}) {
        fabricshm::format_shard(header(), {1, 1}, kBytes, 1, 0);
        std::memset(from(), 7, kBytes);
    }
    ~Place() { ::munmap(memory_, kLength); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    ShardHeader& header() const { return *reinterpret_cast<ShardHeader*>(memory_); }
    std::byte* from() const { return memory_ + kMiB; }
    std::byte* to() const { return from() + 4 * kMiB; }
    bool copied() const { return std::memcmp(from(), to(), kBytes) == 0; }

    CopyJob job(Bytes bytes_per_second = 0) const {
        CopyJob job;
        job.header.data = memory_;
        job.from.data = from();
        job.to.data = to();
        job.bytes = kBytes;
        job.bytes_per_second = bytes_per_second;
        job.progress = std::make_shared<CopyProgress>();
        return job;
    }

    mutable PresentPages pages;

  private:
    static constexpr Bytes kLength = 16 * kMiB;
    std::byte* memory_;
    fabricshm::PoisonWatch watch_;
};

/// Steps until there is an outcome; time stands still.
ShardCopier::Outcome finish(ShardCopier& copy, const Place& place, TokenBucket& all,
                            TimePoint now = kNow) {
    for (int i = 0; i < 100; ++i) {
        if (auto outcome = copy.step(all, place.pages, now)) return *outcome;
    }
    return Error{Errc::kTimeout, 0, "test"};
}

}  // namespace

TEST_SUITE("server.shard_copier") {
    TEST_CASE("a copy is made in pieces, and knows the word of before the first of them") {
        const Place place;
        TokenBucket all(0, kNow);
        const CopyJob job = place.job();
        ShardCopier copy(job, kNow);
        CHECK_FALSE(copy.step(all, place.pages, kNow));
        CHECK_FALSE(copy.step(all, place.pages, kNow));
        CHECK(job.progress->done.load() == kMiB);
        REQUIRE(fabricshm::begin_write(place.header(), {1, 1}).ok());
        fabricshm::publish_shard(place.header());
        const auto seen = finish(copy, place, all);
        REQUIRE(seen.ok());
        CHECK(seen->version() == 0);
        CHECK_FALSE(fabricshm::swap_places(place.header(), *seen));
        CHECK(place.copied());
        CHECK(job.progress->done.load() == kBytes);
    }

    TEST_CASE("an owner that writes is waited for, and not without end") {
        const Place place;
        TokenBucket all(0, kNow);
        REQUIRE(fabricshm::begin_write(place.header(), {1, 1}).ok());
        ShardCopier copy(place.job(), kNow);
        CHECK_FALSE(copy.step(all, place.pages, kNow));
        CHECK(copy.due() > kNow);
        CHECK_FALSE(copy.step(all, place.pages, kNow + 249ms));
        const auto outcome = copy.step(all, place.pages, kNow + 250ms);
        REQUIRE(outcome);
        CHECK(outcome->error().code == Errc::kBusy);

        ShardCopier again(place.job(), kNow);
        CHECK_FALSE(again.step(all, place.pages, kNow));
        fabricshm::publish_shard(place.header());
        CHECK_FALSE(again.step(all, place.pages, again.due()));
        CHECK(finish(again, place, all, again.due())->version() == 1);
    }

    TEST_CASE("neither the order's rate is passed nor the one of all copies together") {
        const Place place;
        for (const bool by_order : {true, false}) {
            TokenBucket all(by_order ? 0 : kMiB, kNow);
            // What an order allows more than the daemon does is nothing.
            ShardCopier copy(place.job(by_order ? kMiB : 1000 * kMiB), kNow);
            CHECK_FALSE(copy.step(all, place.pages, kNow));  // the owner
            CHECK_FALSE(copy.step(all, place.pages, kNow));  // the first piece
            CHECK_FALSE(copy.step(all, place.pages, kNow));  // the second one waits
            CHECK_FALSE(copy.step(all, place.pages, kNow + 1ms));
            CHECK((copy.due() == kNow + 1s));
            CHECK_FALSE(copy.step(all, place.pages, kNow + 999ms));
            CHECK(copy.job().progress->done.load() == kMiB);
            CHECK_FALSE(copy.step(all, place.pages, kNow + 1s));
            CHECK(copy.job().progress->done.load() == 2 * kMiB);
        }
    }

    TEST_CASE("a cancelled copy ends at its next step, also one that waits") {
        const Place place;
        TokenBucket all(0, kNow);
        ShardCopier copy(place.job(1), kNow);
        for (int i = 0; i < 3; ++i) CHECK_FALSE(copy.step(all, place.pages, kNow));
        CHECK(copy.due() > kNow + 1h);
        copy.job().progress->cancelled.store(true);
        CHECK(copy.step(all, place.pages, kNow)->error().code == Errc::kClosed);
    }

    TEST_CASE("bytes that were lost are not taken for zeros, however often it is tried") {
        for (const bool of_target : {false, true}) {
            const Place place;
            TokenBucket all(0, kNow);
            fabricshm::lose_page((of_target ? place.to() : place.from()) + kMiB + 4096);
            for (int attempt = 0; attempt < 2; ++attempt) {
                CAPTURE(attempt);
                ShardCopier copy(place.job(), kNow);
                CHECK(finish(copy, place, all).error().code == Errc::kPoisoned);
                CHECK(copy.job().progress->done.load() == kMiB);
            }
        }
    }
}
