// S3Place: the part of a bucket that is a silo, and how requests to it are signed.

#pragma once

#include <memory>
#include <string>

#include "fabricd/data/silo/web_silo.hpp"

namespace fabricd {

enum class S3Addressing {
    kPath,  // http://endpoint/bucket/key
    kHost,  // http://bucket.endpoint/key
};

struct S3Options {
    std::string place;     // "s3://bucket/prefix"
    std::string endpoint;  // "https://host:port"
    std::string region = "us-east-1";
    S3Addressing addressing = S3Addressing::kPath;
    std::string credentials;  // a file, see read_s3_credentials(); "": requests are not signed
    WebSiloOptions web;
};

class S3Place {
  public:
    /// Asks no server. kInvalid names the option.
    static Result<S3Place> of(const S3Options& options);

    /// URL of the bucket, ending in '/'.
    const std::string& base() const noexcept { return base_; }
    /// Of all keys: "" or ending in '/'.
    const std::string& prefix() const noexcept { return prefix_; }
    std::string url_of(const std::string& path) const;

    /// A GET, signed if there are credentials.
    TransferRequest request(std::string url) const;
    /// "PUT", "POST" or "DELETE", with a body.
    TransferRequest request(const char* method, std::string url,
                            std::shared_ptr<const std::string> body) const;

  private:
    TransferRequest unsigned_request(std::string url) const;

    std::string base_;
    std::string prefix_;
    std::string session_token_;
    std::shared_ptr<const HttpSigning> signing_;
};

}  // namespace fabricd
