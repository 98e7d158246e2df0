// What an S3 server answers in XML: a page of ListObjectsV2, and an error.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fabricd/data/silo/silo.hpp"

namespace fabricd {

/// A page of the keys below a prefix, up to the next '/'.
struct S3Listing {
    std::vector<SiloEntry> entries;  // in the server's order
    std::size_t keys = 0;            // all that the page has, also what is left out
    std::size_t left_out = 0;
    std::string first_left_out;
    // Of these, what S3 never says: without a size or an ETag, or of another folder.
    std::size_t wrong = 0;
    std::string first_wrong;
    std::string next;  // the token of the page after this one; "": this is the last
};

/// `prefix`: of the keys, "" or ending in '/'; `room`: bytes that a name may have below it.
/// kCorrupt: it is no whole page.
Result<S3Listing> parse_s3_listing(std::string_view xml, const std::string& prefix,
                                   std::size_t room = kSiloNameBytes);

/// The Code of an error: "SlowDown", "NoSuchBucket". "": there is none, or no word.
std::string s3_error_code(std::string_view xml);

}  // namespace fabricd
