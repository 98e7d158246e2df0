#include "fabricd/data/silo/s3_place.hpp"

#include <algorithm>
#include <utility>

#include "fabricd/data/silo/s3_credentials.hpp"
#include "fabricd/data/silo/sha256.hpp"
#include "fabricd/data/silo/url_text.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;

namespace {

constexpr std::string_view kScheme = "s3://";
// Of a body of no bytes, by which libcurl signs: S3 wants it in each request.
constexpr const char* kNoBody =
    "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

Error wrong_option(const char* name, const char* what) {
    return explain({Errc::kInvalid, 0, "open S3 silo"}, "%s: %s", name, what);
}

bool is_made_of(std::string_view text, std::string_view others) noexcept {
    return !text.empty() && std::all_of(text.begin(), text.end(), [&](char letter) {
        return (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9') ||
               others.find(letter) != others.npos;
    });
}

// "bucket.s3.example:9000" of "https://s3.example:9000".
std::string with_bucket(std::string endpoint, const std::string& bucket, S3Addressing addressing) {
    if (endpoint.ends_with('/')) endpoint.pop_back();
    if (addressing == S3Addressing::kPath) return endpoint + "/" + bucket + "/";
    return endpoint.insert(endpoint.find("://") + 3, bucket + ".") + "/";
}

Result<void> check_endpoint(std::string_view endpoint) {
    const auto is_scheme = [&](std::string_view name) { return endpoint.starts_with(name); };
    if (!is_scheme("http://") && !is_scheme("https://")) {
        return wrong_option("endpoint", "neither http:// nor https://");
    }
    std::string_view host = endpoint.substr(endpoint.find("://") + 3);
    if (host.ends_with('/')) host.remove_suffix(1);
    if (host.empty() || host.find_first_of("/?#@ \t\r\n") != host.npos) {
        return wrong_option("endpoint", "more than a host and a port, or less");
    }
    return {};
}

}  // namespace

Result<S3Place> S3Place::of(const S3Options& options) {
    if (!options.place.starts_with(kScheme)) return wrong_option("from", "not s3://BUCKET/PREFIX");
    const std::string place = options.place.substr(kScheme.size());
    const std::size_t slash = std::min(place.find('/'), place.size());
    const std::string bucket = place.substr(0, slash);
    if (!is_made_of(bucket, ".-") || bucket.size() > 63) {
        return wrong_option("from", "the bucket has a name that S3 has not");
    }
    std::string prefix = place.substr(std::min(slash + 1, place.size()));
    if (prefix.ends_with('/')) prefix.pop_back();
    if (!is_silo_path(prefix)) return wrong_option("from", "no prefix that a path can have");
    if (!prefix.empty()) prefix += '/';
    if (!is_made_of(options.region, "-")) return wrong_option("region", "no name of a region");
    FABRIC_TRY_VOID(check_endpoint(options.endpoint));
    S3Place found;
    found.base_ = with_bucket(options.endpoint, bucket, options.addressing);
    found.prefix_ = std::move(prefix);
    if (options.credentials.empty()) return found;
    FABRIC_TRY(const S3Credentials credentials, read_s3_credentials(options.credentials));
    found.signing_ = std::make_shared<HttpSigning>(HttpSigning{
        "aws:amz:" + options.region + ":s3", credentials.access_key, credentials.secret});
    found.session_token_ = credentials.session_token;
    return found;
}

std::string S3Place::url_of(const std::string& path) const {
    return base_ + url_encoded(prefix_ + path, true);
}

TransferRequest S3Place::unsigned_request(std::string url) const {
    TransferRequest request;
    request.url = std::move(url);
    if (signing_ == nullptr) return request;
    request.signing = signing_;
    if (!session_token_.empty()) {
        request.headers.push_back("x-amz-security-token: " + session_token_);
    }
    return request;
}

TransferRequest S3Place::request(std::string url) const {
    TransferRequest request = unsigned_request(std::move(url));
    if (signing_ != nullptr) request.headers.emplace_back(kNoBody);
    return request;
}

TransferRequest S3Place::request(const char* method, std::string url,
                                 std::shared_ptr<const std::string> body) const {
    TransferRequest request = unsigned_request(std::move(url));
    // Without the header libcurl signs the body, but does not send what S3 compares it with.
    const std::string_view text = body != nullptr ? std::string_view(*body) : "";
    if (signing_ != nullptr) {
        request.headers.push_back("x-amz-content-sha256: " + sha256_text(text));
    }
    request.method = method;
    request.body = std::move(body);
    request.headers.emplace_back("Content-Type: application/octet-stream");
    return request;
}

}  // namespace fabricd
