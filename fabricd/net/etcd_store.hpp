// The cluster store in etcd. The keys: docs/hosts.md, "Records".

#pragma once

#include <map>
#include <memory>
#include <string>

#include "fabricd/net/cluster_store.hpp"
#include "fabricd/net/etcd_client.hpp"
#include "fabricd/net/survivors.hpp"

namespace fabricd {

/// An incarnation is the revision of etcd at which the host's record was made, plus a base that is
/// written once when a cluster begins, or begins again without data: from the time of day, and
/// above all that its writer has seen. Else a wiped etcd, which counts from 1 again, would give out
/// incarnations that memory still remembers.
class EtcdStore final : public ClusterStore {
  public:
    static Result<std::unique_ptr<EtcdStore>> make(const EtcdOptions& options,
                                                   const std::string& cluster);

    void limit_calls_until(BootTime end) noexcept override { client_->limit_calls_until(end); }
    Result<HostPlace> join(const std::string& host, const HostRecord& record,
                           Duration ttl) override;
    Result<HostPlace> resume(const std::string& host, const HostRecord& record,
                             std::int64_t lease) override;
    Result<StoreLease> keep() override;
    Result<StoreNews> news(Duration wait) override;
    Result<StoreNews> read_all() override;
    Result<bool> claim(const FenceKey& key) override;
    Result<void> write_fence(const FenceKey& key, const FenceRecord& record) override;
    Result<void> leave() override;

    /// Writes down that these ranks of a group go on, for a day. False: ranks go on already of
    /// which these are no part.
    Result<bool> settle(const Survivors& survivors);

  private:
    /// What stands under hosts/NAME: which incarnation a deletion is about.
    struct Known {
        Incarnation incarnation = 0;
        bool is_seen = false;  // in the list that is being read
    };

    EtcdStore(std::unique_ptr<EtcdClient> client, const std::string& cluster);
    Result<void> ensure_base();
    Result<StoreLease> renew(std::int64_t lease);
    Result<HostPlace> take_own(const std::string& host, const HostRecord& record,
                               std::int64_t lease, std::int64_t unused);
    void note(const etcdserverpb::KeyValue& record, StoreNews& news);
    void note_deleted(const std::string& key, StoreNews& news);
    Incarnation incarnation_of(const etcdserverpb::KeyValue& record, const HostRecord& host) const;

    std::unique_ptr<EtcdClient> client_;
    std::string prefix_;  // "/fabricd/CLUSTER/v1/"
    std::int64_t lease_ = 0;
    Incarnation base_ = 0;
    Incarnation newest_ = 0;  // that was seen of any host
    std::map<std::string, Known, std::less<>> known_;
    std::unique_ptr<EtcdClient::Watch> watch_;  // before the client that it belongs to
    std::uint64_t watch_generation_ = 0;
};

}  // namespace fabricd
