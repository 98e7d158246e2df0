// HttpTransfers: many requests at a time, parts of files straight to their place. The one home of
// libcurl.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libfabricshm/base/units.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

using fabricshm::Bytes;
using fabricshm::Result;
using fabricshm::TimePoint;

/// AWS Signature Version 4. libcurl signs the query as it is: the caller has sorted and encoded it,
/// and given the header x-amz-content-sha256.
struct HttpSigning {
    std::string scope;  // "aws:amz:REGION:s3"
    std::string user;
    std::string secret;
};

struct TransferRequest {
    std::string url;
    bool is_head = false;
    // "PUT", "POST" or "DELETE", with a body; "": HEAD or GET, without. A signature has the body's
    // SHA-256.
    std::string method;
    std::shared_ptr<const std::string> body;
    // A server that has begun to answer 200 can't take it back: an error is in the text then.
    bool may_hide_error = false;
    std::vector<std::string> headers;            // "Name: value"
    std::shared_ptr<const HttpSigning> signing;  // null: none
    // A part of the file, which lies where it is to be when the answer is kAnswered with 206; null:
    // all of it, as text.
    std::byte* into = nullptr;
    Bytes offset = 0;
    Bytes bytes = 0;
    Bytes max_text = 0;
    TimePoint deadline;
    std::uint64_t tag = 0;  // the caller's; no two under way have the same
};

enum class HttpEnd {
    kAnswered,    // with any status; what was asked for is there if that is 200 or 206
    kDeadline,    // of the request
    kStalled,     // no bytes for some time
    kConnection,  // there is none, or it broke
    kTrust,       // the server's certificate is not one to trust
    kBroken,      // the answer is not one to the request
};

/// What of its header is looked at, as the server wrote it; "": not there.
struct HttpFields {
    std::string etag;
    std::string last_modified;
    std::string date;  // of the answer
    std::string location;
    std::string request_id;
    std::string retry_after;
    std::string region;    // of a bucket that is elsewhere
    std::string write;     // the token of the write that made an object
    std::string checksum;  // of a chunk of another host
};

struct TransferAnswer {
    std::uint64_t tag = 0;
    HttpEnd end = HttpEnd::kBroken;
    int status = 0;  // 0: none came
    HttpFields fields;
    std::optional<Bytes> length;  // of the body, as announced
    std::optional<Bytes> total;   // of the whole file
    std::string text;             // of the body, also of an error's: 64 KiB at most then
    std::string problem;          // for people, of all but kAnswered
};

struct HttpTransfersOptions {
    unsigned connections = 16;
    // Bytes a second, as libcurl's mean of some seconds: slower for `stalled_seconds` is kStalled.
    Bytes stalled_rate = 1024;
    unsigned stalled_seconds = 10;
    std::chrono::milliseconds connect_timeout{5000};
    std::string ca_file;  // certificates to trust; "": those of the system
    // What this end shows a server that asks for it; "": nothing.
    std::string certificate_file;
    std::string key_file;
};

/// "bytes 0-99/1000": where a part lies, and in how much. nullopt: it says neither.
struct ContentRange {
    Bytes first = 0;
    Bytes last = 0;
    std::optional<Bytes> total;  // "*": unknown
};
std::optional<ContentRange> parse_content_range(std::string_view text) noexcept;

/// One thread at a time. Redirects are not followed, proxies of the environment not used,
/// certificates always verified. HTTP/1.1.
class HttpTransfers {
  public:
    static Result<std::unique_ptr<HttpTransfers>> make(const HttpTransfersOptions& options);
    /// Drops what is under way: no byte is written after it.
    ~HttpTransfers();
    HttpTransfers(const HttpTransfers&) = delete;
    HttpTransfers& operator=(const HttpTransfers&) = delete;

    unsigned connections() const noexcept { return options_.connections; }
    /// Whose answer wait() has not given yet.
    std::size_t under_way() const noexcept { return under_way_.size() + ended_.size(); }

    /// More than there are connections wait for one, and their deadline does not.
    void start(const TransferRequest& request);
    /// Drops one that is under way, if it is: neither a byte nor an answer comes of it.
    void cancel(std::uint64_t tag);
    /// What has ended. Waits for the first while any is under way, until `deadline`.
    std::vector<TransferAnswer> wait(TimePoint deadline);

    /// Readable when wait(kNoWait) has something to do, for poll().
    int descriptor() const noexcept { return epoll_.get(); }

  private:
    struct Transfer;
    struct Callbacks;  // libcurl's view of this class

    explicit HttpTransfers(HttpTransfersOptions options);
    Result<void> open();

    void set_options(Transfer& transfer);
    void act(int fd, unsigned events);
    void take_ended();
    void drop(Transfer& transfer);

    HttpTransfersOptions options_;
    void* multi_ = nullptr;    // CURLM
    std::vector<void*> idle_;  // CURL
    fabricshm::Fd epoll_;
    fabricshm::Fd timer_;
    std::map<std::uint64_t, std::unique_ptr<Transfer>> under_way_;
    std::vector<TransferAnswer> ended_;
};

}  // namespace fabricd
