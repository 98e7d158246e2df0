#include "fabricd/net/tls_files.hpp"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;
using fabricshm::Result;

namespace {

constexpr const char* kCertificate = "CERTIFICATE";
constexpr const char* kPrivateKey = "PRIVATE KEY";

template <auto free_it>
struct Freed {
    template <typename T>
    void operator()(T* held) const noexcept {
        free_it(held);
    }
};
using Bio = std::unique_ptr<BIO, Freed<BIO_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;

// A daemon has no one to ask for a passphrase; OpenSSL would ask the terminal.
int no_passphrase(char*, int, int, void*) {
    return 0;
}

Bio memory_of(const std::string& text) {
    return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// The next certificate of `from`; nullptr at the end, or where one is broken.
Certificate next_certificate(const Bio& from) {
    return Certificate(PEM_read_bio_X509(from.get(), nullptr, no_passphrase, nullptr));
}

std::string named(const char* key, const std::string& path, const std::string& why) {
    return std::string(key) + ": \"" + path + "\": " + why;
}

// All of them: a chain whose second certificate is broken ends a handshake, too. "", or which one
// is broken.
std::string broken_certificate(const std::string& text) {
    const Bio from = memory_of(text);
    for (int number = 1;; ++number) {
        ERR_clear_error();
        if (next_certificate(from)) continue;
        const unsigned long error = ERR_peek_last_error();
        const bool is_end = ERR_GET_LIB(error) == ERR_LIB_PEM &&
                            ERR_GET_REASON(error) == PEM_R_NO_START_LINE && number > 1;
        ERR_clear_error();
        return is_end ? "" : "its certificate " + std::to_string(number) + " can't be decoded";
    }
}

}  // namespace

Result<std::string> read_pem(const char* key, const std::string& path, const char* content) {
    const auto refuse = [&](const std::string& why) {
        return explain({Errc::kInvalid, 0, "read certificate"}, "%s",
                       named(key, path, why).c_str());
    };
    std::ifstream file(path, std::ios::binary);
    if (!file) return refuse(std::strerror(errno));
    // It can be opened, and reading it is an exception.
    std::error_code bad;
    if (std::filesystem::is_directory(path, bad)) return refuse(std::strerror(EISDIR));
    std::string text(std::istreambuf_iterator<char>(file), {});
    if (text.empty()) return refuse("is empty");
    const std::size_t begin = text.find("-----BEGIN ");
    const std::string line =
        begin == std::string::npos ? "" : text.substr(begin, text.find('\n', begin) - begin);
    if (text.size() > 1 << 20 || line.find(content) == std::string::npos) {
        return refuse("has no " + std::string(content) + " in PEM (-----BEGIN ...)");
    }
    return text;
}

std::string check_tls_files(const ClusterConfig& config) {
    if (config.tls_ca.empty() && config.tls_cert.empty() && config.tls_key.empty()) return "";
    const auto ca = read_pem("cluster.tls_ca", config.tls_ca, kCertificate);
    if (!ca.ok()) return explanation_of(ca.error());
    const auto cert = read_pem("cluster.tls_cert", config.tls_cert, kCertificate);
    if (!cert.ok()) return explanation_of(cert.error());
    const auto key = read_pem("cluster.tls_key", config.tls_key, kPrivateKey);
    if (!key.ok()) return explanation_of(key.error());
    if (const auto bad = broken_certificate(*ca); !bad.empty()) {
        return named("cluster.tls_ca", config.tls_ca, bad);
    }
    if (const auto bad = broken_certificate(*cert); !bad.empty()) {
        return named("cluster.tls_cert", config.tls_cert, bad);
    }
    ERR_clear_error();
    const Bio from = memory_of(*key);
    const Key own(PEM_read_bio_PrivateKey(from.get(), nullptr, no_passphrase, nullptr));
    ERR_clear_error();
    if (!own) {
        const bool is_locked = key->find("ENCRYPTED") != std::string::npos;
        return named(
            "cluster.tls_key", config.tls_key,
            is_locked ? "needs a passphrase: give a key without one" : "its key can't be decoded");
    }
    // The first certificate is this host's; those behind it lead to the authority.
    const Certificate first = next_certificate(memory_of(*cert));
    const bool fits = first && X509_check_private_key(first.get(), own.get()) == 1;
    ERR_clear_error();
    if (fits) return "";
    return named("cluster.tls_key", config.tls_key,
                 "is not the key of cluster.tls_cert, \"" + config.tls_cert + "\"");
}

}  // namespace fabricd
