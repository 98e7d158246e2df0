// WebRequests: requests that are tried again where that can help.

#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "fabricd/data/silo/http_transfers.hpp"

namespace fabricd {

struct RetryOptions {
    unsigned most = 8;  // attempts, the first one too
    // Before the second attempt, doubled with each; half of it at random, so that many hosts do not
    // come back at once.
    std::chrono::milliseconds first_pause{100};
    std::chrono::milliseconds longest_pause{5000};
};

/// Whether another attempt may have another answer: 429, 500, 502, 503, 504, and connections that
/// broke or stalled. Never what the server has decided: 403, 404, 412, 416.
bool is_worth_retry(const TransferAnswer& answer) noexcept;

/// The same of the answer 200 to a request that may hide an error.
bool hides_passing_error(std::string_view text) noexcept;

/// One thread at a time. Tags are the caller's, also of several requests at a time.
class WebRequests {
  public:
    WebRequests(std::unique_ptr<HttpTransfers> transfers, const RetryOptions& options);

    unsigned connections() const noexcept { return transfers_->connections(); }
    std::size_t under_way() const noexcept { return attempts_.size(); }
    /// Attempts after the first, of all requests so far.
    std::uint64_t retries() const noexcept { return retries_; }

    void start(const TransferRequest& request);
    /// The last answer to each that has ended. Waits for the first while any is under way, until
    /// `deadline`.
    std::vector<TransferAnswer> wait(TimePoint deadline);
    /// Asks all of them, and waits for all; the answers in the order of the requests. Answers to
    /// others go to the next wait(). At the deadline of a request it has ended.
    std::vector<TransferAnswer> ask(const std::vector<TransferRequest>& requests);

  private:
    struct Attempt {
        TransferRequest request;
        std::uint64_t tag = 0;  // the caller's
        bool is_asked = false;
        unsigned made = 0;
        TimePoint next;  // of one that waits
        TransferAnswer last;
    };

    std::uint64_t begin(const TransferRequest& request, bool is_asked);
    void start_due(TimePoint now);
    TimePoint next_due() const noexcept;
    fabricshm::Duration pause_before(const Attempt& attempt);
    void take(TransferAnswer answer);
    void turn(TimePoint deadline);

    std::unique_ptr<HttpTransfers> transfers_;
    RetryOptions options_;
    std::minstd_rand random_;
    std::map<std::uint64_t, Attempt> attempts_;  // by the tag of the transfer
    std::vector<std::uint64_t> paused_;
    std::uint64_t last_tag_ = 0;
    std::uint64_t retries_ = 0;
    std::vector<TransferAnswer> ended_;
    std::map<std::uint64_t, TransferAnswer> asked_;  // by the tag of the transfer
};

}  // namespace fabricd
