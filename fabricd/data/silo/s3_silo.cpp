#include "fabricd/data/silo/s3_silo.hpp"

#include <algorithm>
#include <utility>

#include "fabricd/data/silo/url_text.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;

namespace {

constexpr Bytes kPageText = 32 * fabricshm::kMiB;
constexpr std::size_t kMaxNames = 20'000'000;

}  // namespace

S3Silo::S3Silo(const S3Options& options, S3Place place, std::unique_ptr<HttpTransfers> transfers)
    : WebSilo(printable(options.place), options.web, std::move(transfers)),
      place_(std::move(place)) {}

Result<std::unique_ptr<S3Silo>> S3Silo::open(const S3Options& options) {
    FABRIC_TRY(auto place, S3Place::of(options));
    FABRIC_TRY(auto transfers, HttpTransfers::make(options.web.transfers));
    return std::unique_ptr<S3Silo>(new S3Silo(options, std::move(place), std::move(transfers)));
}

TransferRequest S3Silo::request_for(const std::string& path) const {
    return place_.request(place_.url_of(path));
}

std::string S3Silo::code_of(const TransferAnswer& answer) const {
    return answer.status >= 300 ? s3_error_code(answer.text) : "";
}

// In the order in which they are signed.
std::string S3Silo::list_url(const std::string& prefix, const std::string& token) const {
    std::string query;
    if (!token.empty()) query += "continuation-token=" + url_encoded(token, false) + "&";
    query += "delimiter=%2F&encoding-type=url&list-type=2&prefix=" + url_encoded(prefix, false);
    return place_.base() + "?" + query;
}

Result<void> S3Silo::read_names(const std::string& folder, TimePoint deadline) {
    const std::string prefix = place_.prefix() + (folder.empty() ? "" : folder + "/");
    has_names_ = false;
    names_ = {};
    for (std::string token;;) {
        TransferRequest request = place_.request(list_url(prefix, token));
        request.max_text = kPageText;
        request.deadline = deadline;
        const TransferAnswer answer = requests().ask({request}).front();
        if (answer.end != HttpEnd::kAnswered || answer.status != 200) {
            return error_of(answer, folder, "list folder");
        }
        const std::size_t room = kSiloPathBytes - (folder.empty() ? 0 : folder.size() + 1);
        auto page = parse_s3_listing(answer.text, prefix, std::min(room, kSiloNameBytes));
        const bool stands_still = page.ok() && !page->next.empty() && page->next == token;
        if (!page.ok() || stands_still) {
            TransferAnswer broken = answer;
            broken.end = HttpEnd::kBroken;
            broken.problem = stands_still ? "a listing that does not go on"
                                          : fabricshm::explanation_of(page.error());
            return error_of(broken, folder, "list folder");
        }
        token = page->next;
        if (names_.left_out == 0) names_.first_left_out = page->first_left_out;
        names_.left_out += page->left_out;
        if (names_.wrong == 0) names_.first_wrong = page->first_wrong;
        names_.wrong += page->wrong;
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
        page.wrong = names_.wrong;
        page.first_wrong = names_.first_wrong;
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
