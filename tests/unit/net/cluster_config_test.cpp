#include "fabricd/net/cluster_config.hpp"

#include <doctest/doctest.h>

using namespace fabricd;

namespace {

ClusterConfig with_etcd(const std::string& endpoints) {
    ClusterConfig config;
    config.host_name = "a";
    config.etcd = endpoints;
    return config;
}

bool names(const std::string& message, const char* key) {
    return message.find(key) != std::string::npos;
}

}  // namespace

TEST_SUITE("net.cluster_config") {
    TEST_CASE("words of a list come without blanks and empty ones") {
        CHECK(words_of("") == std::vector<std::string>{});
        CHECK(words_of("a, b ,,  c") == std::vector<std::string>{"a", "b", "c"});
    }

    TEST_CASE("no cluster needs nothing, and a fence command needs one") {
        CHECK(check_cluster({}).empty());
        ClusterConfig config;
        config.fence_command = "true";
        CHECK(names(check_cluster(config), "cluster.fence_command"));
        config.hosts = "a";
        config.host_name = "a";
        CHECK(names(check_cluster(config), "cluster.fence_command"));
    }

    TEST_CASE("etcd of another host needs certificates on both sides, that of this host does not") {
        CHECK(check_cluster(with_etcd("http://127.0.0.1:2379, http://localhost:2")).empty());
        CHECK(check_cluster(with_etcd("http://[::1]:2379")).empty());
        CHECK(names(check_cluster(with_etcd("http://10.0.0.1:2379")), "needs https"));
        CHECK(
            names(check_cluster(with_etcd("http://127.0.0.1:2379,http://e2:2379")), "needs https"));
        CHECK(names(check_cluster(with_etcd("http://localhost.evil:2379")), "needs https"));
        CHECK(names(check_cluster(with_etcd("http://127.evil.net:2379")), "needs https"));
        ClusterConfig config = with_etcd("https://e1:2379");
        CHECK(names(check_cluster(config), "cluster.tls_ca"));
        config.tls_ca = "/x";
        CHECK(names(check_cluster(config),
                    "cluster.tls_ca without cluster.tls_cert and cluster.tls_key"));
        config.tls_cert = "/x";
        CHECK(names(check_cluster(config),
                    "cluster.tls_ca and cluster.tls_cert without cluster.tls_key"));
        config.tls_key = "/x";
        CHECK(check_cluster(config).empty());
    }

    TEST_CASE("names are checked, and lists have this host and 8 at most") {
        ClusterConfig config = with_etcd("http://127.0.0.1:2379");
        config.name = "a/b";
        CHECK(names(check_cluster(config), "cluster.name"));
        config = with_etcd("e1:2379");
        CHECK(names(check_cluster(config), "cluster.etcd"));
        config = with_etcd("http://127.0.0.1:1");
        config.hosts = "a";
        CHECK(names(check_cluster(config), "exclude"));
        config = {};
        config.host_name = "a";
        config.hosts = "b,c";
        CHECK(names(check_cluster(config), "cluster.hosts"));
        config.hosts = "a,b,c,d,e,f,g,h";
        CHECK(check_cluster(config).empty());
        config.hosts += ",i";
        CHECK(names(check_cluster(config), "8 at most"));
        config.hosts = "a,b c";
        CHECK(names(check_cluster(config), "no name"));
    }
}
