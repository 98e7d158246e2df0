#include "fabricd/data/silo/web_requests.hpp"

#include <algorithm>
#include <charconv>
#include <span>
#include <thread>
#include <utility>

#include "libfabricshm/os/random.hpp"

namespace fabricd {

using fabricshm::Clock;
using fabricshm::Duration;

namespace {

// "3": seconds. Dates are not looked at.
Duration asked_pause(const TransferAnswer& answer) noexcept {
    unsigned seconds = 0;
    const std::string& text = answer.fields.retry_after;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (error != std::errc() || end != text.data() + text.size()) return Duration::zero();
    return std::chrono::seconds(std::min(seconds, 3600U));
}

}  // namespace

bool is_worth_retry(const TransferAnswer& answer) noexcept {
    if (answer.end == HttpEnd::kConnection || answer.end == HttpEnd::kStalled) return true;
    if (answer.end != HttpEnd::kAnswered) return false;
    switch (answer.status) {
        case 429:
        case 500:
        case 502:
        case 503:
        case 504:
            return true;
        default:
            return false;
    }
}

bool hides_passing_error(std::string_view text) noexcept {
    if (text.find("<Error") == text.npos) return false;
    constexpr std::string_view kCodes[] = {"<Code>InternalError<", "<Code>SlowDown<",
                                           "<Code>ServiceUnavailable<", "<Code>RequestTimeout<"};
    return std::any_of(std::begin(kCodes), std::end(kCodes),
                       [&](std::string_view code) { return text.find(code) != text.npos; });
}

WebRequests::WebRequests(std::unique_ptr<HttpTransfers> transfers, const RetryOptions& options)
    : transfers_(std::move(transfers)), options_(options) {
    std::uint32_t seed = 1;
    // Without it the pauses are those of other hosts.
    static_cast<void>(fabricshm::fill_random(std::as_writable_bytes(std::span(&seed, 1))).ok());
    random_.seed(seed);
}

std::uint64_t WebRequests::begin(const TransferRequest& request, bool is_asked) {
    const std::uint64_t tag = ++last_tag_;
    Attempt& attempt = attempts_[tag];
    attempt.request = request;
    attempt.request.tag = tag;
    attempt.tag = request.tag;
    attempt.is_asked = is_asked;
    attempt.made = 1;
    transfers_->start(attempt.request);
    return tag;
}

void WebRequests::start(const TransferRequest& request) {
    begin(request, false);
}

Duration WebRequests::pause_before(const Attempt& attempt) {
    Duration pause = options_.first_pause;
    for (unsigned i = 1; i < attempt.made && pause < options_.longest_pause; ++i) pause *= 2;
    pause = std::min<Duration>(pause, options_.longest_pause);
    const auto half = std::max<Duration::rep>(1, pause.count() / 2);
    pause = Duration(half + std::uniform_int_distribution<Duration::rep>(0, half)(random_));
    return std::max(pause, asked_pause(attempt.last));
}

// The last word, or another attempt for which there is time.
void WebRequests::take(TransferAnswer answer) {
    const auto found = attempts_.find(answer.tag);
    Attempt& attempt = found->second;
    attempt.last = std::move(answer);
    const bool hides_error = attempt.request.may_hide_error && attempt.last.status == 200 &&
                             hides_passing_error(attempt.last.text);
    if ((is_worth_retry(attempt.last) || hides_error) && attempt.made < options_.most) {
        attempt.next = Clock::now() + pause_before(attempt);
        if (attempt.next < attempt.request.deadline) {
            paused_.push_back(found->first);
            return;
        }
    }
    attempt.last.tag = attempt.tag;
    if (attempt.is_asked) {
        asked_[found->first] = std::move(attempt.last);
    } else {
        ended_.push_back(std::move(attempt.last));
    }
    attempts_.erase(found);
}

void WebRequests::start_due(TimePoint now) {
    std::erase_if(paused_, [&](std::uint64_t tag) {
        Attempt& attempt = attempts_.at(tag);
        if (now < attempt.next) return false;
        ++attempt.made;
        ++retries_;
        transfers_->start(attempt.request);
        return true;
    });
}

TimePoint WebRequests::next_due() const noexcept {
    TimePoint next = TimePoint::max();
    for (const std::uint64_t tag : paused_) next = std::min(next, attempts_.at(tag).next);
    return next;
}

// Until something ends, an attempt is due, or the deadline.
void WebRequests::turn(TimePoint deadline) {
    start_due(Clock::now());
    const TimePoint until = std::min(deadline, next_due());
    if (transfers_->under_way() == 0 && until > Clock::now()) std::this_thread::sleep_until(until);
    for (TransferAnswer& answer : transfers_->wait(until)) take(std::move(answer));
}

std::vector<TransferAnswer> WebRequests::wait(TimePoint deadline) {
    for (;;) {
        if (!ended_.empty() || attempts_.empty()) return std::exchange(ended_, {});
        turn(deadline);
        if (Clock::now() >= deadline) return std::exchange(ended_, {});
    }
}

std::vector<TransferAnswer> WebRequests::ask(const std::vector<TransferRequest>& requests) {
    std::vector<std::uint64_t> tags;
    tags.reserve(requests.size());
    for (const TransferRequest& request : requests) tags.push_back(begin(request, true));
    std::vector<TransferAnswer> answers;
    for (const std::uint64_t tag : tags) {
        // Each has its deadline, at which it ends.
        while (!asked_.contains(tag)) turn(TimePoint::max());
        answers.push_back(std::move(asked_.extract(tag).mapped()));
    }
    return answers;
}

}  // namespace fabricd
