#include "fabricd/data/silo/http_transfers.hpp"

#include <curl/curl.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <utility>

#include "fabricd/data/silo/silo.hpp"
#include "libfabricshm/base/check.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::Fd;

namespace {

constexpr Bytes kErrorText = 64 * fabricshm::kKiB;
constexpr std::size_t kFieldBytes = 1024;
constexpr std::string_view kRangeUnit = "bytes ";
constexpr long kBufferBytes = 256 * 1024;

bool same_word(std::string_view a, std::string_view b) noexcept {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
        const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; };
        return lower(x) == lower(y);
    });
}

std::string_view trimmed(std::string_view text) noexcept {
    const auto is_blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
    while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
    return text;
}

// Digits alone, to the end.
std::optional<Bytes> parse_count(std::string_view text) noexcept {
    Bytes count = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return count;
}

bool is_connection_error(CURLcode code) noexcept {
    switch (code) {
        case CURLE_COULDNT_RESOLVE_HOST:
        case CURLE_COULDNT_CONNECT:
        case CURLE_SEND_ERROR:
        case CURLE_RECV_ERROR:
        case CURLE_GOT_NOTHING:
        case CURLE_PARTIAL_FILE:
            return true;
        default:
            return false;
    }
}

bool is_trust_error(CURLcode code) noexcept {
    switch (code) {
        case CURLE_PEER_FAILED_VERIFICATION:
        case CURLE_SSL_CACERT_BADFILE:
        case CURLE_SSL_CONNECT_ERROR:
        case CURLE_SSL_ISSUER_ERROR:
            return true;
        default:
            return false;
    }
}

// Up to a day.
long milliseconds_until(TimePoint deadline) noexcept {
    const auto now = Clock::now();
    if (deadline <= now) return 0;
    const auto left = std::min<Clock::duration>(deadline - now, std::chrono::hours(24));
    return static_cast<long>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
}

}  // namespace

std::optional<ContentRange> parse_content_range(std::string_view text) noexcept {
    if (!text.starts_with(kRangeUnit)) return std::nullopt;
    text.remove_prefix(kRangeUnit.size());
    const std::size_t slash = text.find('/');
    if (slash == text.npos) return std::nullopt;
    const std::string_view where = text.substr(0, slash);
    const std::string_view total = text.substr(slash + 1);
    ContentRange range;
    if (total != "*" && !(range.total = parse_count(total))) return std::nullopt;
    // "*": of no part, in the answer 416.
    if (where == "*") return range.total ? std::optional(range) : std::nullopt;
    const std::size_t dash = where.find('-');
    if (dash == where.npos) return std::nullopt;
    const auto first = parse_count(where.substr(0, dash));
    const auto last = parse_count(where.substr(dash + 1));
    if (!first || !last || *last < *first || (range.total && *range.total <= *last)) {
        return std::nullopt;
    }
    range.first = *first;
    range.last = *last;
    return range;
}

struct HttpTransfers::Transfer {
    TransferRequest request;
    TransferAnswer answer;
    CURL* easy = nullptr;
    curl_slist* headers = nullptr;
    Bytes received = 0;
    std::string content_range;
    char error_text[CURL_ERROR_SIZE] = "";

    ~Transfer() { curl_slist_free_all(headers); }

    // False ends the transfer.
    bool breaks(std::string problem) {
        answer.problem = std::move(problem);
        return false;
    }

    void keep_field(std::string_view name, std::string_view value) {
        if (value.size() > kFieldBytes) return;
        HttpFields& fields = answer.fields;
        const struct {
            std::string_view name;
            std::string& place;
        } known[] = {{"etag", fields.etag},
                     {"last-modified", fields.last_modified},
                     {"date", fields.date},
                     {"location", fields.location},
                     {"x-amz-request-id", fields.request_id},
                     {"x-amz-bucket-region", fields.region},
                     {"x-amz-meta-fabric-write", fields.write},
                     {"x-fabric-crc32c", fields.checksum},
                     {"retry-after", fields.retry_after}};
        for (const auto& field : known) {
            if (same_word(name, field.name)) field.place = value;
        }
        if (same_word(name, "content-length")) answer.length = parse_count(value);
        if (same_word(name, "content-range")) content_range = value;
    }

    // Each answer begins with its status: also one that only announces another.
    void begin_answer(std::string_view line) {
        const std::uint64_t tag = answer.tag;
        answer = {};
        answer.tag = tag;
        content_range.clear();
        const std::size_t space = line.find(' ');
        if (space == line.npos) return;
        answer.status = static_cast<int>(parse_count(line.substr(space + 1, 3)).value_or(0));
    }

