#include "fabricd/data/silo/web_silo.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "fabricd/data/silo/web_version.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::explain;

namespace {

constexpr std::size_t kShownPath = 100;  // bytes

// Both ends of a long one: the words before it have to fit next to it.
std::string shown(const std::string& path) {
    std::string text = printable(path);
    if (text.size() <= kShownPath) return text;
    return text.substr(0, kShownPath / 2) + "..." + text.substr(text.size() - kShownPath / 2);
}

// Without what may be signed or secret in it.
std::string without_query(const std::string& url) {
    const std::size_t at = url.find("://");
    const std::size_t host = at == url.npos ? 0 : at + 3;
    const std::string path = url.substr(0, url.find_first_of("?#"));
    const std::size_t user = path.substr(0, path.find('/', host)).rfind('@');
    return printable(user == path.npos ? path : path.substr(0, host) + path.substr(user + 1));
}

Error code_for_status(int status, const char* step) {
    switch (status) {
        case 401:
        case 403:
            return {Errc::kDenied, 0, step};
        case 404:
        case 410:
            return {Errc::kNotFound, 0, step};
        case 429:
        case 503:
            return {Errc::kBusy, 0, step};
        case 412:
        case 416:
            return {Errc::kCorrupt, 0, step};
        default:
            break;
    }
    if (status >= 500) return {Errc::kSystem, EREMOTEIO, step};
    return {Errc::kUnsupported, 0, step};
}

Error code_for(const HttpAnswer& answer, const char* step) {
    switch (answer.end) {
        case HttpEnd::kAnswered:
            return code_for_status(answer.status, step);
        case HttpEnd::kDeadline:
        case HttpEnd::kStalled:
            return {Errc::kTimeout, 0, step};
        case HttpEnd::kConnection:
            return {Errc::kSystem, ECONNABORTED, step};
        case HttpEnd::kTrust:
            return {Errc::kDenied, 0, step};
        case HttpEnd::kBroken:
            break;
    }
    return {Errc::kCorrupt, 0, step};
}

}  // namespace

WebSilo::WebSilo(std::string name, const WebSiloOptions& options,
                 std::unique_ptr<HttpTransfers> transfers)
    : name_(std::move(name)),
      fetch_timeout_(options.fetch_timeout),
      requests_(std::move(transfers), options.retry) {}

std::string WebSilo::words_of(const HttpAnswer& answer) const {
    std::string words;
    const auto add = [&](const std::string& more) { words += (words.empty() ? "" : ", ") + more; };
    if (answer.status != 0) add("status " + std::to_string(answer.status));
    const std::string code = code_of(answer);
    if (!code.empty()) words += " " + code;
    if (answer.status >= 300 && answer.status < 400) {
        add("a redirect to " + without_query(answer.fields.location) + " is not followed");
        if (!answer.fields.region.empty()) add("region " + printable(answer.fields.region));
    }
    if (code == "RequestTimeTooSkewed") add("the clock of this host or of the server is wrong");
    if (!answer.problem.empty()) add(answer.problem);
    if (!answer.fields.request_id.empty()) {
        add("request " + printable(answer.fields.request_id).substr(0, 64));
    }
    return words;
}

Error WebSilo::error_of(const HttpAnswer& answer, const std::string& path, const char* step) const {
    return explain(code_for(answer, step), "%s: %s: %s", name_.c_str(), shown(path).c_str(),
                   words_of(answer).c_str());
}

Error WebSilo::not_a_path(const std::string& path, const char* step) const {
    return explain({Errc::kInvalid, 0, step}, "%s: %s is no path in a silo", name_.c_str(),
                   shown(path).c_str());
}

Result<FileFacts> WebSilo::facts_of(const HttpAnswer& answer, const std::string& path) const {
    const Error unusable{Errc::kUnsupported, 0, "look at file"};
    const auto version = version_of_fields(answer.fields.etag, answer.fields.last_modified);
    if (!version) {
        return explain(unusable, "%s: %s: neither a strong ETag nor Last-Modified", name_.c_str(),
                       shown(path).c_str());
    }
    if (!answer.length) {
        return explain(unusable, "%s: %s: no Content-Length", name_.c_str(), shown(path).c_str());
    }
    return FileFacts{*answer.length, *version};
}

