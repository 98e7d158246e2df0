#include "fabricd/data/silo/web_silo.hpp"

#include <algorithm>
#include <ctime>
#include <thread>
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

Error WebSilo::error_of(const TransferAnswer& answer, const std::string& path,
                        const char* step) const {
    return web_error(name_, answer, code_of(answer), path, step);
}

Error WebSilo::not_a_path(const std::string& path, const char* step) const {
    return explain({Errc::kInvalid, 0, step}, "%s: %s is no path in a silo", name_.c_str(),
                   shown_path(path).c_str());
}

Result<FileFacts> WebSilo::facts_of(const TransferAnswer& answer, const std::string& path) const {
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
    TransferRequest request = request_for(path);
    request.is_head = true;
    request.deadline = deadline;
    const TransferAnswer answer = requests_.ask({request}).front();
    if (answer.end != HttpEnd::kAnswered || answer.status != 200) {
        return error_of(answer, path, "look at file");
    }
    return facts_of(answer, path);
}

bool WebSilo::has_room() const noexcept {
    return fetches_.size() + later_.size() + ended_.size() <
           std::max(2U, requests_.connections()) - 1;
}

void WebSilo::start(const Fetch& fetch) {
    FABRIC_CHECK(fetch.bytes <= fetch.room && fetch.offset + fetch.bytes <= fetch.facts.bytes);
    if (fetch.path.empty() || !is_silo_path(fetch.path)) {
        const Error error = not_a_path(fetch.path, "fetch");
        ended_.push_back(
            {fetch.tag, FetchOutcome::kFailed, error, fabricshm::explanation_of(error)});
        return;
    }
    TransferRequest request = request_for(fetch.path);
    const std::string condition = condition_of(fetch.facts.version);
    if (!condition.empty()) request.headers.push_back(condition);
    // No range means no byte: whether the version is still there is all that can be asked.
    request.is_head = fetch.bytes == 0;
    if (fetch.bytes != 0) request.into = fetch.into;
    request.offset = fetch.offset;
    request.bytes = fetch.bytes;
    request.deadline = Clock::now() + fetch_timeout_;
    ask({fetch, std::move(request)});
}

// What the answer says of the version that was asked for, also where it is otherwise unusable.
std::optional<std::string> WebSilo::change_in(const Fetch& fetch,
                                              const TransferAnswer& answer) const {
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

Fetched WebSilo::verdict_on(const Fetch& fetch, const TransferAnswer& answer) const {
    if (const auto change = change_in(fetch, answer)) {
        return {fetch.tag, FetchOutcome::kChanged, {Errc::kOk, 0, ""}, *change};
    }
    const auto fail = [&](const TransferAnswer& why) {
        const Error error = error_of(why, fetch.path, "fetch");
        return Fetched{fetch.tag, FetchOutcome::kFailed, error,
                       name_ + ": " + printable(fetch.path) + ": " + web_words(why, code_of(why))};
    };
    const int expected = fetch.bytes == 0 ? 200 : 206;
    if (answer.end != HttpEnd::kAnswered || answer.status != expected) return fail(answer);
    const auto& fields = answer.fields;
    if (!is_version(fetch.facts.version, fields.etag, fields.last_modified)) {
        TransferAnswer broken = answer;
        broken.end = HttpEnd::kBroken;
        broken.problem = "an answer that does not say of which version it is";
        return fail(broken);
    }
    return {fetch.tag, FetchOutcome::kWhole, {Errc::kOk, 0, ""}, ""};
}

// Of a version whose time the next one may have, too; false: not before the deadline.
bool WebSilo::ask_later(Asked asked, const TransferAnswer& answer) {
    const auto seconds =
        settles_in(asked.fetch.facts.version, answer.fields.date, std::time(nullptr));
    const TimePoint at = Clock::now() + std::chrono::seconds(seconds);
    if (at >= asked.request.deadline) return false;
    later_.push_back({std::move(asked), at});
    return true;
}

void WebSilo::ask(Asked asked) {
    asked.request.tag = ++last_tag_;
    requests_.start(asked.request);
    fetches_[asked.request.tag] = std::move(asked);
}

void WebSilo::ask_due() {
    const TimePoint now = Clock::now();
    for (Later& one : std::exchange(later_, {})) {
        if (one.at > now) {
            later_.push_back(std::move(one));
        } else {
            ask(std::move(one.asked));
        }
    }
}

TimePoint WebSilo::next_due() const noexcept {
    TimePoint next = TimePoint::max();
    for (const Later& one : later_) next = std::min(next, one.at);
    return next;
}

std::vector<Fetched> WebSilo::wait(TimePoint deadline) {
    for (;;) {
        ask_due();
        const TimePoint until =
            std::min(ended_.empty() ? deadline : fabricshm::kNoWait, next_due());
        // Nothing that the requests could wait for.
        if (fetches_.empty() && !later_.empty()) std::this_thread::sleep_until(until);
        for (const TransferAnswer& answer : requests_.wait(until)) take(answer);
        const bool has_more = !fetches_.empty() || !later_.empty();
        if (!ended_.empty() || !has_more || Clock::now() >= deadline) break;
    }
    return std::exchange(ended_, {});
}

void WebSilo::take(const TransferAnswer& answer) {
    const auto found = fetches_.find(answer.tag);
    FABRIC_CHECK(found != fetches_.end());
    Asked asked = std::move(found->second);
    fetches_.erase(found);
    const Fetch fetch = asked.fetch;
    Fetched ended = verdict_on(fetch, answer);
    const bool is_young =
        ended.outcome == FetchOutcome::kWhole &&
        settles_in(fetch.facts.version, answer.fields.date, std::time(nullptr)) > 0;
    if (is_young && ask_later(std::move(asked), answer)) return;
    if (is_young) ended = too_young(fetch);
    ended_.push_back(std::move(ended));
}

Fetched WebSilo::too_young(const Fetch& fetch) const {
    const Error error = explain(
        {Errc::kTimeout, 0, "fetch"},
        "%s: %s: changed just now, or later than the server's Date, and it has no strong ETag",
        name_.c_str(), shown_path(fetch.path).c_str());
    Fetched ended{fetch.tag, FetchOutcome::kFailed, error, fabricshm::explanation_of(error)};
    ended.is_of_file = true;
    return ended;
}

}  // namespace fabricd
