#include "fabricd/data/silo/s3_writer.hpp"

#include <algorithm>
#include <utility>

#include "fabricd/data/silo/s3_listing.hpp"
#include "fabricd/data/silo/s3_upload.hpp"
#include "fabricd/data/silo/url_text.hpp"
#include "fabricd/data/silo/web_error.hpp"
#include "fabricd/data/silo/web_version.hpp"
#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::explain;

namespace {

constexpr Bytes kPartBytes = 8 * fabricshm::kMiB;
constexpr std::size_t kMaxParts = 10'000;  // S3's limit: files of up to 78 GiB
constexpr std::size_t kPartsInMemory = 8;
constexpr std::size_t kKnownFolders = 10'000;
constexpr Bytes kAnswerText = 8 * fabricshm::kMiB;
constexpr unsigned kMaxPages = 1000;
constexpr const char* kOnlyNew = "If-None-Match: *";

bool is_status(const TransferAnswer& answer, int status) {
    return answer.end == HttpEnd::kAnswered && answer.status == status;
}

// Whether the object may be there although the commit got this answer.
bool is_doubtful(const TransferAnswer& answer) {
    if (answer.end != HttpEnd::kAnswered) return true;
    const int status = answer.status;
    return status == 200 || status == 404 || status == 409 || status == 412 || status >= 500;
}

}  // namespace

S3Writer::S3Writer(const S3Options& options, S3Place place,
                   std::unique_ptr<HttpTransfers> transfers)
    : name_(printable(options.place)),
      timeout_(options.web.fetch_timeout),
      place_(std::move(place)),
      requests_(std::move(transfers), options.web.retry) {}

Result<std::unique_ptr<S3Writer>> S3Writer::open(const S3Options& options) {
    FABRIC_TRY(auto place, S3Place::of(options));
    FABRIC_TRY(auto transfers, HttpTransfers::make(options.web.transfers));
    return std::unique_ptr<S3Writer>(new S3Writer(options, std::move(place), std::move(transfers)));
}

bool S3Writer::has_room() const noexcept {
    return parts_ < kPartsInMemory;
}

Error S3Writer::error_of(const TransferAnswer& answer, const std::string& path,
                         const char* step) const {
    return web_error(name_, answer, s3_error_code(answer.text), path, step);
}

std::string S3Writer::shown(const std::string& path) const {
    return name_ + ": " + shown_path(path);
}

S3Writer::Upload& S3Writer::upload_of(std::uint64_t file) {
    const auto found = uploads_.find(file);
    FABRIC_CHECK(found != uploads_.end());
    return found->second;
}

void S3Writer::ask(std::uint64_t file, Kind kind, TransferRequest request, std::size_t part,
                   const std::string& path) {
    request.deadline = Clock::now() + timeout_;
    request.max_text = kAnswerText;
    request.tag = ++last_tag_;
    asked_[request.tag] = {file, kind, part, path};
    ++upload_of(file).asked;
    requests_.start(request);
}

void S3Writer::ask_head(std::uint64_t file, Kind kind, const std::string& path) {
    TransferRequest request = place_.request(place_.url_of(path));
    request.is_head = true;
    ask(file, kind, std::move(request), 0, path);
}

TransferRequest S3Writer::new_object(const char* method, const std::string& url,
                                     const Upload& upload, Body body) const {
    TransferRequest request = place_.request(method, url, std::move(body));
    request.headers.push_back("x-amz-meta-fabric-write: " + token_text(upload.name.token));
    return request;
}

std::string S3Writer::part_url(const Upload& upload, std::size_t part) const {
    const std::string number = part == 0 ? "" : "partNumber=" + std::to_string(part) + "&";
    return place_.url_of(upload.name.path) + "?" + number +
           "uploadId=" + url_encoded(upload.id, false);
}

void S3Writer::fail(Upload& upload, const Error& error) {
    if (!upload.failed.ok()) return;
    upload.failed = {0, error, fabricshm::explanation_of(error), {}};
    parts_ -= upload.waiting.size();
    upload.waiting.clear();
    upload.filling = {};
}

