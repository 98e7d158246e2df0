// WebSilo: what silos that are asked by HTTP have in common: facts by HEAD, parts by GET with the
// version as a condition, errors in words.

#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabricd/data/silo/silo.hpp"
#include "fabricd/data/silo/web_requests.hpp"

namespace fabricd {

struct WebSiloOptions {
    HttpTransfersOptions transfers;
    RetryOptions retry;
    // Of one fetch, with all its attempts.
    std::chrono::milliseconds fetch_timeout{30'000};
};

/// A version is a strong ETag, else time of change (and length). Bytes of one that is a time alone
/// count when the server's Date is two seconds later, and are asked for again until then: what was
/// changed twice in a second is never a mixture. Errors name silo, path, status and
/// the server's id of the request; never a secret.
class WebSilo : public Silo {
  public:
    Result<FileFacts> look(const std::string& path, TimePoint deadline) override;
    /// One connection stays free for listings.
    bool has_room() const noexcept override;
    void start(const Fetch& fetch) override;
    std::vector<Fetched> wait(TimePoint deadline) override;

    const std::string& name() const noexcept { return name_; }
    /// Attempts after the first.
    std::uint64_t retries() const noexcept { return requests_.retries(); }

  protected:
    WebSilo(std::string name, const WebSiloOptions& options,
            std::unique_ptr<HttpTransfers> transfers);

    /// A GET of a file below the root.
    virtual TransferRequest request_for(const std::string& path) const = 0;
    /// What the body of an error calls it: "SlowDown". "": it has no name for it.
    virtual std::string code_of(const TransferAnswer&) const { return ""; }

    /// The error that an answer is; `path` is what was asked for.
    Error error_of(const TransferAnswer& answer, const std::string& path, const char* step) const;
    /// Of the answer 200 to a HEAD.
    Result<FileFacts> facts_of(const TransferAnswer& answer, const std::string& path) const;
    Error not_a_path(const std::string& path, const char* step) const;

    WebRequests& requests() noexcept { return requests_; }

  private:
    std::optional<std::string> change_in(const Fetch& fetch, const TransferAnswer& answer) const;
    Fetched verdict_on(const Fetch& fetch, const TransferAnswer& answer) const;
    struct Asked {
        Fetch fetch;
        TransferRequest request;
    };
    bool ask_later(Asked asked, const TransferAnswer& answer);
    void ask(Asked asked);
    void take(const TransferAnswer& answer);
    Fetched too_young(const Fetch& fetch) const;
    void ask_due();
    TimePoint next_due() const noexcept;

    std::string name_;
    std::chrono::milliseconds fetch_timeout_;
    WebRequests requests_;
    std::map<std::uint64_t, Asked> fetches_;  // by the tag of the request
    struct Later {
        Asked asked;
        TimePoint at;
    };
    std::vector<Later> later_;  // of versions that were too young
    std::uint64_t last_tag_ = 0;
    std::vector<Fetched> ended_;  // without having been asked for
};

}  // namespace fabricd
