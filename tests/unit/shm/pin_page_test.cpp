#include "libfabricshm/shm/pin_page.hpp"

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <thread>
#include <vector>

using namespace fabricshm;

namespace {

std::unique_ptr<PinPage> fresh_page() {
    auto page = std::make_unique<PinPage>();
    format_pin_page(*page);
    return page;
}

using Word = std::atomic<std::uint64_t>;

// Which of `lines` one page has.
std::vector<std::uint8_t> pinned_of(const PinPage& page, const std::vector<std::uint64_t>& lines) {
    std::vector<std::uint8_t> pinned(lines.size(), 9);
    PinScan scan(lines, pinned);
    scan.page(page);
    return pinned;
}

}  // namespace

TEST_SUITE("shm.pin_page") {
    TEST_CASE("a page is known by its magic") {
        const auto page = fresh_page();
        CHECK(check_pin_page(*page).ok());
        page->magic.store(0);
        CHECK(check_pin_page(*page).error().code == Errc::kCorrupt);
    }

    TEST_CASE("a line is found while it is pinned, and not before or after") {
        const auto page = fresh_page();
        const Word word{7};
        CHECK(pinned_of(*page, {4, 5, 6}) == std::vector<std::uint8_t>{0, 0, 0});
        REQUIRE(pin(*page, 0, 5, word, 7));
        CHECK(pinned_of(*page, {4, 5, 6}) == std::vector<std::uint8_t>{0, 1, 0});
        CHECK(pinned_of(*page, {4, 6}) == std::vector<std::uint8_t>{0, 0});
        CHECK(pinned_of(*page, {}).empty());
        unpin(*page, 0);
        CHECK(pinned_of(*page, {4, 5, 6}) == std::vector<std::uint8_t>{0, 0, 0});
    }

    TEST_CASE("line 0 and the last slot can be pinned") {
        const auto page = fresh_page();
        const Word word{1};
        REQUIRE(pin(*page, kPinSlots - 1, 0, word, 1));
        CHECK(page->high.load() == kPinSlots);
        CHECK(pinned_of(*page, {0}) == std::vector<std::uint8_t>{1});
    }

    TEST_CASE("a word that has changed is not pinned, and the slot is free again") {
        const auto page = fresh_page();
        const Word word{8};
        CHECK_FALSE(pin(*page, 3, 5, word, 7));
        CHECK(page->slots[3].load() == 0);
        CHECK(pinned_of(*page, {5}) == std::vector<std::uint8_t>{0});
    }

    TEST_CASE("a scan goes no further than the slots that were ever used") {
        const auto page = fresh_page();
        const Word word{1};
        REQUIRE(pin(*page, 9, 5, word, 1));
        CHECK(page->high.load() == 10);
        REQUIRE(pin(*page, 2, 6, word, 1));
        CHECK(page->high.load() == 10);
        // What stands behind `high` no pin() has written.
        page->slots[10].store(8);
        CHECK(pinned_of(*page, {5, 6, 7}) == std::vector<std::uint8_t>{1, 1, 0});
    }

    TEST_CASE("a scan of several pages adds up, and knows when all lines are pinned") {
        const auto one = fresh_page(), two = fresh_page();
        const Word word{1};
        REQUIRE(pin(*one, 0, 5, word, 1));
        REQUIRE(pin(*one, 1, 5, word, 1));
        REQUIRE(pin(*two, 0, 5, word, 1));
        const std::array<std::uint64_t, 2> lines{5, 6};
        std::array<std::uint8_t, 2> pinned{};
        PinScan scan(lines, pinned);
        scan.page(*one);
        CHECK(scan.count() == 1);
        CHECK_FALSE(scan.all());
        REQUIRE(pin(*two, 1, 6, word, 1));
        scan.page(*two);
        CHECK(scan.all());
        CHECK(scan.pinned(0));
        CHECK(scan.pinned(1));
    }

    TEST_CASE("whatever a reader writes into its page, a scan ends and stays within it") {
        const auto page = fresh_page();
        page->high.store(~0ULL);
        for (auto& slot : page->slots) slot.store(~0ULL);
        page->slots[7].store(1ULL << 63);
        CHECK(pinned_of(*page, {1, (1ULL << 63) - 1, ~0ULL - 1}) ==
              std::vector<std::uint8_t>{0, 1, 1});
    }

    // One line whose bytes a maker replaces as fast as pins let it, and readers of two threads each
    // with one page. The bytes are no atomics: the sanitizer sees a read of bytes that are
    // replaced.
    TEST_CASE("no reader ever has other bytes than those it pinned") {
        constexpr std::uint64_t kLeaving = 1ULL << 63;
        constexpr int kBytesWords = 16;
        constexpr int kReaders = 3;
        constexpr int kTries = 2'000;
        Word word{0};
        std::array<std::uint64_t, kBytesWords> bytes{};
        std::vector<std::unique_ptr<PinPage>> pages;
        pages.push_back(fresh_page());
        pages.push_back(fresh_page());
        std::atomic<bool> over{false};
        std::atomic<std::uint64_t> wrong{0}, whole{0};
        const auto read = [&](int reader) {
            PinPage& page = *pages[static_cast<std::size_t>(reader) % 2];
            const auto slot = static_cast<std::size_t>(reader);
            while (!over.load()) {
                const std::uint64_t seen = word.load(std::memory_order_acquire);
                if (seen >= kLeaving || !pin(page, slot, 0, word, seen)) {
                    std::this_thread::yield();
                    continue;
                }
                bool same = true;
                for (const auto each : bytes) same = same && each == seen;
                unpin(page, slot);
                (same ? whole : wrong).fetch_add(1);
                // Most of the time not pinned, so that the maker comes to replace something.
                std::this_thread::yield();
            }
        };
        std::vector<std::thread> readers;
        for (int reader = 0; reader < kReaders; ++reader) readers.emplace_back(read, reader);
        const std::array<std::uint64_t, 1> lines{0};
        std::array<std::uint8_t, 1> pinned{};
        std::uint64_t generation = 0;
        for (int tries = 0; tries < kTries || generation == 0; ++tries) {
            word.store(generation | kLeaving, std::memory_order_seq_cst);
            PinScan scan(lines, pinned);
            for (const auto& page : pages) scan.page(*page);
            if (!scan.pinned(0)) bytes.fill(++generation);
            word.store(generation, std::memory_order_release);
            std::this_thread::yield();
        }
        while (whole.load() == 0) std::this_thread::yield();
        over.store(true);
        for (auto& reader : readers) reader.join();
        CHECK(wrong.load() == 0);
        CHECK(whole.load() > 0);
    }
}