void S3Writer::begin(std::uint64_t file, const WriteName& name, std::uint64_t tag) {
    FABRIC_CHECK(!uploads_.contains(file));
    Upload& upload = uploads_[file];
    upload.name = name;
    upload.begins = true;
    upload.tag = tag;
    if (const auto checked = check_write_path(name.path, shown(name.path)); !checked.ok()) {
        fail(upload, checked.error());
        return go_on(file);
    }
    ask_head(file, Kind::kName, name.path);
    // A listing shows a folder in place of an object of the same name, either way.
    const std::string below = url_encoded(place_.prefix() + name.path + "/", false);
    ask(file, Kind::kBelow,
        place_.request(place_.base() + "?delimiter=%2F&encoding-type=url&list-type=2&max-keys=1" +
                       "&prefix=" + below),
        0, name.path);
    for (std::size_t at = name.path.find('/'); at != name.path.npos;
         at = name.path.find('/', at + 1)) {
        const std::string above = name.path.substr(0, at);
        if (!folders_.contains(above)) ask_head(file, Kind::kAbove, above);
    }
}

void S3Writer::take_begin(Upload& upload, const Request& request, const TransferAnswer& answer) {
    if (request.kind == Kind::kBelow) {
        if (!is_status(answer, 200))
            return fail(upload, error_of(answer, request.path, "begin file"));
        const auto page = parse_s3_listing(answer.text, place_.prefix() + request.path + "/");
        if (!page.ok()) return fail(upload, page.error());
        if (page->keys == 0) return;
        return fail(upload, explain({Errc::kExists, 0, "begin file"}, "%s is a folder",
                                    shown(request.path).c_str()));
    }
    if (is_status(answer, 200)) {
        const std::string file = shown(request.path);
        return fail(upload, request.kind == Kind::kName ? error_of_taken(file, "begin file")
                                                        : error_of_no_folder(file, "begin file"));
    }
    if (!is_status(answer, 404)) return fail(upload, error_of(answer, request.path, "begin file"));
    if (request.kind != Kind::kAbove) return;
    if (folders_.size() == kKnownFolders) folders_.clear();
    folders_.insert(request.path);
}

// A part of its own, or the first request of the upload.
void S3Writer::cut_part(std::uint64_t file, Upload& upload) {
    if (!upload.is_initiated) {
        upload.is_initiated = true;
        // In the order in which they are signed.
        ask(file, Kind::kInitiate,
            new_object("POST", place_.url_of(upload.name.path) + "?uploads=", upload, nullptr));
    }
    upload.waiting.push_back(std::make_shared<const std::string>(std::move(upload.filling)));
    upload.filling = {};
    ++parts_;
}

void S3Writer::append(std::uint64_t file, const std::byte* bytes, Bytes count, std::uint64_t tag) {
    FABRIC_CHECK(count <= kMaxAppend && has_room());
    Upload& upload = upload_of(file);
    FABRIC_CHECK(!upload.begins && !upload.commits && !upload.aborts);
    for (Bytes done = 0; done < count && upload.failed.ok();) {
        if (upload.filling.size() == kPartBytes) cut_part(file, upload);
        const Bytes more = std::min(count - done, kPartBytes - upload.filling.size());
        upload.filling.append(reinterpret_cast<const char*>(bytes) + done, more);
        done += more;
        upload.bytes += more;
        if (upload.bytes > kPartBytes * kMaxParts) {
            fail(upload, explain({Errc::kUnsupported, 0, "write file"},
                                 "%s: %s: above 78 GiB, 10,000 parts of 8 MiB", name_.c_str(),
                                 shown_path(upload.name.path).c_str()));
        }
    }
    Written written = upload.failed;
    written.tag = tag;
    ended_.push_back(std::move(written));
    go_on(file);
}

void S3Writer::commit(std::uint64_t file, std::uint64_t tag) {
    Upload& upload = upload_of(file);
    FABRIC_CHECK(!upload.begins && !upload.commits && !upload.aborts);
    upload.commits = true;
    upload.tag = tag;
    if (upload.is_initiated && upload.failed.ok()) cut_part(file, upload);
    go_on(file);
}

void S3Writer::abort(std::uint64_t file, std::uint64_t tag) {
    Upload& upload = upload_of(file);
    FABRIC_CHECK(!upload.commits && !upload.aborts);
    // A begin that nothing waits for any more has ended with its abort.
    if (upload.begins) {
        ended_.push_back({upload.tag, {Errc::kClosed, 0, "begin file"}, "it was given up", {}});
        upload.begins = false;
    }
    upload.aborts = true;
    upload.tag = tag;
    fail(upload, {Errc::kClosed, 0, "write file"});
    go_on(file);
}

