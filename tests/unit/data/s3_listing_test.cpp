// Pages of ListObjectsV2 and errors, also those that no server should write.

#include "fabricd/data/silo/s3_listing.hpp"

#include <doctest/doctest.h>

#include "fabricd/data/silo/web_version.hpp"

using namespace fabricd;
using fabricshm::Errc;

namespace {

std::string page(const std::string& rows,
                 const std::string& more = "<IsTruncated>false</IsTruncated>") {
    return "<?xml version=\"1.0\"?><ListBucketResult "
           "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
           "<EncodingType>url</EncodingType>" +
           more + rows + "</ListBucketResult>";
}

std::string file(const std::string& key, const std::string& size = "5",
                 const std::string& etag = "&quot;0123456789abcdef0123456789abcdef&quot;") {
    return "<Contents><Key>" + key + "</Key><ETag>" + etag + "</ETag><Size>" + size +
           "</Size></Contents>";
}

std::string folder(const std::string& prefix) {
    return "<CommonPrefixes><Prefix>" + prefix + "</Prefix></CommonPrefixes>";
}

}  // namespace

TEST_SUITE("data.s3_listing") {
    TEST_CASE("files have name, size and version, folders a name") {
        const auto listing =
            parse_s3_listing(page(file("p/a+b%2Bc", "123") + folder("p%2Fmore/")), "p/").value();
        REQUIRE(listing.entries.size() == 2);
        CHECK(listing.entries[0].name == "a b+c");
        CHECK(listing.entries[0].facts.bytes == 123);
        CHECK(listing.entries[0].facts.version ==
              *version_of_etag("\"0123456789abcdef0123456789abcdef\""));
        CHECK(listing.entries[1].name == "more");
        CHECK(listing.entries[1].is_folder);
        CHECK(listing.keys == 2);
        CHECK(listing.left_out == 0);
        CHECK(listing.next == "");
    }

    TEST_CASE("what has no path, no size or no version is left out with its reason") {
        const struct {
            std::string row;
            const char* reason;
        } rows[] = {{file("p/.."), "p/..: no name that a path can have"},
                    {file("p/a/b"), "p/a/b: no name that a path can have"},
                    {file("p/a%00"), "p/a\\x00: no name that a path can have"},
                    {file("p/a%0"), "p/: a key that is not encoded as it has to be"},
                    {file("q/a"), "p/: a key of another folder"},
                    {file("p/"), "p/: an empty name"},
                    {folder("p//"), "p/: an empty name"},
                    {folder("p/x"), "p/x: a folder without '/'"},
                    {file("p/a", "-1"), "p/a: no size"},
                    {file("p/a", "99999999999999999999"), "p/a: no size"},
                    {file("p/a", "5", ""), "p/a: no ETag that can be asked for"},
                    {file("p/a", "5", "a&#13;&#10;b"), "p/a: no ETag that can be asked for"}};
        for (const auto& row : rows) {
            CAPTURE(row.row);
            const auto listing = parse_s3_listing(page(row.row + file("p/good")), "p/").value();
            CHECK(listing.entries.size() == 1);
            CHECK(listing.left_out == 1);
            CHECK(listing.first_left_out == row.reason);
            // What S3 never says; names may be any.
            const bool is_name = std::string(row.reason).find("name") != std::string::npos;
            CHECK(listing.wrong == (is_name ? 0 : 1));
            CHECK(listing.keys == 2);
        }
        // What makes a folder, and is no file of it.
        CHECK(parse_s3_listing(page(file("p/", "0")), "p/").value().left_out == 0);
    }

    TEST_CASE("a page that is not whole is none") {
        const std::string whole = page(file("p/a") + folder("p/b/"));
        CHECK(parse_s3_listing(whole, "p/").ok());
        for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
            CHECK(parse_s3_listing(whole.substr(0, bytes), "p/").error().code == Errc::kCorrupt);
        }
        for (const std::string& other : {std::string("<html><body>sign in</body></html>"),
                                         page("", ""), page("", "<IsTruncated>maybe</IsTruncated>"),
                                         page("", "<IsTruncated>true</IsTruncated>")}) {
            CHECK(parse_s3_listing(other, "").error().code == Errc::kCorrupt);
        }
        const std::string more =
            "<IsTruncated>true</IsTruncated><NextContinuationToken>t=/1</NextContinuationToken>";
        CHECK(parse_s3_listing(page("", more), "").value().next == "t=/1");
    }

    TEST_CASE("entities of a document type are not expanded") {
        const std::string bomb =
            "<!DOCTYPE l [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">"
            "<!ENTITY f SYSTEM \"file:///etc/passwd\">]>" +
            page(file("&b;") + file("&f;"));
        const auto listing = parse_s3_listing(bomb, "");
        REQUIRE(listing.ok());
        REQUIRE(listing->entries.size() == 2);
        CHECK(listing->entries[0].name == "&b;");
        CHECK(listing->entries[1].name == "&f;");
    }

    TEST_CASE("an error has its code, if that is a word") {
        CHECK(s3_error_code("<Error><Code>SlowDown</Code></Error>") == "SlowDown");
        for (const char* text : {"", "<Error/>", "<Error><Code>a b</Code></Error>",
                                 "<Code>a</Code>", "<Error><Code>SlowDown</Code>"}) {
            CHECK(s3_error_code(text) == "");
        }
    }
}
