#include "fabricd/net/etcd_client.hpp"

#include <doctest/doctest.h>

#include <fstream>

#include "fabricd/net/cluster_config.hpp"
#include "libfabricshm/base/reason.hpp"
#include "tests/support/temporary_directory.hpp"

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

    TEST_CASE("files of TLS that are none are named with their key, and why they are none") {
        const test_support::TemporaryDirectory folder;
        const std::string good = folder.file("good"), text = folder.file("text");
        std::ofstream(good) << "-----BEGIN CERTIFICATE-----\n";
        std::ofstream(text) << "not in PEM";
        std::ofstream(folder.file("empty"));
        const auto problem_of = [](const std::string& ca, const std::string& key) {
            EtcdOptions options;
            options.endpoints = {"https://127.0.0.1:1"};
            options.tls_ca = options.tls_cert = ca;
            options.tls_key = key;
            const auto made = EtcdClient::make(options);
            return made.ok() ? "" : fabricshm::explanation_of(made.error());
        };
        CHECK(problem_of("/no/such/file", good)
                  .find("cluster.tls_ca: \"/no/such/file\": No such file or directory") !=
              std::string::npos);
        CHECK(problem_of(folder.file("empty"), good).find("is empty") != std::string::npos);
        CHECK(problem_of(folder.path(), good).find("Is a directory") != std::string::npos);
        CHECK(problem_of(text, good).find("has no CERTIFICATE") != std::string::npos);
        CHECK(
            problem_of(good, good).find("cluster.tls_key: \"" + good + "\": has no PRIVATE KEY") !=
            std::string::npos);
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
