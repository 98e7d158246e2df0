// The calls of etcd that the cluster store is made of, over gRPC, each with an end.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "etcd.pb.h"
#include "fabricd/net/boot_clock.hpp"
#include "libfabricshm/base/result.hpp"

namespace fabricd {

using fabricshm::Duration;
using fabricshm::Result;

struct EtcdOptions {
    std::vector<std::string> endpoints;     // "https://host:2379"
    std::string tls_ca, tls_cert, tls_key;  // paths; for endpoints with https
    /// At one member, and at all of them together. A member that is stopped or cut off is left
    /// after the first.
    Duration attempt = std::chrono::milliseconds(500);
    Duration total = std::chrono::milliseconds(1600);
};

/// An answer, and when the request was sent that it is for.
template <typename Message>
struct Answered {
    Message message;
    BootTime sent{};
};

/// For one thread. A call asks the member that answered last, then the others in turn. Errors:
/// kTimeout when none answers, kDenied, kNotFound, kNoMemory (the store is full), kInvalid: with
/// etcd's own words as the reason.
class EtcdClient {
  public:
    /// kInvalid for endpoints that are none and for files that can't be read, with the reason.
    /// Connects later.
    static Result<std::unique_ptr<EtcdClient>> make(const EtcdOptions& options);
    ~EtcdClient();

    /// Of all later calls, in addition to the options.
    void limit_calls_until(BootTime end) noexcept;

    Result<Answered<etcdserverpb::RangeResponse>> range(const etcdserverpb::RangeRequest& request);
    Result<Answered<etcdserverpb::TxnResponse>> transact(const etcdserverpb::TxnRequest& request);
    Result<Answered<etcdserverpb::LeaseGrantResponse>> grant(
        const etcdserverpb::LeaseGrantRequest& request);
    Result<Answered<etcdserverpb::LeaseRevokeResponse>> revoke(
        const etcdserverpb::LeaseRevokeRequest& request);
    Result<Answered<etcdserverpb::LeaseKeepAliveResponse>> keep_alive(
        const etcdserverpb::LeaseKeepAliveRequest& request);

    /// Rises when another member is asked than before: what was opened at the one before may hang.
    std::uint64_t generation() const noexcept;

    /// Events from a revision on, at the member that is asked now. Goes before the client.
    class Watch {
      public:
        ~Watch();
        /// The next message; nothing within `wait`: kTimeout, and the watch goes on. kDaemon: it
        /// has ended.
        Result<etcdserverpb::WatchResponse> next(Duration wait);

      private:
        friend class EtcdClient;
        struct Stream;
        explicit Watch(std::unique_ptr<Stream> stream) noexcept;
        std::unique_ptr<Stream> stream_;
    };
    std::unique_ptr<Watch> watch(const etcdserverpb::WatchRequest& request);

  private:
    struct Impl;
    explicit EtcdClient(std::unique_ptr<Impl> impl) noexcept;
    std::unique_ptr<Impl> impl_;
};

}  // namespace fabricd
