#include "fabricd/net/etcd_client.hpp"

#include <doctest/doctest.h>

#include "fabricd/net/cluster_config.hpp"
#include "libfabricshm/base/reason.hpp"

using namespace fabricd;

TEST_SUITE("net.etcd_client") {
    TEST_CASE("an endpoint is http or https, a host and a port") {
        bool is_tls = true;
        CHECK(target_of("http://127.0.0.1:2379", is_tls) == "127.0.0.1:2379");
        CHECK_FALSE(is_tls);
        CHECK(target_of("https://e1.lab:2379", is_tls) == "e1.lab:2379");
        CHECK(is_tls);
        CHECK(target_of("http://[::1]:2379", is_tls) == "[::1]:2379");
        for (const char* bad : {"", "e1:2379", "http://", "http://e1", "http://:1",
                                "http://e1:", "http://e1:x", "http://e1:1/v3", "ftp://e1:1"}) {
            CHECK(target_of(bad, is_tls).empty());
        }
    }

    TEST_CASE("files of TLS that can't be read are named with their key") {
        EtcdOptions options;
        options.endpoints = {"https://127.0.0.1:1"};
        options.tls_ca = "/no/such/file";
        const auto made = EtcdClient::make(options);
        REQUIRE_FALSE(made.ok());
        CHECK(fabricshm::explanation_of(made.error()).find("cluster.tls_ca") != std::string::npos);
    }

    TEST_CASE("a call to members of which none is there ends with a timeout") {
        EtcdOptions options;
        // Port 1: nothing listens there.
        options.endpoints = {"http://127.0.0.1:1", "http://127.0.0.1:1"};
        auto client = EtcdClient::make(options).value();
        const auto before = client->generation();
        const auto answer = client->range({});
        REQUIRE_FALSE(answer.ok());
        CHECK(answer.error().code == fabricshm::Errc::kTimeout);
        CHECK(client->generation() > before);
    }
}