    bool end_header() {
        if (answer.status < 200) return true;
        const auto range = parse_content_range(content_range);
        if (range) answer.total = range->total;
        if (answer.status == 200) answer.total = answer.length;
        if (request.into == nullptr || request.is_head) return true;
        if (answer.status == 200) return breaks("the whole file (200) for a part of it (206)");
        if (answer.status != 206) return true;
        if (!range) return breaks("a part (206) without a Content-Range that says which");
        if (range->first != request.offset || range->last - range->first + 1 != request.bytes) {
            return breaks("another part: bytes " + std::to_string(range->first) + " to " +
                          std::to_string(range->last) + " for " + std::to_string(request.offset) +
                          " to " + std::to_string(request.offset + request.bytes - 1));
        }
        if (answer.length && *answer.length != request.bytes) {
            return breaks("a body of " + std::to_string(*answer.length) + " bytes for a part of " +
                          std::to_string(request.bytes));
        }
        return true;
    }

    bool take_header(std::string_view line) {
        if (line.starts_with("HTTP/")) begin_answer(line);
        if (trimmed(line).empty()) return end_header();
        const std::size_t colon = line.find(':');
        if (colon != line.npos) keep_field(line.substr(0, colon), trimmed(line.substr(colon + 1)));
        return true;
    }

    bool take_body(std::string_view bytes) {
        if (answer.status != 200 && answer.status != 206) {
            answer.text +=
                bytes.substr(0, kErrorText - std::min<Bytes>(kErrorText, answer.text.size()));
            return true;
        }
        if (request.into == nullptr) {
            if (answer.text.size() + bytes.size() > request.max_text) {
                return breaks("more than " + std::to_string(request.max_text) + " bytes");
            }
            answer.text += bytes;
            return true;
        }
        if (bytes.size() > request.bytes - received) {
            return breaks("more than the " + std::to_string(request.bytes) +
                          " bytes that were asked for");
        }
        std::memcpy(request.into + received, bytes.data(), bytes.size());
        received += bytes.size();
        return true;
    }

    bool has_error_status() const noexcept { return answer.status >= 300; }

    HttpEnd end_with(CURLcode code) {
        // The status counts, however its text ended.
        if (has_error_status()) return HttpEnd::kAnswered;
        if (!answer.problem.empty()) return HttpEnd::kBroken;
        if (code == CURLE_OK && answer.status == 206 && !request.is_head &&
            received < request.bytes) {
            code = CURLE_PARTIAL_FILE;
        }
        if (code == CURLE_OK) return HttpEnd::kAnswered;
        if (code == CURLE_PARTIAL_FILE && request.into != nullptr) {
            breaks("the connection ended after " + std::to_string(received) + " of " +
                   std::to_string(request.bytes) + " bytes");
            return HttpEnd::kConnection;
        }
        if (code == CURLE_OPERATION_TIMEDOUT) return end_in_time();
        breaks(printable(error_text[0] != '\0' ? error_text : curl_easy_strerror(code)));
        if (is_connection_error(code)) return HttpEnd::kConnection;
        return is_trust_error(code) ? HttpEnd::kTrust : HttpEnd::kBroken;
    }

    HttpEnd end_in_time() {
        curl_off_t connected = 0;
        curl_easy_getinfo(easy, CURLINFO_PRETRANSFER_TIME_T, &connected);
        const std::string after = " after " + std::to_string(received) + " bytes";
        if (Clock::now() >= request.deadline) {
            breaks(connected == 0 ? "no connection before the deadline"
                                  : "no end before the deadline," + after);
            return HttpEnd::kDeadline;
        }
        breaks(connected == 0 ? "no connection" : "it stalled" + after);
        return connected == 0 ? HttpEnd::kConnection : HttpEnd::kStalled;
    }
};

struct HttpTransfers::Callbacks {
    static std::size_t header(char* bytes, std::size_t size, std::size_t count, void* own) {
        auto& transfer = *static_cast<Transfer*>(own);
        return transfer.take_header({bytes, size * count}) ? size * count : 0;
    }

    static std::size_t body(char* bytes, std::size_t size, std::size_t count, void* own) {
        auto& transfer = *static_cast<Transfer*>(own);
        return transfer.take_body({bytes, size * count}) ? size * count : 0;
    }

