// What is said in XML of an upload in parts.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libfabricshm/base/result.hpp"

namespace fabricd {

/// Of the answer to a request for one. nullopt: there is none.
std::optional<std::string> parse_upload_id(std::string_view xml);

/// The request that makes one object of the parts; `etags` as the server wrote them.
std::string upload_parts_text(const std::vector<std::string>& etags);

/// Whether the answer to it says that there is an object now. It may say otherwise with status 200.
bool is_upload_completed(std::string_view xml);

/// A page of the uploads that are under way in a bucket.
struct S3Uploads {
    struct Upload {
        std::string key;
        std::string id;
    };
    std::vector<Upload> uploads;
    // Of the page after this one; "": this is the last.
    std::string next_key;
    std::string next_id;
};

/// kCorrupt: it is no whole page.
fabricshm::Result<S3Uploads> parse_s3_uploads(std::string_view xml);

}  // namespace fabricd
