#include "fabricd/data/blocks/s3_fifo.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

using namespace fabricd;

namespace {

using Ids = std::vector<S3Fifo::BlockId>;

bool any(S3Fifo::BlockId) {
    return true;
}

// Reads of `ids` in turn; how many found their block.
int hits_of(S3Fifo& cache, const Ids& ids) {
    int hits = 0;
    for (const auto id : ids) {
        Ids evicted;
        if (cache.has(id)) {
            cache.touch(id);
            ++hits;
        } else {
            cache.add(id, 1, any, evicted);
        }
    }
    return hits;
}

}  // namespace

TEST_SUITE("data.s3_fifo") {
    TEST_CASE("a scan of blocks that are read once takes nothing from those that are read often") {
        S3Fifo cache(100);
        Ids often;
        for (int turn = 0; turn < 20; ++turn) {
            for (S3Fifo::BlockId id = 0; id < 50; ++id) often.push_back(id);
        }
        hits_of(cache, often);
        Ids scan;
        for (S3Fifo::BlockId id = 1000; id < 3000; ++id) scan.push_back(id);
        hits_of(cache, scan);
        for (S3Fifo::BlockId id = 0; id < 50; ++id) CHECK(cache.has(id));
    }

    TEST_CASE("a block that comes back soon after it went stays longer than its neighbours") {
        S3Fifo cache(100);
        Ids first;
        for (S3Fifo::BlockId id = 0; id < 150; ++id) first.push_back(id);
        hits_of(cache, first);
        REQUIRE(!cache.has(0));
        hits_of(cache, {0});
        Ids more;
        for (S3Fifo::BlockId id = 1000; id < 1120; ++id) more.push_back(id);
        hits_of(cache, more);
        CHECK(cache.has(0));
        CHECK(!cache.has(149));
    }

    TEST_CASE("what may not go stays, and when nothing may go nothing comes in") {
        S3Fifo cache(10);
        const auto is_free = [](S3Fifo::BlockId id) { return id >= 10; };
        Ids evicted;
        for (S3Fifo::BlockId id = 0; id < 10; ++id) REQUIRE(cache.add(id, 1, is_free, evicted));
        CHECK(!cache.add(10, 1, is_free, evicted));
        CHECK(evicted.empty());
        CHECK(!cache.has(10));
        cache.remove(3);
        CHECK(cache.add(10, 1, is_free, evicted));
        CHECK(cache.add(11, 1, is_free, evicted));
        CHECK(evicted == Ids{10});
    }

    TEST_CASE("a block that is larger than the cache is refused, and empties nothing") {
        S3Fifo cache(10);
        Ids evicted;
        REQUIRE(cache.add(1, 10, any, evicted));
        CHECK(!cache.add(2, 11, any, evicted));
        CHECK(cache.has(1));
        CHECK(cache.resize(4, any, evicted));
        CHECK(evicted == Ids{1});
        CHECK(cache.used() == 0);
    }

    // A plain account of what is in: sizes never exceed the room, what went was in, what is pinned
    // never goes.
    TEST_CASE("random reads, pins, removals and resizes keep the account") {
        for (unsigned seed = 0; seed < 60; ++seed) {
            CAPTURE(seed);
            std::mt19937 random(seed);
            S3Fifo cache(100);
            std::map<S3Fifo::BlockId, Bytes> held;
            std::set<S3Fifo::BlockId> pinned;
            const auto may_go = [&](S3Fifo::BlockId id) { return pinned.count(id) == 0; };
            for (int turn = 0; turn < 2000; ++turn) {
                const S3Fifo::BlockId id = random() % 60;
                Ids evicted;
                const unsigned kind = random() % 20;
                bool has_room = false;
                if (kind == 0) {
                    cache.remove(id);
                    held.erase(id);
                    pinned.erase(id);
                } else if (kind == 1) {
                    has_room = cache.resize(20 + random() % 120, may_go, evicted);
                } else if (kind == 2 && held.count(id) != 0 && pinned.size() < 5) {
                    pinned.insert(id);
                } else if (kind == 3) {
                    pinned.erase(id);
                } else if (cache.has(id)) {
                    cache.touch(id);
                } else {
                    const Bytes bytes = 1 + random() % 15;
                    has_room = cache.add(id, bytes, may_go, evicted);
                    if (has_room) held[id] = bytes;
                }
                for (const auto gone : evicted) {
                    CHECK(pinned.count(gone) == 0);
                    CHECK(held.erase(gone) == 1);
                }
                Bytes total = 0;
                for (const auto& [one, bytes] : held) total += bytes;
                REQUIRE(total == cache.used());
                for (S3Fifo::BlockId one = 0; one < 60; ++one) {
                    REQUIRE(cache.has(one) == (held.count(one) != 0));
                }
                if (has_room) CHECK(total <= cache.capacity());
            }
        }
    }
}
