#include "libfabricshm/shm/data_listing.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <random>

#include "libfabricshm/shm/data_layout.hpp"

using namespace fabricshm;

namespace {

constexpr std::uint64_t kLines = 100;

std::vector<ListedFile> some_files() {
    std::vector<ListedFile> files(4);
    files[0] = {"a", false, 10, 3, {1, 2, 3, 4}, 7, 5};
    files[1] = {"b/c", false, 2 * kDataChunkBytes + 1, 97, {}, 8, 0};
    files[2] = {"d", true, 0, kNoLine, {}, 0, 0};
    files[3] = {"e", false, 0, kNoLine, {}, 9, 0};
    return files;
}

std::vector<std::byte> listing_of(const std::vector<ListedFile>& files) {
    return build_listing({1, 2, kListingRecursive}, files);
}

bool is_accepted(const std::vector<std::byte>& bytes, std::uint64_t lines = kLines) {
    return ListingView::check(bytes, lines).ok();
}

}  // namespace

TEST_SUITE("shm.data_listing") {
    TEST_CASE("a listing is read as it was built, and finds its names") {
        const auto bytes = listing_of(some_files());
        const auto view = ListingView::check(bytes, kLines);
        REQUIRE(view.ok());
        CHECK(view->generation() == 1);
        CHECK(view->id() == 2);
        CHECK(view->is_recursive());
        REQUIRE(view->size() == 4);
        CHECK(view->name(1) == "b/c");
        CHECK(view->entry(0).bytes == 10);
        CHECK(view->entry(0).first_line == 3);
        CHECK(view->entry(0).version[3] == 4);
        CHECK(view->entry(0).file == 7);
        CHECK(view->entry(0).mtime_ns == 5);
        CHECK((view->entry(2).flags & kEntryFolder) != 0);
        for (std::uint64_t i = 0; i < view->size(); ++i) CHECK(view->find(view->name(i)) == i);
        for (const char* name : {"", "0", "b", "b/", "b/cc", "f"}) CHECK_FALSE(view->find(name));
    }

    TEST_CASE("an empty folder has an empty listing") {
        const auto bytes = listing_of({});
        const auto view = ListingView::check(bytes, kLines);
        REQUIRE(view.ok());
        CHECK(view->size() == 0);
        CHECK_FALSE(view->find("a"));
    }

    TEST_CASE("what no cache would write is refused") {
        const auto with = [](std::size_t index, auto change) {
            auto bytes = listing_of(some_files());
            DataEntry entry;
            std::byte* place = bytes.data() + sizeof(DataListing) + index * sizeof entry;
            std::memcpy(&entry, place, sizeof entry);
            change(entry);
            std::memcpy(place, &entry, sizeof entry);
            return bytes;
        };
        CHECK(is_accepted(with(0, [](DataEntry&) {})));
        CHECK_FALSE(is_accepted(with(0, [](DataEntry& entry) { entry.name_bytes = 0; })));
        CHECK_FALSE(is_accepted(with(0, [](DataEntry& entry) { entry.name_bytes = 100; })));
        CHECK_FALSE(is_accepted(with(0, [](DataEntry& entry) { entry.name_offset = ~0ull; })));
        CHECK_FALSE(is_accepted(with(0, [](DataEntry& entry) { entry.name_offset = 5; })));
        CHECK_FALSE(is_accepted(with(0, [](DataEntry& entry) { entry.file = 0; })));
        CHECK_FALSE(is_accepted(with(0, [](DataEntry& entry) { entry.first_line = kLines; })));
        CHECK_FALSE(is_accepted(with(0, [](DataEntry& entry) { entry.first_line = kNoLine; })));
        CHECK_FALSE(is_accepted(with(1, [](DataEntry& entry) { entry.bytes = ~0ull; })));
        CHECK_FALSE(is_accepted(with(2, [](DataEntry& entry) { entry.first_line = 1; })));
        CHECK_FALSE(is_accepted(listing_of(some_files()), 99));
        for (const char* name : {"/a", "a/", "a//b", ".", "..", "a/../b"}) {
            std::vector<ListedFile> files(1);
            files[0].name = name;
            CHECK_FALSE(is_accepted(listing_of(files)));
        }
    }

    TEST_CASE("a listing of any bytes is refused, or leads nowhere outside") {
        std::mt19937_64 random(3);
        const auto whole = listing_of(some_files());
        for (int turn = 0; turn < 20'000; ++turn) {
            auto bytes = whole;
            for (int change = 0; change < 2; ++change) {
                const std::size_t place = random() % bytes.size();
                if (random() % 2 == 0) bytes[place] = static_cast<std::byte>(random());
                const std::uint64_t word = random() >> random() % 64;
                if (random() % 4 == 0 && place + 8 <= bytes.size()) {
                    std::memcpy(bytes.data() + (place & ~std::size_t{7}), &word, 8);
                }
            }
            if (random() % 8 == 0) bytes.resize(random() % (bytes.size() + 1));
            const auto view = ListingView::check(bytes, kLines);
            if (!view.ok()) continue;
            for (std::uint64_t i = 0; i < view->size(); ++i) {
                const DataEntry& entry = view->entry(i);
                CHECK(view->find(view->name(i)) == i);
                if (entry.first_line == kNoLine) continue;
                CHECK(entry.first_line + data_chunks(entry.bytes) <= kLines);
            }
        }
    }
}
