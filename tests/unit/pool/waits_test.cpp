#include <doctest/doctest.h>

#include "tests/support/books_host.hpp"

#include "fabricd/pool/waits.hpp"

using namespace test_support;

namespace {

Wait wait_of(SessionId session, std::uint64_t request, WaitKind kind, TimePoint deadline) {
    Wait wait;
    wait.ticket = {session, request};
    wait.deadline = deadline;
    wait.key = {kind, ArenaId{5}, "", GroupId::kNone};
    return wait;
}

}  // namespace

TEST_SUITE("pool.waits") {
    TEST_CASE("a session has as many waits as it may have, and then no more") {
        BooksHost host;
        host.books.limits.max_waits_per_session = 1;
        CHECK(add_wait(host.books, wait_of(SessionId{1}, 1, WaitKind::kTensor, kNow)).ok());
        const auto more = add_wait(host.books, wait_of(SessionId{1}, 2, WaitKind::kTensor, kNow));
        CHECK(more.error().code == Errc::kNoMemory);
        CHECK(add_wait(host.books, wait_of(SessionId{2}, 3, WaitKind::kTensor, kNow)).ok());
    }

    TEST_CASE("one shrink that is late ends the attempt for all") {
        BooksHost host;
        const TimePoint later = kNow + 10s;
        CHECK(add_wait(host.books, wait_of(SessionId{1}, 1, WaitKind::kShrink, kNow)).ok());
        CHECK(add_wait(host.books, wait_of(SessionId{2}, 2, WaitKind::kShrink, later)).ok());
        CHECK(add_wait(host.books, wait_of(SessionId{2}, 3, WaitKind::kTensor, later)).ok());
        expire_waits(host.books, kNow, host.out);
        REQUIRE(host.out.answers.size() == 2);
        CHECK(host.out.answers[1].to.request_id == 2);
        CHECK(host.out.answers[1].error.code == Errc::kTimeout);
        expire_waits(host.books, later, host.out);
        CHECK(host.out.answers.size() == 3);
    }

    TEST_CASE("a lost connection ends waits in silence, leaving the arena with an answer") {
        BooksHost host;
        CHECK(add_wait(host.books, wait_of(SessionId{1}, 1, WaitKind::kTensor, kNow)).ok());
        CHECK(add_wait(host.books, wait_of(SessionId{2}, 2, WaitKind::kTensor, kNow)).ok());
        drop_waits(host.books, SessionId{1});
        CHECK(host.out.empty());
        close_waits(host.books, SessionId{2}, ArenaId{6}, host.out);
        CHECK(host.out.empty());
        close_waits(host.books, SessionId{2}, ArenaId{5}, host.out);
        REQUIRE(host.out.answers.size() == 1);
        CHECK(host.out.answers[0].error.code == Errc::kClosed);
        CHECK(host.books.waits.empty());
    }
}