Result<FileFacts> WebSilo::look(const std::string& path, TimePoint deadline) {
    if (path.empty() || !is_silo_path(path)) return not_a_path(path, "look at file");
    HttpRequest request = request_for(path);
    request.is_head = true;
    request.deadline = deadline;
    const HttpAnswer answer = requests_.ask({request}).front();
    if (answer.end != HttpEnd::kAnswered || answer.status != 200) {
        return error_of(answer, path, "look at file");
    }
    return facts_of(answer, path);
}

bool WebSilo::has_room() const noexcept {
    return fetches_.size() + ended_.size() < std::max(2U, requests_.connections()) - 1;
}

void WebSilo::start(const Fetch& fetch) {
    FABRIC_CHECK(fetch.bytes <= fetch.room && fetch.offset + fetch.bytes <= fetch.facts.bytes);
    if (fetch.path.empty() || !is_silo_path(fetch.path)) {
        const Error error = not_a_path(fetch.path, "fetch");
        ended_.push_back(
            {fetch.tag, FetchOutcome::kFailed, error, fabricshm::explanation_of(error)});
        return;
    }
    HttpRequest request = request_for(fetch.path);
    const std::string condition = condition_of(fetch.facts.version);
    if (!condition.empty()) request.headers.push_back(condition);
    // No range means no byte: whether the version is still there is all that can be asked.
    request.is_head = fetch.bytes == 0;
    if (fetch.bytes != 0) request.into = fetch.into;
    request.offset = fetch.offset;
    request.bytes = fetch.bytes;
    request.deadline = Clock::now() + fetch_timeout_;
    request.tag = ++last_tag_;
    fetches_[request.tag] = fetch;
    requests_.start(request);
}

// What the answer says of the version that was asked for, also where it is otherwise unusable.
std::optional<std::string> WebSilo::change_in(const Fetch& fetch, const HttpAnswer& answer) const {
    if (answer.status == 412) return "it is another version";
    // A silo that is gone is not a file that is gone.
    if (answer.status == 404 && code_of(answer) != "NoSuchBucket") return "it is gone";
    if (answer.status == 200 || answer.status == 206) {
        const auto& fields = answer.fields;
        const auto same = is_version(fetch.facts.version, fields.etag, fields.last_modified);
        if (same && !*same) return "it is another version";
    }
    const bool has_total = answer.status == 200 || answer.status == 206 || answer.status == 416;
    if (has_total && answer.total && *answer.total != fetch.facts.bytes) {
        return "it has " + std::to_string(*answer.total) + " bytes by now";
    }
    return std::nullopt;
}

Fetched WebSilo::verdict_on(const Fetch& fetch, const HttpAnswer& answer) const {
    if (const auto change = change_in(fetch, answer)) {
        return {fetch.tag, FetchOutcome::kChanged, {Errc::kOk, 0, ""}, *change};
    }
    const auto fail = [&](const HttpAnswer& why) {
        const Error error = error_of(why, fetch.path, "fetch");
        return Fetched{fetch.tag, FetchOutcome::kFailed, error,
                       name_ + ": " + printable(fetch.path) + ": " + words_of(why)};
    };
    const int expected = fetch.bytes == 0 ? 200 : 206;
    if (answer.end != HttpEnd::kAnswered || answer.status != expected) return fail(answer);
    const auto& fields = answer.fields;
    if (!is_version(fetch.facts.version, fields.etag, fields.last_modified)) {
        HttpAnswer broken = answer;
        broken.end = HttpEnd::kBroken;
        broken.problem = "an answer that does not say of which version it is";
        return fail(broken);
    }
    return {fetch.tag, FetchOutcome::kWhole, {Errc::kOk, 0, ""}, ""};
}

std::vector<Fetched> WebSilo::wait(TimePoint deadline) {
    const auto answers = requests_.wait(ended_.empty() ? deadline : fabricshm::kNoWait);
    auto ended = std::exchange(ended_, {});
    for (const HttpAnswer& answer : answers) {
        const auto fetch = fetches_.find(answer.tag);
        FABRIC_CHECK(fetch != fetches_.end());
        ended.push_back(verdict_on(fetch->second, answer));
        fetches_.erase(fetch);
    }
    return ended;
}

}  // namespace fabricd
