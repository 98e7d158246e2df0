#include "fabricd/net/cluster_config.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "fabricd/net/host_record.hpp"

namespace fabricd {

namespace {

constexpr std::size_t kMaxStaticHosts = 8;

bool is_loopback(const std::string& endpoint) {
    bool is_tls = false;
    const std::string target = target_of(endpoint, is_tls);
    const std::string host = target.substr(0, target.rfind(':'));
    const bool is_number = host.find_first_not_of("0123456789.") == std::string::npos;
    return host == "localhost" || host == "[::1]" || (is_number && host.starts_with("127."));
}

std::string check_endpoints(const ClusterConfig& config) {
    const bool has_files =
        !config.tls_ca.empty() && !config.tls_cert.empty() && !config.tls_key.empty();
    for (const std::string& endpoint : words_of(config.etcd)) {
        bool is_tls = false;
        if (target_of(endpoint, is_tls).empty()) {
            return "cluster.etcd: \"" + endpoint + "\" is no https://HOST:PORT";
        }
        if (is_tls && !has_files) {
            return "cluster.etcd: https needs cluster.tls_ca, cluster.tls_cert and cluster.tls_key";
        }
        // A host that can write there can call any other lost.
        if (!is_tls && !is_loopback(endpoint)) {
            return "cluster.etcd: \"" + endpoint +
                   "\" is not of this host: it needs https and cluster.tls_ca, tls_cert, tls_key";
        }
    }
    return "";
}

// All three or none: what is half there protects nothing.
std::string check_tls_keys(const ClusterConfig& config) {
    const std::pair<const char*, const std::string&> keys[] = {
        {"cluster.tls_ca", config.tls_ca},
        {"cluster.tls_cert", config.tls_cert},
        {"cluster.tls_key", config.tls_key}};
    std::string named;
    std::string missing;
    for (const auto& [key, path] : keys) {
        std::string& list = path.empty() ? missing : named;
        list += (list.empty() ? "" : " and ") + std::string(key);
    }
    if (named.empty() || missing.empty()) return "";
    return named + " without " + missing + ": a certificate needs all three";
}

}  // namespace

std::string host_name_of(const ClusterConfig& config) {
    if (!config.host_name.empty()) return config.host_name;
    char name[256] = "";
    return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

std::string target_of(const std::string& endpoint, bool& is_tls) {
    for (const std::string scheme : {"https://", "http://"}) {
        if (!endpoint.starts_with(scheme)) continue;
        is_tls = scheme == "https://";
        const std::string target = endpoint.substr(scheme.size());
        const std::size_t colon = target.rfind(':');
        const bool has_port =
            colon != std::string::npos && colon != 0 && colon + 1 < target.size() &&
            target.find_first_not_of("0123456789", colon + 1) == std::string::npos;
        return has_port && target.find('/') == std::string::npos ? target : "";
    }
    return "";
}

std::vector<std::string> words_of(const std::string& list) {
    std::vector<std::string> words;
    std::size_t from = 0;
    while (from < list.size()) {
        const std::size_t comma = std::min(list.find(',', from), list.size());
        const std::size_t first = list.find_first_not_of(' ', from);
        const std::size_t last = list.find_last_not_of(' ', comma - 1);
        if (first < comma) words.push_back(list.substr(first, last + 1 - first));
        from = comma + 1;
    }
    return words;
}

std::string check_cluster(const ClusterConfig& config) {
    const bool has_hosts = !config.hosts.empty();
    const bool has_etcd = !config.etcd.empty();
    const std::string host = host_name_of(config);
    if (const std::string bad = check_tls_keys(config); !bad.empty()) return bad;
    if (!has_hosts && !has_etcd) {
        return config.fence_command.empty() ? "" : "cluster.fence_command needs cluster.etcd";
    }
    if (has_hosts && has_etcd) return "cluster.etcd and cluster.hosts exclude each other";
    if (!is_host_name(config.name)) {
        return "cluster.name: letters, digits, '.', '_' and '-', 63 at most";
    }
    if (!is_host_name(host)) {
        return "cluster.host_name: \"" + host + "\": letters, digits, '.', '_' and '-', 63 at most";
    }
    if (has_etcd) return check_endpoints(config);
    if (!config.fence_command.empty()) {
        return "cluster.fence_command needs cluster.etcd: of a static list no host is called lost";
    }
    const auto hosts = words_of(config.hosts);
    if (hosts.size() > kMaxStaticHosts) {
        return "cluster.hosts: 8 at most; more of them need cluster.etcd";
    }
    for (const std::string& name : hosts) {
        if (!is_host_name(name)) return "cluster.hosts: \"" + name + "\" is no name of a host";
    }
    if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) {
        return "cluster.hosts does not have this host, " + host + " (cluster.host_name)";
    }
    return "";
}

}  // namespace fabricd
