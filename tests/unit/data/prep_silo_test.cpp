// Prepared files as a silo, over a folder.

#include "fabricd/data/silo/prep_silo.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "fabricd/data/silo/folder_silo.hpp"
#include "libfabricshm/base/reason.hpp"
#include "tests/support/small_jpeg.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace fabricd;
using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Errc;
using test_support::jpeg_of_size;
using test_support::small_jpeg;

namespace {

TimePoint soon() {
    return Clock::now() + 30s;
}

/// A folder with files, and silos of them prepared.
class Bench {
  public:
    void write(const std::string& path, const std::string& content) const {
        const std::filesystem::path place = folder_.path() + "/in/" + path;
        std::filesystem::create_directories(place.parent_path());
        std::ofstream(place, std::ios::binary) << content;
    }
    void remove(const std::string& path) const {
        std::filesystem::remove(folder_.path() + "/in/" + path);
    }
    std::unique_ptr<PrepSilo> open(const std::vector<std::string>& texts,
                                   bool skips_bad = false) const {
        PrepOptions options;
        options.source = [root = folder_.path()]() -> Result<std::unique_ptr<Silo>> {
            auto opened = FolderSilo::open(root, {});
            if (!opened.ok()) return opened.error();
            return std::unique_ptr<Silo>(std::move(opened).value());
        };
        options.below = "in";
        REQUIRE_FALSE(parse_steps(texts, options.steps));
        options.most_pixels = 1 << 20;
        options.threads = 2;
        options.skips_bad = skips_bad;
        return PrepSilo::open(std::move(options)).value();
    }

  private:
    test_support::TemporaryDirectory folder_;
};

SiloPage list_all(Silo& silo, const std::string& folder = "") {
    const auto page = silo.list(folder, "", 1000, soon());
    REQUIRE(page.ok());
    REQUIRE(page->is_last);
    return *page;
}

std::vector<Fetched> wait_for(Silo& silo, std::size_t count) {
    std::vector<Fetched> all;
    while (all.size() < count) {
        const auto ended = silo.wait(soon());
        REQUIRE(!ended.empty());
        all.insert(all.end(), ended.begin(), ended.end());
    }
    return all;
}

/// A file in chunks, all under way at a time.
std::string content_of(Silo& silo, const std::string& path, const FileFacts& facts, Bytes chunk) {
    std::string content(facts.bytes, '\0');
    auto* const base = reinterpret_cast<std::byte*>(content.data());
    std::size_t chunks = 0;
    for (Bytes at = 0; at < facts.bytes; at += chunk, ++chunks) {
        const Bytes bytes = std::min(chunk, facts.bytes - at);
        silo.start({path, facts, at, bytes, base + at, bytes, chunks});
    }
    for (const Fetched& fetched : wait_for(silo, chunks)) {
        CHECK(fetched.outcome == FetchOutcome::kWhole);
        CHECK(fetched.reason == "");
    }
    return content;
}

Fetched fetch_one(Silo& silo, const std::string& path, const FileFacts& facts) {
    static std::vector<std::byte> memory(1 << 16);
    silo.start({path, facts, 0, facts.bytes, memory.data(), memory.size(), 7});
    const auto ended = wait_for(silo, 1);
    REQUIRE(ended.size() == 1);
    CHECK(ended[0].tag == 7);
    return ended[0];
}

}  // namespace

