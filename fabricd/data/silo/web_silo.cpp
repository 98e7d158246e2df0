#include "fabricd/data/silo/web_silo.hpp"

#include <algorithm>
#include <utility>

#include "fabricd/data/silo/web_error.hpp"
#include "fabricd/data/silo/web_version.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::explain;

WebSilo::WebSilo(std::string name, const WebSiloOptions& options,
                 std::unique_ptr<HttpTransfers> transfers)
    : name_(std::move(name)),
      fetch_timeout_(options.fetch_timeout),
      requests_(std::move(transfers), options.retry) {}

Error WebSilo::error_of(const HttpAnswer& answer, const std::string& path, const char* step) const {
    return web_error(name_, answer, code_of(answer), path, step);
}

Error WebSilo::not_a_path(const std::string& path, const char* step) const {
    return explain({Errc::kInvalid, 0, step}, "%s: %s is no path in a silo", name_.c_str(),
                   shown_path(path).c_str());
}

Result<FileFacts> WebSilo::facts_of(const HttpAnswer& answer, const std::string& path) const {
    const Error unusable{Errc::kUnsupported, 0, "look at file"};
    const auto version = version_of_fields(answer.fields.etag, answer.fields.last_modified);
    if (!version) {
        return explain(unusable, "%s: %s: neither a strong ETag nor Last-Modified", name_.c_str(),
                       shown_path(path).c_str());
    }
    if (!answer.length) {
        return explain(unusable, "%s: %s: no Content-Length", name_.c_str(),
                       shown_path(path).c_str());
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
                       name_ + ": " + printable(fetch.path) + ": " + web_words(why, code_of(why))};
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
