// What membership in a cluster is configured by: section [cluster] of the configuration.
// docs/hosts.md.

#pragma once

#include <string>
#include <vector>

#include "libfabricshm/base/units.hpp"

namespace fabricd {

/// Neither `etcd` nor `hosts`: the daemon is alone.
struct ClusterConfig {
    std::string name = "default";  // distinguishes the clusters of one etcd
    std::string etcd;              // endpoints, separated by commas
    std::string hosts;             // a static list instead
    std::string host_name;         // "": that of the machine
    std::string listen;            // for guests: HOST:PORT or unix:/PATH
    fabricshm::Duration ttl = std::chrono::seconds(5);
    std::string tls_ca;
    std::string tls_cert;
    std::string tls_key;
    std::string fence_command;
    fabricshm::Duration fence_timeout = std::chrono::minutes(1);
};

/// cluster.host_name, or the machine's own.
std::string host_name_of(const ClusterConfig& config);

/// The words of a list separated by commas, without blanks around them.
std::vector<std::string> words_of(const std::string& list);

/// "host:port" of "http://host:port" or "https://host:port"; "" when it is neither. `is_tls` says
/// which.
std::string target_of(const std::string& endpoint, bool& is_tls);

/// What the keys demand of each other; "" when all is well, else one line that names the key to
/// change. Endpoints that are not of this host need TLS with certificates on both sides: what can
/// write there can call any host lost.
std::string check_cluster(const ClusterConfig& config);

}  // namespace fabricd
