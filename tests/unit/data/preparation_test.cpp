// What a file becomes. Pixels are compared with Pillow's in python.prep.pictures; here with a few
// of its numbers, written down.

#include "fabricd/data/prep/preparation.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <random>

#include "libfabricshm/base/reason.hpp"
#include "tests/support/small_jpeg.hpp"

using namespace fabricd;
using fabricshm::Errc;
using test_support::jpeg_of_size;
using test_support::small_jpeg;

namespace {

constexpr std::uint64_t kPixels = 1 << 20;

std::shared_ptr<const PrepRules> rules_of(const std::vector<std::string>& texts,
                                          std::uint64_t pixels = kPixels) {
    std::vector<PrepStep> steps;
    REQUIRE_FALSE(parse_steps(texts, steps));
    return PrepRules::open(steps, pixels).value();
}

/// Prepared, or the words of its error.
struct Outcome {
    std::vector<std::byte> bytes;
    Errc code = Errc::kOk;
    std::string words;

    std::string header() const {
        const std::string text(reinterpret_cast<const char*>(bytes.data()) + 10, kNpyHeader - 10);
        return text.substr(0, text.find('}') + 1);
    }
    std::uint8_t at(std::size_t place) const {
        return std::to_integer<std::uint8_t>(bytes.at(kNpyHeader + place));
    }
    int sum() const {
        return std::accumulate(
            bytes.begin() + kNpyHeader, bytes.end(), 0,
            [](int sum, std::byte byte) { return sum + static_cast<int>(byte); });
    }
};

Outcome prepared(const std::string& file, const std::shared_ptr<const PrepRules>& rules) {
    Outcome outcome;
    const auto run = Preparation(rules).run(std::as_bytes(std::span(file)), outcome.bytes);
    if (run.ok()) return outcome;
    outcome.code = run.error().code;
    outcome.words = fabricshm::explanation_of(run.error());
    return outcome;
}

}  // namespace