void S3Writer::end(std::uint64_t file, Written written) {
    Upload& upload = upload_of(file);
    written.tag = upload.tag;
    const bool is_over = upload.aborts || (upload.commits && written.ok());
    upload.begins = upload.commits = false;
    upload.is_last_asked = false;
    ended_.push_back(std::move(written));
    if (is_over) uploads_.erase(file);
}

void S3Writer::ask_commit(std::uint64_t file, Upload& upload) {
    upload.is_last_asked = true;
    if (!upload.is_initiated) {
        auto body = std::make_shared<const std::string>(std::move(upload.filling));
        TransferRequest request =
            new_object("PUT", place_.url_of(upload.name.path), upload, std::move(body));
        request.headers.emplace_back(kOnlyNew);
        return ask(file, Kind::kPut, std::move(request));
    }
    FAULT_POINT("data.upload.completing");
    auto body = std::make_shared<const std::string>(upload_parts_text(upload.etags));
    TransferRequest request = place_.request("POST", part_url(upload, 0), std::move(body));
    request.headers.emplace_back(kOnlyNew);
    request.may_hide_error = true;
    ask(file, Kind::kComplete, std::move(request));
}

void S3Writer::go_on(std::uint64_t file) {
    Upload& upload = upload_of(file);
    while (!upload.id.empty() && !upload.waiting.empty()) {
        const Body body = std::move(upload.waiting.front());
        upload.waiting.pop_front();
        upload.etags.emplace_back();
        const std::size_t part = upload.etags.size();
        ask(file, Kind::kPart, place_.request("PUT", part_url(upload, part), body), part);
    }
    // A part that arrives behind the abort would stay there.
    if (upload.asked != 0) return;
    if (upload.begins) return end(file, upload.failed);
    if (upload.aborts) {
        if (upload.id.empty()) return end(file, {});
        upload.is_last_asked = true;
        return ask(file, Kind::kDelete, place_.request("DELETE", part_url(upload, 0), nullptr));
    }
    if (!upload.commits || upload.is_last_asked) return;
    if (!upload.failed.ok()) return end(file, upload.failed);
    ask_commit(file, upload);
}

void S3Writer::take_id(Upload& upload, const TransferAnswer& answer) {
    FAULT_POINT("data.upload.initiated");
    const auto id = is_status(answer, 200) ? parse_upload_id(answer.text) : std::nullopt;
    if (id) {
        upload.id = *id;
        return;
    }
    TransferAnswer broken = answer;
    if (is_status(answer, 200)) {
        broken.end = HttpEnd::kBroken;
        broken.problem = "an upload without an id";
    }
    fail(upload, error_of(broken, upload.name.path, "write file"));
}

void S3Writer::take_part(Upload& upload, std::size_t part, const TransferAnswer& answer) {
    FAULT_POINT("data.upload.part");
    --parts_;
    if (is_status(answer, 200) && !answer.fields.etag.empty()) {
        upload.etags[part - 1] = answer.fields.etag;
        return;
    }
    TransferAnswer broken = answer;
    if (is_status(answer, 200)) {
        broken.end = HttpEnd::kBroken;
        broken.problem = "a part without an ETag";
    }
    fail(upload, error_of(broken, upload.name.path, "write file"));
}

void S3Writer::take_commit(std::uint64_t file, Upload& upload, const TransferAnswer& answer,
                           bool in_parts) {
    FAULT_POINT("data.upload.completed");
    const bool is_done = is_status(answer, 200) && (!in_parts || is_upload_completed(answer.text));
    const auto version = version_of_etag(answer.fields.etag);
    if (is_done && !in_parts && version) {
        Written written;
        written.facts = {upload.bytes, *version};
        return end(file, std::move(written));
    }
    if (!is_doubtful(answer)) {
        fail(upload, error_of(answer, upload.name.path, "commit file"));
        return end(file, upload.failed);
    }
    upload.doubt = answer;
    if (is_status(answer, 200) && !is_done) {
        upload.doubt.end = HttpEnd::kBroken;
        upload.doubt.problem = "an answer that does not say that there is an object now";
    }
    ask_head(file, Kind::kLook, upload.name.path);
}

