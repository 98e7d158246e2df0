#include "fabricd/net/tls_files.hpp"

#include <doctest/doctest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/support/temporary_directory.hpp"

using fabricd::ClusterConfig;

namespace {

/// A folder with the certificates of a host, made as an operator would by openssl(1).
struct Files {
    Files() {
        make("a");
        make("b");
        config.tls_ca = path("b.pem");
        config.tls_cert = path("a.pem");
        config.tls_key = path("a.key");
    }
    std::string path(const std::string& name) const { return folder.path() + "/" + name; }
    void write(const std::string& name, const std::string& text) const {
        std::ofstream(path(name)) << text;
    }
    std::string text(const std::string& name) const {
        std::stringstream all;
        all << std::ifstream(path(name)).rdbuf();
        return all.str();
    }

    // Signed by itself, which is all that is looked at here.
    void make(const std::string& name, const char* passphrase = nullptr) const {
        EVP_PKEY* key = EVP_EC_gen("P-256");
        X509* made = X509_new();
        ASN1_INTEGER_set(X509_get_serialNumber(made), 1);
        X509_gmtime_adj(X509_getm_notBefore(made), 0);
        X509_gmtime_adj(X509_getm_notAfter(made), 3600);
        X509_set_pubkey(made, key);
        X509_sign(made, key, EVP_sha256());
        std::FILE* file = std::fopen(path(name + ".pem").c_str(), "w");
        REQUIRE(file != nullptr);
        PEM_write_X509(file, made);
        std::fclose(file);
        file = std::fopen(path(name + ".key").c_str(), "w");
        REQUIRE(file != nullptr);
        PEM_write_PrivateKey(file, key, passphrase != nullptr ? EVP_aes_128_cbc() : nullptr,
                             nullptr, 0, nullptr, const_cast<char*>(passphrase));
        std::fclose(file);
        X509_free(made);
        EVP_PKEY_free(key);
    }

    test_support::TemporaryDirectory folder;
    ClusterConfig config;
};

// With the key and the file in front.
void check_refused(const ClusterConfig& config, const std::string& key, const std::string& path,
                   const std::string& why) {
    CAPTURE(why);
    const std::string said = check_tls_files(config);
    CHECK(said.find(key + ": \"" + path + "\"") == 0);
    CHECK(said.find(why) != std::string::npos);
    CHECK(said.find('\n') == std::string::npos);
}

}  // namespace

TEST_SUITE("net.tls_files") {
    TEST_CASE("good files, and none at all, are fine") {
        const Files files;
        CHECK(check_tls_files(files.config) == "");
        CHECK(check_tls_files(ClusterConfig{}) == "");
        files.write("a.pem", files.text("a.pem") + files.text("b.pem"));  // a chain
        CHECK(check_tls_files(files.config) == "");
    }

    TEST_CASE("a file that is none of its kind is named with its key") {
        Files files;
        ClusterConfig& config = files.config;
        config.tls_ca = files.path("missing.pem");
        check_refused(config, "cluster.tls_ca", config.tls_ca, "No such file");
        config.tls_ca = files.folder.path();
        check_refused(config, "cluster.tls_ca", config.tls_ca, "Is a directory");
        config.tls_ca = files.path("b.pem");
        files.write("empty", "");
        config.tls_cert = files.path("empty");
        check_refused(config, "cluster.tls_cert", config.tls_cert, "is empty");
        config.tls_cert = files.path("a.key");
        check_refused(config, "cluster.tls_cert", config.tls_cert, "has no CERTIFICATE");
        config.tls_cert = files.path("a.pem");
        config.tls_key = files.path("a.pem");
        check_refused(config, "cluster.tls_key", config.tls_key, "has no PRIVATE KEY");
    }

    TEST_CASE("what looks like PEM and can't be decoded is named, also further down a chain") {
        const Files files;
        const ClusterConfig& config = files.config;
        const std::string whole = files.text("a.pem");
        std::string broken = whole;
        broken.replace(broken.size() / 2, 8, "????????");
        files.write("a.pem", broken);
        check_refused(config, "cluster.tls_cert", config.tls_cert,
                      "certificate 1 can't be decoded");
        files.write("a.pem", whole + broken);
        check_refused(config, "cluster.tls_cert", config.tls_cert,
                      "certificate 2 can't be decoded");
        files.write("a.pem", whole.substr(0, whole.size() / 2));
        check_refused(config, "cluster.tls_cert", config.tls_cert,
                      "certificate 1 can't be decoded");
        files.write("a.pem", whole);
        const std::string key = files.text("a.key");
        files.write("a.key", key.substr(0, key.size() / 2));
        check_refused(config, "cluster.tls_key", config.tls_key, "can't be decoded");
    }

    TEST_CASE("a key of another certificate, or one with a passphrase, is refused") {
        Files files;
        ClusterConfig& config = files.config;
        config.tls_key = files.path("b.key");
        check_refused(config, "cluster.tls_key", config.tls_key,
                      "is not the key of cluster.tls_cert, \"" + config.tls_cert + "\"");
        files.make("locked", "secret");
        config.tls_cert = files.path("locked.pem");
        config.tls_key = files.path("locked.key");
        check_refused(config, "cluster.tls_key", config.tls_key, "needs a passphrase");
    }
}