    static int socket(CURL*, curl_socket_t fd, int what, void* own, void*) {
        const auto& self = *static_cast<HttpTransfers*>(own);
        if (what == CURL_POLL_REMOVE) {
            // Closed already, perhaps.
            static_cast<void>(::epoll_ctl(self.epoll_.get(), EPOLL_CTL_DEL, fd, nullptr));
            return 0;
        }
        epoll_event event{};
        event.data.fd = fd;
        if ((what & CURL_POLL_IN) != 0) event.events |= EPOLLIN;
        if ((what & CURL_POLL_OUT) != 0) event.events |= EPOLLOUT;
        if (::epoll_ctl(self.epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0) return 0;
        return ::epoll_ctl(self.epoll_.get(), EPOLL_CTL_ADD, fd, &event);
    }

    static int timer(CURLM*, long milliseconds, void* own) {
        const auto& self = *static_cast<HttpTransfers*>(own);
        itimerspec when{};
        if (milliseconds >= 0) {
            when.it_value.tv_sec = milliseconds / 1000;
            when.it_value.tv_nsec = milliseconds % 1000 * 1'000'000;
            if (milliseconds == 0) when.it_value.tv_nsec = 1;  // 0 would stop the timer
        }
        return ::timerfd_settime(self.timer_.get(), 0, &when, nullptr);
    }
};

HttpTransfers::HttpTransfers(HttpTransfersOptions options) : options_(std::move(options)) {}

Result<std::unique_ptr<HttpTransfers>> HttpTransfers::make(const HttpTransfersOptions& options) {
    static const CURLcode begun = curl_global_init(CURL_GLOBAL_DEFAULT);
    if (begun != CURLE_OK || options.connections == 0) {
        return Error{Errc::kInvalid, 0, "start HTTP"};
    }
    std::unique_ptr<HttpTransfers> transfers(new HttpTransfers(options));
    FABRIC_TRY_VOID(transfers->open());
    return transfers;
}

Result<void> HttpTransfers::open() {
    epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
    timer_ = Fd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (!epoll_ || !timer_) return Error{Errc::kSystem, errno, "start HTTP"};
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = timer_.get();
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, timer_.get(), &event) != 0) {
        return Error{Errc::kSystem, errno, "start HTTP"};
    }
    multi_ = curl_multi_init();
    if (multi_ == nullptr) return Error{Errc::kSystem, ENOMEM, "start HTTP"};
    const long most = static_cast<long>(options_.connections);
    curl_multi_setopt(multi_, CURLMOPT_MAX_TOTAL_CONNECTIONS, most);
    curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, most);
    curl_multi_setopt(multi_, CURLMOPT_SOCKETFUNCTION, &Callbacks::socket);
    curl_multi_setopt(multi_, CURLMOPT_SOCKETDATA, this);
    curl_multi_setopt(multi_, CURLMOPT_TIMERFUNCTION, &Callbacks::timer);
    curl_multi_setopt(multi_, CURLMOPT_TIMERDATA, this);
    return {};
}

HttpTransfers::~HttpTransfers() {
    for (const auto& [tag, transfer] : under_way_) drop(*transfer);
    for (void* const easy : idle_) curl_easy_cleanup(easy);
    if (multi_ != nullptr) curl_multi_cleanup(multi_);
}

void HttpTransfers::set_options(Transfer& transfer) {
    const TransferRequest& request = transfer.request;
    CURL* const easy = transfer.easy;
    const auto set = [&](CURLoption option, auto value) {
        FABRIC_CHECK(curl_easy_setopt(easy, option, value) == CURLE_OK);
    };
    set(CURLOPT_URL, request.url.c_str());
    set(CURLOPT_PATH_AS_IS, 1L);
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    set(CURLOPT_PROXY, "");
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_FOLLOWLOCATION, 0L);
    set(CURLOPT_SSL_VERIFYPEER, 1L);
    set(CURLOPT_SSL_VERIFYHOST, 2L);
    set(CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
    if (!options_.ca_file.empty()) set(CURLOPT_CAINFO, options_.ca_file.c_str());
    if (!options_.certificate_file.empty()) {
        set(CURLOPT_SSLCERT, options_.certificate_file.c_str());
        set(CURLOPT_SSLKEY, options_.key_file.c_str());
    }
    set(CURLOPT_BUFFERSIZE, kBufferBytes);
    // 0 would be no limit.
    set(CURLOPT_TIMEOUT_MS, std::max(1L, milliseconds_until(request.deadline)));
    set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options_.connect_timeout.count()));
    set(CURLOPT_LOW_SPEED_LIMIT, static_cast<long>(options_.stalled_rate));
    set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(options_.stalled_seconds));
    set(CURLOPT_ERRORBUFFER, transfer.error_text);
    set(CURLOPT_PRIVATE, &transfer);
    set(CURLOPT_HEADERFUNCTION, &Callbacks::header);
    set(CURLOPT_HEADERDATA, &transfer);
    set(CURLOPT_WRITEFUNCTION, &Callbacks::body);
    set(CURLOPT_WRITEDATA, &transfer);
    if (request.is_head) set(CURLOPT_NOBODY, 1L);
    if (!request.method.empty()) {
        // In one piece and not by a callback, so that libcurl can sign it. It is the body of a POST
        // for libcurl, whatever the method is called.
        static const std::string kNone;
        const std::string& body = request.body != nullptr ? *request.body : kNone;
        set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
        set(CURLOPT_POSTFIELDS, body.data());
        set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
    }
    if (!request.is_head && request.into != nullptr) {
        const std::string range = std::to_string(request.offset) + "-" +
                                  std::to_string(request.offset + request.bytes - 1);
        set(CURLOPT_RANGE, range.c_str());
    }
    for (const std::string& header : request.headers) {
        transfer.headers = curl_slist_append(transfer.headers, header.c_str());
    }
    if (transfer.headers != nullptr) set(CURLOPT_HTTPHEADER, transfer.headers);
    if (request.signing == nullptr) return;
    set(CURLOPT_AWS_SIGV4, request.signing->scope.c_str());
    set(CURLOPT_USERNAME, request.signing->user.c_str());
    set(CURLOPT_PASSWORD, request.signing->secret.c_str());
}

