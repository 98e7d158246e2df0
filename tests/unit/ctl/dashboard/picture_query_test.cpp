#include "fabricd/ctl/dashboard/picture_query.hpp"

#include <doctest/doctest.h>

using namespace fabricd;

namespace {

TEST_SUITE("ctl.dashboard.picture_query") {
    TEST_CASE("a question has a number, a text and the first row of each list") {
        const PictureQuery query =
            parse_picture_query("since=7&match=job-1&user=0&sessions=500&training=1000&paths=3");
        CHECK(query.since == 7);
        CHECK(query.match == "job-1");
        CHECK(query.user == 0U);
        CHECK_FALSE(parse_picture_query("match=job-1").user.has_value());
        CHECK(query.from_of(PagedList::kSessions) == 500);
        CHECK(query.from_of(PagedList::kTraining) == 1000);
        CHECK(query.from_of(PagedList::kPaths) == 3);
        CHECK(query.from_of(PagedList::kJobs) == 0);
    }

    TEST_CASE("a text may be any, as a browser writes it") {
        CHECK(parse_picture_query("match=a%26b%3D%22%20%25").match == "a&b=\" %");
        CHECK(parse_picture_query("match=%").match == "%");
        CHECK(parse_picture_query("match=%4").match == "%4");
        CHECK(parse_picture_query("match=%4x%41").match == "%4xA");
        CHECK(parse_picture_query("match=%C3%A4").match == "\xC3\xA4");
        CHECK(parse_picture_query("match=").match.empty());
        CHECK(parse_picture_query("match=a=b").match == "a=b");
        const std::string longest(5000, 'x');
        CHECK(parse_picture_query("match=" + longest).match.size() == PictureQuery::kMaxMatch);
    }

    TEST_CASE("a text that is too long is cut between two letters") {
        const std::string two = "%C3%A4";
        const std::string three = "%E2%82%AC";
        const std::string four = "%F0%9F%A6%80";
        for (const std::string& letter : {two, three, four}) {
            for (std::size_t before = 0; before < 4; ++before) {
                CAPTURE(letter);
                CAPTURE(before);
                std::string text = "match=" + std::string(before, 'x');
                for (int i = 0; i < 300; ++i) text += letter;
                const std::string match = parse_picture_query(text).match;
                const std::size_t bytes = letter.size() / 3;
                CHECK(match.size() <= PictureQuery::kMaxMatch);
                CHECK(match.size() + bytes > PictureQuery::kMaxMatch);
                CHECK((match.size() - before) % bytes == 0);
            }
        }
        // What is no UTF-8 has no letters that could be cut.
        std::string odd = "match=";
        for (int i = 0; i < 300; ++i) odd += "%BF";
        CHECK(parse_picture_query(odd).match.size() <= PictureQuery::kMaxMatch);
    }

    TEST_CASE("what is none of it counts as not there") {
        for (const char* odd : {"", "&", "=", "&&=&", "since", "since=", "since=-1", "since=7x",
                                "sessions=99999999999999999999999", "sessions=x", "user=", "user=x",
                                "user=-1", "user=4294967296", "till=7", "SINCE=7", "session=7"}) {
            CAPTURE(odd);
            CHECK(parse_picture_query(odd).key() == PictureQuery{}.key());
            CHECK(parse_picture_query(odd).since == 0);
        }
    }

    TEST_CASE("questions that another text answers have other keys") {
        const std::string plain = parse_picture_query("since=7").key();
        CHECK(parse_picture_query("since=8").key() == plain);
        for (const char* other :
             {"", "since=7&match=a", "since=7&jobs=1", "since=7&sessions=1", "since=7&match=,1",
              "since=7&user=0", "since=7&user=1", "since=7&match=of 1"}) {
            CAPTURE(other);
            CHECK(parse_picture_query(other).key() != plain);
        }
    }
}

}  // namespace
