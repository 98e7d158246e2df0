// tests/support/s3_server.py as a child process: the server of the tests of silos over HTTP.

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace test_support {

/// What the server has as the content of version `version` of `key`.
std::string s3_content(const std::string& key, int version, std::uint64_t bytes);

class S3Server {
  public:
    static constexpr const char* kBucket = "datasets";
    static constexpr const char* kRegion = "eu-test-1";
    static constexpr const char* kSecret = "sec+ret/Key=";

    struct Stats {
        unsigned requests = 0, connections = 0, parts = 0;
    };

    /// With `certificate` and `key` (paths) it speaks TLS. Ends the program as skipped where
    /// botocore is not installed.
    explicit S3Server(const std::string& certificate = "", const std::string& key = "");
    ~S3Server();
    S3Server(const S3Server&) = delete;
    S3Server& operator=(const S3Server&) = delete;

    int port() const noexcept { return port_; }
    /// As in s3_server.py, which has the list. The key of put, text and remove is encoded here.
    std::string command(const std::string& line);
    void put(const std::string& key, int version, std::uint64_t bytes,
             const std::string& more = "");
    void text(const std::string& key, const std::string& content);
    void remove(const std::string& key);
    void fault(const std::string& name, int count, const std::string& method = "");
    Stats stats();
    struct Object {
        std::uint64_t bytes = 0;
        std::string md5, write;
    };
    /// Without an MD5: there is none.
    Object object(const std::string& key);
    unsigned uploads();
    /// An upload that another client has begun.
    void begin(const std::string& key);

    /// The text of a file of credentials that it takes.
    static std::string credentials();

  private:
    pid_t pid_ = -1;
    std::FILE* to_ = nullptr;
    std::FILE* from_ = nullptr;
    int port_ = 0;
};

}  // namespace test_support