void HttpTransfers::start(const TransferRequest& request) {
    FABRIC_CHECK(!under_way_.contains(request.tag));
    FABRIC_CHECK(request.is_head || (request.into == nullptr) == (request.bytes == 0));
    auto transfer = std::make_unique<Transfer>();
    transfer->request = request;
    transfer->answer.tag = request.tag;
    if (idle_.empty()) idle_.push_back(curl_easy_init());
    FABRIC_CHECK(idle_.back() != nullptr);
    transfer->easy = idle_.back();
    idle_.pop_back();
    set_options(*transfer);
    FABRIC_CHECK(curl_multi_add_handle(multi_, transfer->easy) == CURLM_OK);
    under_way_[request.tag] = std::move(transfer);
    // On its way before the caller waits.
    act(timer_.get(), EPOLLIN);
    take_ended();
    // What has ended by now makes no socket readable. libcurl sets its timer again when it is asked
    // too early.
    if (!ended_.empty()) Callbacks::timer(nullptr, 0, this);
}

void HttpTransfers::drop(Transfer& transfer) {
    curl_multi_remove_handle(multi_, transfer.easy);
    curl_easy_reset(transfer.easy);
    idle_.push_back(transfer.easy);
}

void HttpTransfers::cancel(std::uint64_t tag) {
    std::erase_if(ended_, [&](const TransferAnswer& answer) { return answer.tag == tag; });
    const auto transfer = under_way_.find(tag);
    if (transfer == under_way_.end()) return;
    drop(*transfer->second);
    under_way_.erase(transfer);
}

void HttpTransfers::act(int fd, unsigned events) {
    int running = 0;
    if (fd == timer_.get()) {
        std::uint64_t times = 0;
        static_cast<void>(!::read(fd, &times, sizeof times));
        curl_multi_socket_action(multi_, CURL_SOCKET_TIMEOUT, 0, &running);
        return;
    }
    int mask = 0;
    if ((events & EPOLLIN) != 0) mask |= CURL_CSELECT_IN;
    if ((events & EPOLLOUT) != 0) mask |= CURL_CSELECT_OUT;
    if ((events & (EPOLLERR | EPOLLHUP)) != 0) mask |= CURL_CSELECT_ERR;
    curl_multi_socket_action(multi_, fd, mask, &running);
}

void HttpTransfers::take_ended() {
    int left = 0;
    while (const CURLMsg* const message = curl_multi_info_read(multi_, &left)) {
        if (message->msg != CURLMSG_DONE) continue;
        const CURLcode code = message->data.result;
        Transfer* transfer = nullptr;
        curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
        transfer->answer.end = transfer->end_with(code);
        drop(*transfer);
        ended_.push_back(std::move(transfer->answer));
        under_way_.erase(transfer->request.tag);
    }
}

std::vector<TransferAnswer> HttpTransfers::wait(TimePoint deadline) {
    for (bool is_late = false;;) {
        take_ended();
        if (is_late || !ended_.empty() || under_way_.empty()) return std::exchange(ended_, {});
        epoll_event events[32];
        const int count =
            ::epoll_wait(epoll_.get(), events, 32, static_cast<int>(milliseconds_until(deadline)));
        FABRIC_CHECK(count >= 0 || errno == EINTR);
        for (int i = 0; i < count; ++i) act(events[i].data.fd, events[i].events);
        is_late = Clock::now() >= deadline;
    }
}

}  // namespace fabricd
