// S3Writer: new objects of an S3 bucket.

#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fabricd/data/silo/s3_place.hpp"
#include "fabricd/data/silo/silo_writer.hpp"
#include "fabricd/data/silo/web_requests.hpp"

namespace fabricd {

/// Up to 8 MiB are one PUT, more an upload in parts of 8 MiB. Each signature has the SHA-256 of
/// the body. "If-None-Match: *" keeps a commit from replacing an object; of an answer that got lost
/// the token of the write, which the object carries (x-amz-meta-fabric-write), says whose object is
/// there.
class S3Writer : public SiloWriter {
  public:
    /// Asks no server. kInvalid names the option.
    static Result<std::unique_ptr<S3Writer>> open(const S3Options& options);

    bool has_room() const noexcept override;
    void begin(std::uint64_t file, const WriteName& name, std::uint64_t tag) override;
    void append(std::uint64_t file, const std::byte* bytes, Bytes count,
                std::uint64_t tag) override;
    void commit(std::uint64_t file, std::uint64_t tag) override;
    void abort(std::uint64_t file, std::uint64_t tag) override;
    std::vector<Written> wait(TimePoint deadline) override;
    /// Uploads of that path which are under way, also those of another host.
    Result<void> clear(const WriteName& name, TimePoint deadline) override;

    std::uint64_t retries() const noexcept { return requests_.retries(); }

  private:
    using Body = std::shared_ptr<const std::string>;
    // What a request is about.
    enum class Kind { kName, kBelow, kAbove, kInitiate, kPart, kPut, kComplete, kLook, kDelete };
    struct Request {
        std::uint64_t file = 0;
        Kind kind = Kind::kName;
        std::size_t part = 0;
        std::string path;
    };
    struct Upload {
        WriteName name;
        std::string filling;       // of the next part
        std::deque<Body> waiting;  // whole parts, until there is an id
        std::string id;
        std::vector<std::string> etags;  // by part; "": not there yet
        Bytes bytes = 0;
        unsigned asked = 0;  // requests under way
        bool is_initiated = false;
        bool begins = false, commits = false, aborts = false;
        bool is_last_asked = false;  // the request that ends it is under way
        std::uint64_t tag = 0;       // of begin, commit or abort
        Written failed;              // the first step that did
        TransferAnswer doubt;        // to a commit that may have gone well
    };

    S3Writer(const S3Options& options, S3Place place, std::unique_ptr<HttpTransfers> transfers);

    std::string shown(const std::string& path) const;  // for people
    Upload& upload_of(std::uint64_t file);
    void ask(std::uint64_t file, Kind kind, TransferRequest request, std::size_t part = 0,
             const std::string& path = "");
    void ask_head(std::uint64_t file, Kind kind, const std::string& path);
    TransferRequest new_object(const char* method, const std::string& url, const Upload& upload,
                               Body body) const;
    std::string part_url(const Upload& upload, std::size_t part) const;
    void cut_part(std::uint64_t file, Upload& upload);
    void fail(Upload& upload, const Error& error);
    Error error_of(const TransferAnswer& answer, const std::string& path, const char* step) const;

    void take(const TransferAnswer& answer);
    void take_begin(Upload& upload, const Request& request, const TransferAnswer& answer);
    void take_id(Upload& upload, const TransferAnswer& answer);
    void take_part(Upload& upload, std::size_t part, const TransferAnswer& answer);
    void take_commit(std::uint64_t file, Upload& upload, const TransferAnswer& answer,
                     bool in_parts);
    void take_look(std::uint64_t file, Upload& upload, const TransferAnswer& answer);
    /// Whatever can be asked for now. May end the upload.
    void go_on(std::uint64_t file);
    void ask_commit(std::uint64_t file, Upload& upload);
    void end(std::uint64_t file, Written written);

    std::string name_;
    std::chrono::milliseconds timeout_;
    S3Place place_;
    WebRequests requests_;
    std::map<std::uint64_t, Request> asked_;   // by tag
    std::map<std::uint64_t, Upload> uploads_;  // by file
    std::set<std::string> folders_;            // that are known not to be objects
    std::uint64_t last_tag_ = 0;
    std::size_t parts_ = 0;  // in memory, but for those that are filled
    std::vector<Written> ended_;
};

}  // namespace fabricd
