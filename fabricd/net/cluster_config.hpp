// What membership in a cluster is configured by: section [cluster] of the configuration. docs/hosts.md.

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
    fabricshm::Duration ttl = std::chrono::seconds(5);
    std::string tls_ca;
    std::string tls_cert;
    std::string tls_key;
    std::string fence_command;
    fabricshm::Duration fence_timeout = std::chrono::minutes(1);
};

}  // namespace fabricd
