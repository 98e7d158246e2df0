#include "libfabricshm/shm/usage_ledger.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <memory>
#include <thread>

TEST_SUITE_BEGIN("shm.usage_ledger");

using namespace fabricshm;

namespace {

constexpr std::uint64_t kQuota = 1000;

struct Books {
    std::unique_ptr<LedgerFile> file = std::make_unique<LedgerFile>();
    std::unique_ptr<LimitsPage> page = std::make_unique<LimitsPage>();
    ProcessIdentity self = own_identity().value();

    Books() {
        UsageLedger::format(*file, 1);
        format_limits(*page);
        limit(kQuota, kQuota);
    }
    void limit(std::uint64_t quota, std::uint64_t target) {
        Limits limits;
        limits.quota_bytes = quota;
        limits.target_bytes = target;
        write_limits(*page, limits);
    }
    UsageLedger ledger(Duration timeout = std::chrono::seconds(30)) {
        return UsageLedger(*file, self, timeout);
    }
    // A process that ran once: this one's number, started at another time.
    ProcessIdentity dead() const {
        ProcessIdentity other = self;
        other.start_time -= 1;
        return other;
    }
};

}  // namespace

TEST_CASE("a process that waits for room is woken by what is freed, and is seen to wait") {
    Books books;
    UsageLedger ledger = books.ledger();
    const int slot = ledger.claim().value();
    REQUIRE(ledger.charge(slot, kQuota, *books.page).ok());
    const TimePoint until = Clock::now() + std::chrono::seconds(60);
    ledger.want(slot, 10, until);
    CHECK(ledger.uses().front().wanted == 10);
    for (const char* how : {"freed", "dead", "quota"}) {
        CAPTURE(how);
        const std::uint32_t seen = ledger.room();
        CHECK(!ledger.charge(slot, 10, *books.page).ok());
        std::thread waiter([&] {
            while (ledger.room() == seen && Clock::now() < until) ledger.await_room(seen, until);
        });
        if (*how == 'f') {
            ledger.release(slot, 5);
        } else if (*how == 'd') {
            UsageLedger other(*books.file, books.dead());
            REQUIRE(other.claim().ok());
            CHECK(ledger.reclaim(books.dead()).value());
        } else {
            ledger.room_grew();
        }
        waiter.join();
        CHECK(Clock::now() < until);
    }
    ledger.unwant(slot, 10);
    CHECK(ledger.uses().front().wanted == 0);
    // None waits any more: nothing is to be woken.
    books.file->awaited_until_ns = 1;
    const std::uint32_t seen = ledger.room();
    ledger.release(slot, 5);
    CHECK(ledger.room() == seen);
}

TEST_CASE("the quota is granted to the last byte") {
    Books books;
    UsageLedger ledger = books.ledger();
    const int slot = ledger.claim().value();
    CHECK(ledger.charge(slot, kQuota - 1, *books.page).ok());
    CHECK(ledger.charge(slot, 2, *books.page).error().code == Errc::kNoMemory);
    CHECK(ledger.charge(slot, 1, *books.page).ok());
    CHECK(ledger.charge(slot, ~std::uint64_t{0}, *books.page).error().code == Errc::kNoMemory);
    CHECK(ledger.total() == kQuota);
    CHECK(books.file->peak.load() == kQuota);
    // A process that asks may find room and ask again: nothing is refused yet.
    CHECK(ledger.uses().front().denied == 0);
    ledger.release(slot, kQuota);
    CHECK(ledger.total() == 0);
}

TEST_CASE("what is taken already is charged as far as there is room") {
    Books books;
    UsageLedger ledger = books.ledger();
    const int slot = ledger.claim().value();
    CHECK(ledger.charge_up_to(slot, 300, *books.page).value() == 300);
    CHECK(ledger.charge_up_to(slot, ~std::uint64_t{0}, *books.page).value() == kQuota - 300);
    CHECK(ledger.charge_up_to(slot, 1, *books.page).value() == 0);
    // Nor is there room above a quota that shrank.
    books.limit(kQuota, 600);
    CHECK(ledger.charge_up_to(slot, 1, *books.page).value() == 0);
    CHECK(ledger.total() == kQuota);
    CHECK(ledger.uses().front().charged == kQuota);
}

TEST_CASE("refusals are counted with their bytes, absurd ones as a tebibyte") {
    Books books;
    UsageLedger ledger = books.ledger();
    const int slot = ledger.claim().value();
    ledger.refused(slot, 300);
    ledger.refused(slot, ~std::uint64_t{0});
    const LedgerUse use = ledger.uses().front();
    CHECK(use.denied == 2);
    CHECK(use.denied_bytes == 300 + kMaxDenied);
    CHECK(books.file->denied.load() == 2);
    CHECK(books.file->denied_bytes.load() == 300 + kMaxDenied);
    // The next process in the slot begins at nothing, the vGPU's sum goes on.
    books.file->slots[slot].busy_ns = 5;
    UsageLedger after = books.ledger();
    CHECK(after.claim().value() == slot);
    CHECK(after.uses().front().denied_bytes == 0);
    CHECK(after.uses().front().busy_ns == 0);
    CHECK(books.file->denied_bytes.load() == 300 + kMaxDenied);
}

