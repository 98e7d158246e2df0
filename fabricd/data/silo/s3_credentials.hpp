// The keys of an S3 user, from a file that no other user can read.

#pragma once

#include <string>
#include <string_view>

#include "libfabricshm/base/result.hpp"

namespace fabricd {

struct S3Credentials {
    std::string access_key;
    std::string secret;
    std::string session_token;  // "": none
};

/// Lines `aws_access_key_id = ...`, `aws_secret_access_key = ...` and, of keys that expire,
/// `aws_session_token = ...`, as other programs keep them; '#' begins a comment, and there is one
/// section at most. kInvalid names the line; no error has text of the file in it.
fabricshm::Result<S3Credentials> parse_s3_credentials(std::string_view text);

/// kDenied: the file is not this user's own, or others may read or write it.
fabricshm::Result<S3Credentials> read_s3_credentials(const std::string& path);

}  // namespace fabricd
