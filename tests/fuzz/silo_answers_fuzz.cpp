// What web servers and S3 answer: listings, errors, indexes, headers, texts in URLs; and the file
// of credentials. The first byte says which.

#include <set>

#include "fabricd/data/silo/http_index.hpp"
#include "fabricd/data/silo/http_transfers.hpp"
#include "fabricd/data/silo/s3_credentials.hpp"
#include "fabricd/data/silo/s3_listing.hpp"
#include "fabricd/data/silo/s3_upload.hpp"
#include "fabricd/data/silo/url_text.hpp"
#include "fabricd/data/silo/web_version.hpp"
#include "libfabricshm/base/reason.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace fabricd;

namespace {

bool is_header_text(const std::string& text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

void require_name(const std::string& name) {
    FUZZ_REQUIRE(!name.empty() && is_silo_path(name) && name.find('/') == name.npos);
}

void read_listing(const std::string& text) {
    for (const std::string prefix : {"", "p/"}) {
        const auto listing = parse_s3_listing(text, prefix);
        if (!listing.ok()) continue;
        FUZZ_REQUIRE(listing->entries.size() + listing->left_out <= listing->keys);
        FUZZ_REQUIRE((listing->left_out == 0) == listing->first_left_out.empty());
        FUZZ_REQUIRE(is_header_text(listing->first_left_out));
        for (const SiloEntry& entry : listing->entries) {
            require_name(entry.name);
            if (!entry.is_folder) FUZZ_REQUIRE(is_header_text(condition_of(entry.facts.version)));
        }
    }
    const auto uploads = parse_s3_uploads(text);
    if (uploads.ok()) {
        for (const auto& upload : uploads->uploads) FUZZ_REQUIRE(!upload.id.empty());
    }
    const auto id = parse_upload_id(text);
    FUZZ_REQUIRE(!id || (!id->empty() && !is_upload_completed(text)));
    for (const char letter : s3_error_code(text)) FUZZ_REQUIRE(letter > 0x20 && letter < 0x7f);
}

// From the root down, at most some levels.
std::size_t count_files(const HttpIndex& index, const std::string& folder, int levels) {
    const auto names = index.names_in(folder);
    FUZZ_REQUIRE(names.has_value());
    std::size_t files = 0;
    const IndexedName* before = nullptr;
    for (const IndexedName& name : *names) {
        require_name(name.name);
        FUZZ_REQUIRE(before == nullptr || before->name < name.name);
        before = &name;
        files += name.is_folder ? 0U : 1U;
        const std::string path = (folder.empty() ? "" : folder + "/") + name.name;
        if (name.is_folder && levels > 0) files += count_files(index, path, levels - 1);
    }
    return files;
}

void read_index(const std::string& text) {
    const HttpIndex index(text);
    const auto lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
    FUZZ_REQUIRE(count_files(index, "", 6) + index.left_out() <= lines);
    FUZZ_REQUIRE((index.left_out() == 0) == index.first_left_out().empty());
}

void read_fields(const std::string& text) {
    const auto range = parse_content_range(text);
    if (range)
        FUZZ_REQUIRE(range->first <= range->last &&
                     (!range->total || range->last <= *range->total));
    const auto seconds = parse_http_date(text);
    if (seconds) FUZZ_REQUIRE(format_http_date(*seconds) == text);
    const auto version = version_of_etag(text);
    if (!version) return;
    const std::string condition = condition_of(*version);
    FUZZ_REQUIRE(is_header_text(condition) && is_version(*version, text, "") == true);
    if (condition.empty()) return;
    FUZZ_REQUIRE(version_of_etag(condition.substr(condition.find('"'))) == version);
}

// Versions come back from a catalogue that may be broken.
void make_condition(const std::string& text) {
    FileVersion version;
    std::memcpy(version.words.data(), text.data(), std::min(text.size(), sizeof version.words));
    FUZZ_REQUIRE(is_header_text(condition_of(version)));
}

void read_url_text(const std::string& text) {
    std::string decoded;
    FUZZ_REQUIRE(url_decode(url_encoded(text, true), decoded) && decoded == text);
    static_cast<void>(url_decode(text, decoded));
}

void read_keys(const std::string& text) {
    const auto keys = parse_s3_credentials(text);
    if (keys.ok()) {
        FUZZ_REQUIRE(!keys->access_key.empty() && !keys->secret.empty());
        FUZZ_REQUIRE(is_header_text(keys->access_key + keys->secret + keys->session_token));
    } else {
        FUZZ_REQUIRE(!fabricshm::explanation_of(keys.error()).empty());
    }
}

void run(fuzz::Data data) {
    fuzz::Input input(data);
    constexpr void (*kReaders[])(const std::string&) = {read_listing,   read_index,    read_fields,
                                                        make_condition, read_url_text, read_keys};
    const unsigned which = input.below(6);
    kReaders[which](fuzz::Input::text_of(input.rest()));
}

std::vector<fuzz::Buffer> seeds() {
    const char* const listing =
        "<?xml version=\"1.0\"?><ListBucketResult><EncodingType>url</EncodingType>"
        "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
        "<Contents><Key>p/a+%2B</Key><ETag>&quot;0123456789abcdef0123456789abcdef-2&quot;</ETag>"
        "<Size>12</Size></Contents><CommonPrefixes><Prefix>p/b/</Prefix></CommonPrefixes>"
        "</ListBucketResult>";
    const std::pair<char, std::string> texts[] = {
        {0, listing},
        {0, "<Error><Code>SlowDown</Code></Error>"},
        {0,
         "<InitiateMultipartUploadResult><UploadId>7</UploadId></InitiateMultipartUploadResult>"},
        {0,
         "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>a"
         "</NextKeyMarker><Upload><Key>a</Key><UploadId>7</UploadId></Upload>"
         "</ListMultipartUploadsResult>"},
        {1, "10 a\n0 b/c\n7 b/d e\n7 b\n"},
        {2, "bytes 0-99/1000"},
        {2, "bytes */1000"},
        {2, "Sun, 06 Nov 1994 08:49:37 GMT"},
        {2, "\"0123456789abcdef0123456789abcdef-2\""},
        {2, "\"674f2a1b-6e\""},
        {3, std::string("\x01\x04") + "abcd"},
        {3, std::string("\x04\0\0\0\0\0\0\0\x7f", 9)},
        {4, "a%20b+c/"},
        {5, "[x]\naws_access_key_id = A\naws_secret_access_key = B\naws_session_token = C\n"}};
    std::vector<fuzz::Buffer> all;
    for (const auto& [which, text] : texts) all.push_back(fuzz::buffer_of(which + text));
    return all;
}

const fuzz::Registered kTarget({"silo_answers", run, seeds});

}  // namespace