TEST_SUITE("data.prep_silo") {
    TEST_CASE("files of a folder stand prepared under their names") {
        const Bench bench;
        bench.write("n01/a.jpeg", small_jpeg());
        bench.write("b.jpeg", small_jpeg());
        const auto silo = bench.open({"decode", "resize 6", "centre-crop 5"});
        const SiloPage root = list_all(*silo);
        REQUIRE(root.entries.size() == 2);
        CHECK(root.entries[0].name == "b.jpeg.npy");
        CHECK(root.entries[1].name == "n01");
        CHECK(root.entries[1].is_folder);
        const SiloPage page = list_all(*silo, "n01");
        REQUIRE(page.entries.size() == 1);
        const FileFacts facts = page.entries[0].facts;
        CHECK(facts.bytes == kNpyHeader + 75);
        CHECK(silo->look("n01/a.jpeg.npy", soon()).value() == facts);
        const std::string whole = content_of(*silo, "n01/a.jpeg.npy", facts, 4096);
        CHECK(whole.substr(1, 5) == "NUMPY");
        // In parts, also of a version that is kept no more.
        for (const Bytes chunk : {1U, 7U, 100U}) {
            CHECK(content_of(*bench.open({"decode", "resize 6", "centre-crop 5"}), "n01/a.jpeg.npy",
                             facts, chunk) == whole);
        }
    }

    TEST_CASE("what the steps leave open is known after preparing it") {
        const Bench bench;
        bench.write("a.jpeg", small_jpeg());
        bench.write("b.jpeg", jpeg_of_size(16, 8));
        const auto silo = bench.open({"decode"});
        const SiloPage page = list_all(*silo);
        REQUIRE(page.entries.size() == 2);
        CHECK(page.entries[0].facts.bytes == kNpyHeader + 12 * 16 * 3);
        CHECK(page.entries[1].facts.bytes == kNpyHeader + 8 * 16 * 3);
        CHECK(bench.open({"decode"})->look("b.jpeg.npy", soon()).value() == page.entries[1].facts);
    }

    TEST_CASE("a version follows from source, steps and nothing else") {
        const Bench bench;
        bench.write("a.jpeg", small_jpeg());
        const auto version = [&](const std::vector<std::string>& steps) {
            return bench.open(steps)->look("a.jpeg.npy", soon())->version;
        };
        const auto first = version({"decode", "centre-crop 4"});
        CHECK(version({"decode", "centre-crop 4"}) == first);
        CHECK(version({"decode", "centre-crop 5"}) != first);
        bench.write("a.jpeg", small_jpeg() + " ");
        CHECK(version({"decode", "centre-crop 4"}) != first);
    }

    TEST_CASE("a file that has become another, or is gone, is a change") {
        const Bench bench;
        bench.write("a.jpeg", small_jpeg());
        const auto facts =
            bench.open({"decode", "centre-crop 4"})->look("a.jpeg.npy", soon()).value();
        bench.write("a.jpeg", small_jpeg() + " ");
        const auto silo = bench.open({"decode", "centre-crop 4"});
        CHECK(fetch_one(*silo, "a.jpeg.npy", facts).outcome == FetchOutcome::kChanged);
        bench.remove("a.jpeg");
        CHECK(fetch_one(*silo, "a.jpeg.npy", facts).outcome == FetchOutcome::kChanged);
        CHECK(silo->look("a.jpeg.npy", soon()).error().code == Errc::kNotFound);
    }

    TEST_CASE("what is no prepared file is not there") {
        const Bench bench;
        bench.write("a.jpeg", small_jpeg());
        const auto silo = bench.open({"decode"});
        for (const char* path : {"a.jpeg", ".npy", "../a.npy", "b.npy", "", "a.jpeg.npy.npy"}) {
            CAPTURE(path);
            CHECK(silo->look(path, soon()).error().code == Errc::kNotFound);
        }
        CHECK(silo->list("nowhere", "", 10, soon()).error().code == Errc::kNotFound);
    }

    TEST_CASE("a bad file is its own error with its path, or skipped and counted") {
        const Bench bench;
        bench.write("a.jpeg", small_jpeg());
        bench.write("b.jpeg", small_jpeg().substr(0, 310));
        bench.write("c.jpeg", jpeg_of_size(65500, 65500));
        bench.write("d.jpeg", "");
        for (const auto& steps : {std::vector<std::string>{"decode"}, {"decode", "resize 4x4"}}) {
            const auto raising = bench.open(steps);
            const SiloPage page = list_all(*raising);
            REQUIRE(page.entries.size() == 4);
            CHECK(fetch_one(*raising, "a.jpeg.npy", page.entries[0].facts).outcome ==
                  FetchOutcome::kWhole);
            const Fetched cut = fetch_one(*raising, "b.jpeg.npy", page.entries[1].facts);
            CHECK(cut.outcome == FetchOutcome::kFailed);
            CHECK(cut.error.code == Errc::kCorrupt);
            CHECK(cut.is_of_file);
            CHECK(raising->look("b.jpeg.npy", soon()).value() == page.entries[1].facts);
            CHECK(cut.reason.rfind("in/b.jpeg: damaged JPEG: ", 0) == 0);
            CHECK(fetch_one(*raising, "c.jpeg.npy", page.entries[2].facts).reason ==
                  "in/c.jpeg: 65500 x 65500 pixels are more than the 1048576 that pixels allows");
            CHECK(fetch_one(*raising, "d.jpeg.npy", page.entries[3].facts).reason ==
                  "in/d.jpeg: no JPEG: it is empty");

            const auto skipping = bench.open(steps, true);
            const SiloPage rest = list_all(*skipping);
            REQUIRE(rest.entries.size() == 1);
            CHECK(rest.entries[0].name == "a.jpeg.npy");
            CHECK(rest.left_out == 3);
            CHECK(rest.first_left_out.rfind("in/b.jpeg: damaged JPEG", 0) == 0);
            CHECK(skipping->look("b.jpeg.npy", soon()).error().code == Errc::kNotFound);
        }
    }

    TEST_CASE("a folder of bad files alone has an empty listing, however small its pages are") {
        const Bench bench;
        for (int i = 0; i < 9; ++i) bench.write("bad" + std::to_string(i), "x");
        const auto silo = bench.open({"decode", "resize 4x4"}, true);
        const auto page = silo->list("", "", 2, soon());
        REQUIRE(page.ok());
        CHECK(page->entries.empty());
        CHECK(page->is_last);
        CHECK(page->left_out == 9);
    }

    TEST_CASE("an end with fetches under way waits for them") {
        const Bench bench;
        for (int i = 0; i < 8; ++i) bench.write("a" + std::to_string(i), small_jpeg());
        std::vector<std::byte> memory(1 << 16);
        const auto silo = bench.open({"decode", "resize 4x4"});
        const SiloPage page = list_all(*silo);
        std::uint64_t started = 0;
        for (const SiloEntry& entry : page.entries) {
            if (!silo->has_room()) break;
            silo->start({entry.name, entry.facts, 0, entry.facts.bytes,
                         memory.data() + 1024 * started, 1024, started});
            ++started;
        }
        CHECK(started == 8);
        CHECK_FALSE(silo->has_room());
        CHECK(wait_for(*silo, 1).size() >= 1);
        CHECK(silo->has_room());
    }

    TEST_CASE("a source that can't be opened is an error") {
        PrepOptions options;
        options.source = []() -> Result<std::unique_ptr<Silo>> {
            return Error{Errc::kDenied, 0, "open silo"};
        };
        REQUIRE_FALSE(parse_steps({"decode"}, options.steps));
        CHECK(PrepSilo::open(std::move(options)).error().code == Errc::kDenied);
    }
}
