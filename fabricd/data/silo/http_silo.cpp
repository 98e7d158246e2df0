#include "fabricd/data/silo/http_silo.hpp"

#include <algorithm>
#include <utility>

#include "fabricd/data/silo/url_text.hpp"
#include "fabricd/data/silo/web_version.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;

namespace {

constexpr Bytes kIndexText = 512 * fabricshm::kMiB;
constexpr std::size_t kHeads = 1000;  // at a time; they wait for connections

Error wrong_place(const char* what) {
    return explain({Errc::kInvalid, 0, "open HTTP silo"}, "from: %s", what);
}

}  // namespace

HttpSilo::HttpSilo(const HttpOptions& options, std::unique_ptr<HttpTransfers> transfers)
    : WebSilo(printable(options.place), options.web, std::move(transfers)),
      base_(options.place + (options.place.ends_with('/') ? "" : "/")),
      index_path_(options.index) {}

Result<std::unique_ptr<HttpSilo>> HttpSilo::open(const HttpOptions& options) {
    const std::string& place = options.place;
    const bool is_web = place.starts_with("http://") || place.starts_with("https://");
    if (!is_web) return wrong_place("neither http:// nor https://");
    const std::string rest = place.substr(place.find("://") + 3);
    if (rest.empty() || rest.front() == '/') return wrong_place("no host");
    if (rest.substr(0, rest.find('/')).find('@') != rest.npos) {
        return wrong_place("a user or password, which would be shown");
    }
    if (rest.find_first_of("?# \t\r\n") != rest.npos) return wrong_place("no path of files");
    if (options.index.empty() || !is_silo_path(options.index)) {
        return explain({Errc::kInvalid, 0, "open HTTP silo"}, "index: no path in a silo");
    }
    FABRIC_TRY(auto transfers, HttpTransfers::make(options.web.transfers));
    return std::unique_ptr<HttpSilo>(new HttpSilo(options, std::move(transfers)));
}

TransferRequest HttpSilo::request_for(const std::string& path) const {
    TransferRequest request;
    request.url = base_ + url_encoded(path, true);
    return request;
}

Result<void> HttpSilo::read_index(TimePoint deadline) {
    TransferRequest request = request_for(index_path_);
    request.max_text = kIndexText;
    request.deadline = deadline;
    if (!index_etag_.empty()) request.headers.push_back("If-None-Match: " + index_etag_);
    const TransferAnswer answer = requests().ask({request}).front();
    if (answer.status == 304 && !index_etag_.empty()) return {};
    if (answer.end != HttpEnd::kAnswered || answer.status != 200) {
        const Error error = error_of(answer, index_path_, "list folder");
        // The folder is not known to be gone.
        if (error.code != Errc::kNotFound) return error;
        return explain({Errc::kUnsupported, 0, "list folder"}, "%s: there is no index %s",
                       name().c_str(), printable(index_path_).c_str());
    }
    HttpIndex index(answer.text);
    // What a login page is, or a file that was cut off: never an empty folder.
    if (!index.has_files()) {
        const std::string first = index.left_out() == 0 ? "" : ": " + index.first_left_out();
        return explain({Errc::kCorrupt, 0, "list folder"},
                       "%s: the index %s has no line with bytes and path (it has %zu bytes)%s",
                       name().c_str(), printable(index_path_).c_str(), answer.text.size(),
                       first.c_str());
    }
    index_ = std::move(index);
    const bool can_be_sent = version_of_etag(answer.fields.etag).has_value();
    index_etag_ = can_be_sent ? answer.fields.etag : "";
    return {};
}

// The facts of those that are files, asked for together.
Result<void> HttpSilo::add_files(const std::string& folder, std::vector<IndexedName> names,
                                 SiloPage& page, TimePoint deadline) {
    const std::string prefix = folder.empty() ? "" : folder + "/";
    std::vector<TransferRequest> heads;
    for (const IndexedName& name : names) {
        if (name.is_folder) continue;
        heads.push_back(request_for(prefix + name.name));
        heads.back().is_head = true;
        heads.back().deadline = deadline;
    }
    const auto answers = requests().ask(heads);
    auto answer = answers.begin();
    for (IndexedName& name : names) {
        SiloEntry entry{std::move(name.name), name.is_folder, {}};
        const std::string path = prefix + entry.name;
        const auto leave_out = [&](const char* reason) {
            const std::string text = printable(path) + ": " + reason;
            if (page.left_out++ == 0) page.first_left_out = text;
            if (page.wrong++ == 0) page.first_wrong = text;
        };
        if (!entry.is_folder) {
            const TransferAnswer& head = *answer++;
            if (head.status == 404) {
                leave_out("in the index, but not there");
                continue;
            }
            if (head.end != HttpEnd::kAnswered || head.status != 200) {
                return error_of(head, path, "list folder");
            }
            FABRIC_TRY(entry.facts, facts_of(head, path));
            if (entry.facts.bytes != name.bytes) {
                leave_out("of another length than in the index");
                continue;
            }
        }
        page.entries.push_back(std::move(entry));
    }
    return {};
}

Result<SiloPage> HttpSilo::list(const std::string& folder, const std::string& after,
                                std::size_t most, TimePoint deadline) {
    if (!is_silo_path(folder)) return not_a_path(folder, "list folder");
    SiloPage page;
    const bool goes_on = !after.empty() && has_names_ && folder == listed_;
    if (!goes_on) {
        FABRIC_TRY_VOID(read_index(deadline));
        auto names = index_.names_in(folder);
        if (!names) {
            return explain({Errc::kNotFound, 0, "list folder"}, "%s: the index has nothing in %s",
                           name().c_str(), printable(folder).c_str());
        }
        names_ = std::move(*names);
        listed_ = folder;
        has_names_ = true;
        // Which folder a line without a path is of is not known.
        if (folder.empty()) page.left_out = index_.left_out();
        if (folder.empty()) page.first_left_out = index_.first_left_out();
        page.wrong = page.left_out;
        page.first_wrong = page.first_left_out;
    }
    auto next = std::upper_bound(
        names_.begin(), names_.end(), after,
        [](const std::string& path, const IndexedName& name) { return path < name.name; });
    if (after.empty()) next = names_.begin();
    // More than once where some were left out.
    while (next != names_.end() && page.entries.size() < most) {
        const auto left = static_cast<std::size_t>(names_.end() - next);
        const std::size_t count = std::min({left, most - page.entries.size(), kHeads});
        const auto end = next + static_cast<std::ptrdiff_t>(count);
        FABRIC_TRY_VOID(add_files(folder, {next, end}, page, deadline));
        next = end;
    }
    page.is_last = next == names_.end();
    if (page.is_last) {
        names_ = {};
        has_names_ = false;
    }
    return page;
}

}  // namespace fabricd
