#include "fabricd/server/range_flusher.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <future>
#include <string>
#include <vector>

using namespace fabricd;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Result;

namespace {

constexpr OpenRange kFirst{ArenaId{1}, 0, 100};
constexpr OpenRange kSecond{ArenaId{2}, 100, 50};

/// Flushes when it may, and notes what.
struct Rig {
    std::promise<void> begun;
    std::promise<void> go;
    std::shared_future<void> may_go{go.get_future()};
    bool has_begun = false;
    std::vector<OpenRange> flushed;
    std::string order;  // written by the flusher's thread alone, read after it has ended
    RangeFlusher flusher{[this](const OpenRange& range) -> Result<void> {
        if (!has_begun) begun.set_value();
        has_begun = true;
        may_go.wait();
        flushed.push_back(range);
        if (range.bytes == 0) return Error{Errc::kSystem, 0, "test flush"};
        return {};
    }};
    RangeFlusher::Done note(char letter) {
        return [this, letter](const Result<void>& done) { order += done.ok() ? letter : '!'; };
    }
};

}  // namespace

TEST_SUITE("server.range_flusher") {
    TEST_CASE("a caller does not wait, and hears of its ranges in the order of the calls") {
        Rig rig;
        rig.flusher.flush({kFirst}, rig.note('a'));
        rig.begun.get_future().wait();
        rig.flusher.flush({kSecond}, rig.note('b'));
        rig.flusher.flush({}, rig.note('c'));
        rig.go.set_value();
        CHECK(rig.flusher.flush_and_wait({}).ok());
        CHECK(rig.order == "abc");
        CHECK(rig.flushed == std::vector{kFirst, kSecond});
    }

    TEST_CASE(
        "a range that many ask for meanwhile is written out once, and again for those after") {
        Rig rig;
        rig.flusher.flush({kFirst}, rig.note('a'));
        rig.begun.get_future().wait();
        // Their processes may have written after the first range was gone through.
        rig.flusher.flush({kFirst, kSecond}, rig.note('b'));
        rig.flusher.flush({kFirst}, rig.note('c'));
        rig.go.set_value();
        CHECK(rig.flusher.flush_and_wait({kSecond}).ok());
        const long firsts = std::count(rig.flushed.begin(), rig.flushed.end(), kFirst);
        CHECK(firsts == 2);
        CHECK(rig.order == "abc");
    }

    TEST_CASE("what can't be written out is an error of those that asked for it") {
        Rig rig;
        rig.go.set_value();
        CHECK(rig.flusher.flush_and_wait({OpenRange{ArenaId{3}, 0, 0}}).error().code ==
              Errc::kSystem);
        CHECK(rig.flusher.flush_and_wait({kFirst}).ok());
    }

    TEST_CASE("what is left when it ends is refused, and every caller hears of it") {
        std::string order;
        {
            Rig rig;
            rig.flusher.flush({kFirst},
                              [&](const Result<void>& done) { order += done.ok() ? 'a' : '!'; });
            rig.begun.get_future().wait();
            rig.flusher.flush({kFirst, kSecond},
                              [&](const Result<void>& done) { order += done.ok() ? 'b' : '!'; });
            rig.go.set_value();
        }
        // The first was under way; whether the end came before the second is a race.
        CHECK(order.size() == 2);
    }
}
