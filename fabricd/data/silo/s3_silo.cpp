#include "fabricd/data/silo/s3_silo.hpp"

#include <algorithm>
#include <utility>

#include "fabricd/data/silo/url_text.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;

namespace {

constexpr std::string_view kScheme = "s3://";
constexpr Bytes kPageText = 32 * fabricshm::kMiB;
constexpr std::size_t kMaxNames = 20'000'000;
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

S3Silo::S3Silo(const S3Options& options, std::string base, std::string prefix,
               std::unique_ptr<HttpTransfers> transfers)
    : WebSilo(printable(options.place), options.web, std::move(transfers)),
      base_(std::move(base)),
      prefix_(std::move(prefix)) {}

Result<std::unique_ptr<S3Silo>> S3Silo::open(const S3Options& options) {
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
    std::shared_ptr<HttpSigning> signing;
    S3Credentials credentials;
    if (!options.credentials.empty()) {
        FABRIC_TRY(credentials, read_s3_credentials(options.credentials));
        signing = std::make_shared<HttpSigning>(HttpSigning{
            "aws:amz:" + options.region + ":s3", credentials.access_key, credentials.secret});
    }
    FABRIC_TRY(auto transfers, HttpTransfers::make(options.web.transfers));
    std::unique_ptr<S3Silo> silo(
        new S3Silo(options, with_bucket(options.endpoint, bucket, options.addressing), prefix,
                   std::move(transfers)));
    silo->signing_ = std::move(signing);
    silo->session_token_ = credentials.session_token;
    return silo;
}

HttpRequest S3Silo::signed_request(std::string url) const {
    HttpRequest request;
    request.url = std::move(url);
    if (signing_ == nullptr) return request;
    request.signing = signing_;
    request.headers.emplace_back(kNoBody);
    if (!session_token_.empty()) {
        request.headers.push_back("x-amz-security-token: " + session_token_);
    }
    return request;
}

HttpRequest S3Silo::request_for(const std::string& path) const {
    return signed_request(base_ + url_encoded(prefix_ + path, true));
}

std::string S3Silo::code_of(const HttpAnswer& answer) const {
    return answer.status >= 300 ? s3_error_code(answer.text) : "";
}

// In the order in which they are signed.
std::string S3Silo::list_url(const std::string& prefix, const std::string& token) const {
    std::string query;
    if (!token.empty()) query += "continuation-token=" + url_encoded(token, false) + "&";
    query += "delimiter=%2F&encoding-type=url&list-type=2&prefix=" + url_encoded(prefix, false);
    return base_ + "?" + query;
}

Result<void> S3Silo::read_names(const std::string& folder, TimePoint deadline) {
    const std::string prefix = prefix_ + (folder.empty() ? "" : folder + "/");
    has_names_ = false;
    names_ = {};
    for (std::string token;;) {
        HttpRequest request = signed_request(list_url(prefix, token));
        request.max_text = kPageText;
        request.deadline = deadline;
        const HttpAnswer answer = requests().ask({request}).front();
        if (answer.end != HttpEnd::kAnswered || answer.status != 200) {
            return error_of(answer, folder, "list folder");
        }
        const std::size_t room = kSiloPathBytes - (folder.empty() ? 0 : folder.size() + 1);
        auto page = parse_s3_listing(answer.text, prefix, std::min(room, kSiloNameBytes));
        const bool stands_still = page.ok() && !page->next.empty() && page->next == token;
        if (!page.ok() || stands_still) {
            HttpAnswer broken = answer;
            broken.end = HttpEnd::kBroken;
            broken.problem = stands_still ? "a listing that does not go on"
                                          : fabricshm::explanation_of(page.error());
            return error_of(broken, folder, "list folder");
        }
        token = page->next;
        if (names_.left_out == 0) names_.first_left_out = page->first_left_out;
        names_.left_out += page->left_out;
        names_.keys += page->keys;
        std::move(page->entries.begin(), page->entries.end(), std::back_inserter(names_.entries));
        if (names_.entries.size() > kMaxNames) {
            return explain({Errc::kUnsupported, 0, "list folder"}, "%s: more than %zu names in %s",
                           name().c_str(), kMaxNames, printable(folder).c_str());
        }
        if (token.empty()) break;
    }
    // S3 has no folders but those with something in them.
    if (names_.keys == 0 && !folder.empty()) {
        return explain({Errc::kNotFound, 0, "list folder"}, "%s: there is nothing in %s",
                       name().c_str(), printable(folder).c_str());
    }
    sort_names(folder);
    return {};
}

// By name, a folder before a file of the same name, which is left out: a path is one thing.
void S3Silo::sort_names(const std::string& folder) {
    auto& entries = names_.entries;
    std::sort(entries.begin(), entries.end(), [](const SiloEntry& a, const SiloEntry& b) {
        return a.name != b.name ? a.name < b.name : a.is_folder > b.is_folder;
    });
    const auto is_same = [](const SiloEntry& a, const SiloEntry& b) { return a.name == b.name; };
    const auto first = std::adjacent_find(entries.begin(), entries.end(), is_same);
    if (first != entries.end() && names_.left_out == 0) {
        const std::string prefix = folder.empty() ? "" : folder + "/";
        names_.first_left_out = printable(prefix + first->name) + ": the name of a folder, too";
    }
    const auto rest = std::unique(first, entries.end(), is_same);
    names_.left_out += static_cast<std::size_t>(entries.end() - rest);
    entries.erase(rest, entries.end());
    listed_ = folder;
    has_names_ = true;
}

Result<SiloPage> S3Silo::list(const std::string& folder, const std::string& after, std::size_t most,
                              TimePoint deadline) {
    if (!is_silo_path(folder) || folder.size() == kSiloPathBytes)
        return not_a_path(folder, "list folder");
    const bool goes_on = !after.empty() && has_names_ && folder == listed_;
    if (!goes_on) FABRIC_TRY_VOID(read_names(folder, deadline));
    SiloPage page;
    if (!goes_on) {
        page.left_out = names_.left_out;
        page.first_left_out = names_.first_left_out;
    }
    auto& entries = names_.entries;
    auto entry = std::upper_bound(
        entries.begin(), entries.end(), after,
        [](const std::string& name, const SiloEntry& other) { return name < other.name; });
    for (; entry != entries.end() && page.entries.size() < most; ++entry) {
        page.entries.push_back(*entry);
    }
    page.is_last = entry == entries.end();
    if (page.is_last) {
        names_ = {};
        has_names_ = false;
    }
    return page;
}

}  // namespace fabricd