TEST_SUITE("data.preparation") {
    TEST_CASE("a JPEG becomes an array of NumPy with the pixels that Pillow has") {
        const Outcome whole = prepared(small_jpeg(), rules_of({"decode"}));
        REQUIRE(whole.words == "");
        CHECK(whole.header() ==
              "{'descr': '|u1', 'fortran_order': False, 'shape': (12, 16, 3, ), }");
        CHECK(whole.bytes.size() == kNpyHeader + 12 * 16 * 3);
        CHECK(whole.sum() == 68613);
        CHECK(whole.at(0) == 0);
        CHECK(whole.at((5 * 16 + 7) * 3) == 113);
        CHECK(whole.at((11 * 16 + 15) * 3 + 2) == 142);

        const Outcome half = prepared(small_jpeg(), rules_of({"decode", "resize 6"}));
        CHECK(half.header() == "{'descr': '|u1', 'fortran_order': False, 'shape': (6, 8, 3, ), }");
        CHECK(half.sum() == 17158);
        CHECK(half.at((3 * 8 + 4) * 3) == 129);

        const Outcome grey = prepared(small_jpeg(), rules_of({"decode grey"}));
        CHECK(grey.header() ==
              "{'descr': '|u1', 'fortran_order': False, 'shape': (12, 16, 1, ), }");
        CHECK(grey.sum() == 22056);
        CHECK(grey.at(5 * 16 + 7) == 107);
    }

    TEST_CASE("a cut takes the middle, and puts black around what is smaller") {
        const Outcome whole = prepared(small_jpeg(), rules_of({"decode"}));
        const Outcome cut = prepared(small_jpeg(), rules_of({"decode", "centre-crop 4"}));
        REQUIRE(cut.bytes.size() == kNpyHeader + 48);
        for (std::size_t row = 0; row < 4; ++row) {
            for (std::size_t place = 0; place < 12; ++place) {
                CHECK(cut.at(row * 12 + place) == whole.at((row + 4) * 48 + 18 + place));
            }
        }
        const Outcome framed = prepared(small_jpeg(), rules_of({"decode", "centre-crop 14x16"}));
        CHECK(framed.sum() == whole.sum());
        CHECK(framed.at(0) == 0);
        CHECK(framed.at(48 + 2) == whole.at(2));
    }

    TEST_CASE("a cut behind a resize is the same whether the resize knows of it or not") {
        for (const char* size : {"resize 7", "resize 20x33", "resize 5x40"}) {
            for (const std::size_t side : {1U, 4U, 6U, 24U}) {
                CAPTURE(size);
                CAPTURE(side);
                const std::string crop = "centre-crop " + std::to_string(side);
                const Outcome fused = prepared(small_jpeg(), rules_of({"decode", size, crop}));
                // A resize to the own size stands between them and changes nothing.
                Outcome apart = prepared(small_jpeg(), rules_of({"decode", size}));
                const std::string header = apart.header();
                unsigned height = 0, width = 0;
                REQUIRE(std::sscanf(header.substr(header.find('(')).c_str(), "(%u, %u", &height,
                                    &width) == 2);
                const std::string same =
                    "resize " + std::to_string(height) + "x" + std::to_string(width);
                PrepStep step;
                apart = prepared(small_jpeg(), rules_of({"decode", size, same, crop}));
                CHECK(fused.bytes == apart.bytes);
            }
        }
    }

    TEST_CASE("what is no whole JPEG is an error, whatever is cut off") {
        const auto rules = rules_of({"decode"});
        CHECK(prepared("", rules).words == "no JPEG: it is empty");
        CHECK(prepared("hello", rules).code == Errc::kCorrupt);
        const std::string whole = small_jpeg();
        for (std::size_t length = 0; length + 2 < whole.size(); ++length) {
            CAPTURE(length);
            CHECK(prepared(whole.substr(0, length), rules).code == Errc::kCorrupt);
        }
        // Bytes that belong to nothing, in front of the last marker.
        CHECK(
            prepared(whole.substr(0, whole.size() - 2) + std::string("ab\xff\xd9"), rules).sum() ==
            68613);
    }

    TEST_CASE("a picture of more pixels than are allowed is refused by its header") {
        const Outcome bomb = prepared(jpeg_of_size(65500, 65500), rules_of({"decode"}));
        CHECK(bomb.code == Errc::kNoMemory);
        CHECK(bomb.words == "65500 x 65500 pixels are more than the 1048576 that pixels allows");
        // More than the library takes at all.
        CHECK(prepared(jpeg_of_size(65535, 65535), rules_of({"decode"})).code == Errc::kCorrupt);
        CHECK(prepared(small_jpeg(), rules_of({"decode"}, 191)).code == Errc::kNoMemory);
        CHECK(prepared(small_jpeg(), rules_of({"decode"}, 192)).code == Errc::kOk);
        const Outcome grown = prepared(small_jpeg(), rules_of({"decode", "resize 16384"}));
        CHECK(grown.code == Errc::kNoMemory);
        CHECK(grown.words == "resized it has 21845 x 16384 pixels, more than pixels allows");
    }

    TEST_CASE("a damaged file is a picture of its size or an error") {
        const auto rules = rules_of({"decode", "resize 6", "centre-crop 5"});
        std::mt19937 random(1);
        int pictures = 0;
        for (int turn = 0; turn < 3000; ++turn) {
            std::string file = small_jpeg();
            for (int change = 0; change < 3; ++change) {
                file[random() % file.size()] = static_cast<char>(random() % 256);
            }
            const Outcome outcome = prepared(file, rules);
            if (outcome.code != Errc::kOk) continue;
            ++pictures;
            CHECK(outcome.bytes.size() == rules->fixed_bytes());
        }
        CHECK(pictures > 0);
    }

    TEST_CASE("a file without its tables does not get those of the file before") {
        std::string bare = small_jpeg();
        // The tables of Huffman codes, each a marker with its length.
        for (std::size_t at; (at = bare.find(std::string("\xff\xc4", 2))) != bare.npos;) {
            const auto length = static_cast<unsigned char>(bare[at + 2]) * 256U +
                                static_cast<unsigned char>(bare[at + 3]);
            bare.erase(at, length + 2);
        }
        const auto rules = rules_of({"decode"});
        const Outcome alone = prepared(bare, rules);
        Preparation after(rules);
        std::vector<std::byte> bytes;
        const std::string whole = small_jpeg();
        REQUIRE(after.run(std::as_bytes(std::span(whole)), bytes).ok());
        const auto run = after.run(std::as_bytes(std::span(bare)), bytes);
        CHECK(run.ok() == (alone.code == Errc::kOk));
        if (run.ok()) CHECK(bytes == alone.bytes);
    }

    TEST_CASE("other steps have another text, the same ones the same") {
        CHECK(rules_of({"decode", "centre-crop 4"})->text() ==
              rules_of({"decode", "centre-crop 4x4"})->text());
        CHECK(rules_of({"decode"})->text() != rules_of({"decode grey"})->text());
    }
}
