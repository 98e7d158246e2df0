// What of an answer is parsed by hand.

#include "fabricd/data/silo/http_transfers.hpp"

#include <doctest/doctest.h>

#include "fabricd/data/silo/url_text.hpp"
#include "fabricd/data/silo/web_requests.hpp"

using namespace fabricd;

TEST_SUITE("data.http_transfers") {
    TEST_CASE("a Content-Range says which part of how much") {
        const auto part = parse_content_range("bytes 5-9/100");
        REQUIRE(part);
        CHECK(part->first == 5);
        CHECK(part->last == 9);
        CHECK(part->total == 100);
        CHECK(!parse_content_range("bytes 5-9/*")->total);
        CHECK(parse_content_range("bytes */100")->total == 100);
        for (const char* text :
             {"", "bytes", "bytes ", "bytes */*", "bytes 5-9", "bytes 9-5/100", "bytes 5-100/100",
              "lines 5-9/100", "bytes -9/100", "bytes 5-/100", "bytes 5-9/", "bytes 5-9/100x",
              "bytes +5-9/100", "bytes 5-99999999999999999999/*"}) {
            CHECK(!parse_content_range(text));
        }
    }

    TEST_CASE("any bytes come back from their form in a URL") {
        std::string all;
        for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
        std::string decoded;
        for (const bool keep_slash : {false, true}) {
            const std::string encoded = url_encoded(all, keep_slash);
            CHECK((encoded.find('/') != encoded.npos) == keep_slash);
            CHECK(url_decode(encoded, decoded));
            CHECK(decoded == all);
        }
        CHECK(url_encoded("a b/c~", true) == "a%20b/c~");
        CHECK(url_decode("a+b%2B", decoded));
        CHECK(decoded == "a b+");
        for (const char* text : {"%", "%a", "%zz", "%-1", "a%2"}) CHECK(!url_decode(text, decoded));
    }

    TEST_CASE("another attempt is for what may pass alone") {
        TransferAnswer answer;
        answer.end = HttpEnd::kAnswered;
        for (const int status : {429, 500, 502, 503, 504}) {
            answer.status = status;
            CHECK(is_worth_retry(answer));
        }
        for (const int status : {200, 206, 301, 400, 401, 403, 404, 412, 416, 501}) {
            answer.status = status;
            CHECK(!is_worth_retry(answer));
        }
        for (const auto end : {HttpEnd::kConnection, HttpEnd::kStalled}) {
            answer.end = end;
            CHECK(is_worth_retry(answer));
        }
        for (const auto end : {HttpEnd::kBroken, HttpEnd::kTrust, HttpEnd::kDeadline}) {
            answer.end = end;
            CHECK(!is_worth_retry(answer));
        }
    }
}