// What is there after a commit says whether it was this one.
void S3Writer::take_look(std::uint64_t file, Upload& upload, const TransferAnswer& answer) {
    const std::string& path = upload.name.path;
    if (is_status(answer, 200) && answer.fields.write == token_text(upload.name.token)) {
        const auto version = version_of_fields(answer.fields.etag, answer.fields.last_modified);
        if (version && answer.length == upload.bytes) {
            Written written;
            written.facts = {upload.bytes, *version};
            return end(file, std::move(written));
        }
        fail(upload, explain({Errc::kCorrupt, 0, "commit file"},
                             "%s: %s: the object has another length than what was written",
                             name_.c_str(), shown_path(path).c_str()));
    } else if (is_status(answer, 200)) {
        fail(upload, explain({Errc::kExists, 0, "commit file"},
                             "%s: %s: another writer has taken the name meanwhile", name_.c_str(),
                             shown_path(path).c_str()));
    } else {
        fail(upload, error_of(upload.doubt, path, "commit file"));
    }
    end(file, upload.failed);
}

void S3Writer::take(const TransferAnswer& answer) {
    const auto found = asked_.find(answer.tag);
    FABRIC_CHECK(found != asked_.end());
    const Request request = std::move(found->second);
    asked_.erase(found);
    Upload& upload = upload_of(request.file);
    --upload.asked;
    switch (request.kind) {
        case Kind::kName:
        case Kind::kBelow:
        case Kind::kAbove:
            take_begin(upload, request, answer);
            break;
        case Kind::kInitiate:
            take_id(upload, answer);
            break;
        case Kind::kPart:
            take_part(upload, request.part, answer);
            break;
        case Kind::kPut:
        case Kind::kComplete:
            return take_commit(request.file, upload, answer, request.kind == Kind::kComplete);
        case Kind::kLook:
            return take_look(request.file, upload, answer);
        case Kind::kDelete: {
            Written written;
            if (!is_status(answer, 204) && !is_status(answer, 200) && !is_status(answer, 404)) {
                written.error = error_of(answer, upload.name.path, "remove upload");
                written.reason = fabricshm::explanation_of(written.error);
            }
            return end(request.file, std::move(written));
        }
    }
    go_on(request.file);
}

std::vector<Written> S3Writer::wait(TimePoint deadline) {
    for (;;) {
        const TimePoint until = ended_.empty() ? deadline : fabricshm::kNoWait;
        for (const TransferAnswer& answer : requests_.wait(until)) take(answer);
        if (!ended_.empty() || asked_.empty() || Clock::now() >= deadline) {
            return std::exchange(ended_, {});
        }
    }
}

Result<void> S3Writer::clear(const WriteName& name, TimePoint deadline) {
    if (name.path.empty() || !is_silo_path(name.path)) return {};  // it was never begun
    const std::string key = place_.prefix() + name.path;
    S3Uploads page;
    for (unsigned pages = 0; pages < kMaxPages; ++pages) {
        std::string query = "encoding-type=url";
        if (!page.next_key.empty()) query += "&key-marker=" + url_encoded(page.next_key, false);
        query += "&prefix=" + url_encoded(key, false);
        if (!page.next_id.empty()) query += "&upload-id-marker=" + url_encoded(page.next_id, false);
        TransferRequest request = place_.request(place_.base() + "?" + query + "&uploads=");
        request.deadline = deadline;
        request.max_text = kAnswerText;
        const TransferAnswer answer = requests_.ask({request}).front();
        if (!is_status(answer, 200)) return error_of(answer, name.path, "list uploads");
        FABRIC_TRY(page, parse_s3_uploads(answer.text));
        for (const auto& found : page.uploads) {
            if (found.key != key) continue;
            Upload upload;
            upload.name = name;
            upload.id = found.id;
            TransferRequest removal = place_.request("DELETE", part_url(upload, 0), nullptr);
            removal.deadline = deadline;
            const TransferAnswer removed = requests_.ask({removal}).front();
            if (!is_status(removed, 204) && !is_status(removed, 404)) {
                return error_of(removed, name.path, "remove upload");
            }
        }
        if (page.next_key.empty()) break;
    }
    return {};
}

}  // namespace fabricd