TEST_CASE("an announced target counts before the quota has followed") {
    Books books;
    UsageLedger ledger = books.ledger();
    const int slot = ledger.claim().value();
    REQUIRE(ledger.charge(slot, 600, *books.page).ok());
    books.limit(kQuota, 500);
    CHECK(ledger.charge(slot, 1, *books.page).error().code == Errc::kNoMemory);
    ledger.release(slot, 200);
    CHECK(ledger.charge(slot, 100, *books.page).ok());
    CHECK(ledger.charge(slot, 1, *books.page).error().code == Errc::kNoMemory);
    books.limit(2 * kQuota, 2 * kQuota);
    CHECK(ledger.charge(slot, kQuota, *books.page).ok());
}

TEST_CASE("no limits yet means nothing is granted") {
    Books books;
    format_limits(*books.page);
    UsageLedger ledger = books.ledger();
    const int slot = ledger.claim().value();
    CHECK(ledger.charge(slot, 1, *books.page).error().code == Errc::kNoMemory);
}

TEST_CASE("a process that executes another program starts with an empty slot") {
    Books books;
    UsageLedger before = books.ledger();
    const int slot = before.claim().value();
    REQUIRE(before.charge(slot, 300, *books.page).ok());
    books.file->lock = detail::lock_word(books.self);  // another thread was at work
    UsageLedger after = books.ledger();
    const int again = after.claim().value();
    CHECK(after.total() == 0);
    CHECK(after.uses().size() == 1);
    CHECK(after.charge(again, kQuota, *books.page).ok());
}

TEST_CASE("the lock of a dead process is taken over and its half-done work counted right") {
    Books books;
    UsageLedger ledger = books.ledger();
    const int slot = ledger.claim().value();
    REQUIRE(ledger.charge(slot, 100, *books.page).ok());
    // It added to its slot and died before it added to the total.
    UsageLedger victim(*books.file, books.dead());
    const int other = victim.claim().value();
    books.file->slots[other].charged = 250;
    books.file->lock = detail::lock_word(books.dead());
    CHECK(ledger.charge(slot, 50, *books.page).ok());
    CHECK(ledger.total() == 400);
    CHECK(books.file->recoveries.load() == 1);
    CHECK(ledger.reclaim_dead() == 1);
    CHECK(ledger.total() == 150);
    CHECK(ledger.reclaim_dead() == 0);
}

TEST_CASE("the lock of a live process is waited for, and not for ever") {
    Books books;
    UsageLedger ledger = books.ledger(std::chrono::milliseconds(5));
    const int slot = ledger.claim().value();
    // Of the process that started this test: alive, and not about to give it back.
    const ProcessIdentity parent{::getppid(), process_start_time(::getppid()).value(),
                                 books.self.pid_namespace};
    books.file->lock = detail::lock_word(parent);
    CHECK(ledger.charge(slot, 1, *books.page).error().code == Errc::kBusy);
    CHECK(ledger.settled_total().error().code == Errc::kBusy);
    CHECK(ledger.total() == 0);
    books.file->lock = 0;
    CHECK(ledger.charge(slot, 1, *books.page).ok());
}

TEST_CASE("the lock of another pid namespace falls only when its process is known to be dead") {
    Books books;
    ProcessIdentity foreign = books.self;
    foreign.pid_namespace += 1;
    UsageLedger inside(*books.file, foreign);
    const int slot = inside.claim().value();
    REQUIRE(inside.charge(slot, 10, *books.page).ok());
    books.file->lock = detail::lock_word(foreign);
    UsageLedger ledger = books.ledger(std::chrono::milliseconds(5));
    CHECK(ledger.claim().error().code == Errc::kBusy);
    CHECK(ledger.reclaim(foreign).value());
    CHECK(ledger.total() == 0);
    CHECK(ledger.claim().ok());
}

TEST_CASE("what a process writes into the ledger can't hurt its readers") {
    Books books;
    UsageLedger ledger = books.ledger();
    for (auto& slot : books.file->slots) {
        slot.pid = ~std::uint64_t{0};
        slot.charged = ~std::uint64_t{0};
    }
    books.file->slots[3].pid = 1;
    books.file->total = ~std::uint64_t{0};
    CHECK(ledger.uses().size() == 1);
    CHECK(ledger.settled_total().value() == std::uint64_t{1} << 62);
    CHECK(ledger.total() == std::uint64_t{1} << 62);
    CHECK(ledger.claim().error().code == Errc::kNoMemory);
}

TEST_CASE("threads that charge and release at the same time leave nothing behind") {
    Books books;
    UsageLedger ledger = books.ledger();
    const int slot = ledger.claim().value();
    const auto work = [&] {
        for (int i = 0; i < 2000; ++i) {
            if (ledger.charge(slot, 400, *books.page).ok()) ledger.release(slot, 400);
        }
    };
    std::thread other(work);
    work();
    other.join();
    CHECK(ledger.total() == 0);
    CHECK(ledger.settled_total().value() == 0);
    CHECK(books.file->peak.load() <= kQuota);
}

TEST_SUITE_END();
