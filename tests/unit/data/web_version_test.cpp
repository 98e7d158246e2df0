// Versions made of ETags and times, and the conditions made of them again.

#include "fabricd/data/silo/web_version.hpp"

#include <doctest/doctest.h>

#include <set>

using namespace fabricd;

TEST_SUITE("data.web_version") {
    TEST_CASE("the condition has the ETag as it was, of every form that fits") {
        std::set<FileVersion> versions;
        for (const char* etag :
             {"0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef-1",
              "0123456789abcdef0123456789abcdef-10000", "674f2a1b-6e", "x", "!#$%&'()*+,-./:;<=>?@",
              "123456789012345678901234567890"}) {
            const std::string quoted = "\"" + std::string(etag) + "\"";
            const auto version = version_of_etag(quoted);
            REQUIRE(version);
            CHECK(condition_of(*version) == "If-Match: " + quoted);
            CHECK(version_of_etag(etag) == version);
            CHECK(is_version(*version, quoted, "") == true);
            CHECK(is_version(*version, "\"another\"", "") == false);
            CHECK(!is_version(*version, "", "Sun, 06 Nov 1994 08:49:37 GMT"));
            CHECK(versions.insert(*version).second);
        }
    }

    TEST_CASE("an ETag that does not fit is compared with the answer's") {
        for (const std::string etag :
             {"0123456789ABCDEF0123456789ABCDEF", "0123456789abcdef0123456789abcdef-01",
              "0123456789abcdef0123456789abcdefg"}) {
            const auto version = version_of_etag(etag);
            REQUIRE(version);
            CHECK(condition_of(*version) == "");
            CHECK(is_version(*version, "\"" + etag + "\"", "") == true);
            CHECK(is_version(*version, "\"" + etag + "x\"", "") == false);
        }
    }

    TEST_CASE("weak and empty ETags, and those that would break a header, are none") {
        for (const std::string etag :
             {"", "\"\"", "W/\"weak\"", "\"a\r\nHost: b\"", "a b", "a\"b", "\x80"}) {
            CHECK(!version_of_etag(etag));
        }
    }

    TEST_CASE("without a strong ETag the time counts, and comes back as it was") {
        const char* const date = "Sun, 06 Nov 1994 08:49:37 GMT";
        CHECK(parse_http_date(date) == 784111777);
        CHECK(format_http_date(784111777) == date);
        const auto version = version_of_fields("W/\"weak\"", date);
        REQUIRE(version);
        CHECK(condition_of(*version) == std::string("If-Unmodified-Since: ") + date);
        CHECK(is_version(*version, "\"any\"", date) == true);
        CHECK(is_version(*version, "\"any\"", "Sun, 06 Nov 1994 08:49:38 GMT") == false);
        CHECK(!is_version(*version, "\"any\"", ""));
        CHECK(version_of_fields("\"strong\"", date) == version_of_etag("strong"));
    }

    TEST_CASE("a time is of one version once its second is surely over, an ETag always") {
        const auto version = version_of_fields("", "Sun, 06 Nov 1994 08:49:37 GMT");
        REQUIRE(version);
        CHECK(settles_in(*version, "Sun, 06 Nov 1994 08:49:37 GMT", 0) == 2);
        CHECK(settles_in(*version, "Sun, 06 Nov 1994 08:49:38 GMT", 0) == 1);
        CHECK(settles_in(*version, "Sun, 06 Nov 1994 08:49:39 GMT", 0) == 0);
        CHECK(settles_in(*version, "Sun, 06 Nov 1994 08:49:36 GMT", 0) == 3);
        CHECK(settles_in(*version, "", 784111777 + 59) == 1);
        CHECK(settles_in(*version, "today", 784111777 + 60) == 0);
        CHECK(settles_in(*version_of_etag("strong"), "", 0) == 0);
    }

    TEST_CASE("what is no date is none") {
        for (const char* text : {"", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994",
                                 "Mon, 06 Nov 1994 08:49:37 GMT", "Sun, 31 Feb 1994 08:49:37 GMT",
                                 "Sun, 06 Nov 1994 25:49:37 GMT", "Sun, 06 nov 1994 08:49:37 GMT",
                                 "Sun, 06 Nov 1994 08:49:37 UTC"}) {
            CHECK(!parse_http_date(text));
            CHECK(!version_of_fields("", text));
        }
    }
}
