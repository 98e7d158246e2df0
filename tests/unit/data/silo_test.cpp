#include "fabricd/data/silo/silo.hpp"

#include <doctest/doctest.h>

#include <filesystem>

using namespace fabricd;

TEST_SUITE("data.silo") {
    TEST_CASE("a path is one below the root, and nothing else") {
        for (const char* good :
             {"", "a", "a/b", "train/n01440764/x.JPEG", "...", "a b", ".hidden"}) {
            CAPTURE(good);
            CHECK(is_silo_path(good));
        }
        for (const char* bad :
             {"/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/./b", "a/../b"}) {
            CAPTURE(bad);
            CHECK(!is_silo_path(bad));
        }
        CHECK(!is_silo_path(std::string_view("a\0b", 3)));
        CHECK(is_silo_path(std::string(kSiloNameBytes, 'x')));
        CHECK(!is_silo_path(std::string(kSiloNameBytes + 1, 'x')));
        std::string deep(kSiloPathBytes, 'x');
        for (std::size_t at = 1; at < deep.size(); at += 2) deep[at] = '/';
        deep.back() = 'x';
        CHECK(is_silo_path(deep));
        CHECK(!is_silo_path(deep + "x"));
    }

    // Whatever is_silo_path() lets through stays below the root, by the rules of another library.
    TEST_CASE("no path that is let through leaves the root") {
        const char letters[] = {'.', '/', 'a', '\\'};
        for (int number = 0; number < 1 << 14; ++number) {
            std::string path;
            for (int rest = number, length = 0; length < 7; ++length, rest /= 4) {
                path += letters[rest % 4];
            }
            if (!is_silo_path(path)) continue;
            CAPTURE(path);
            const auto placed = (std::filesystem::path("/pool/of/silo") / path).lexically_normal();
            CHECK(placed.string().rfind("/pool/of/silo/", 0) == 0);
        }
    }

    TEST_CASE("what is shown of a path is printable ASCII") {
        CHECK(printable("train/x.JPEG") == "train/x.JPEG");
        CHECK(printable("a\nb\x1b[31m\xff\\") == "a\\x0ab\\x1b[31m\\xff\\x5c");
    }
}
