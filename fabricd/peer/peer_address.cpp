#include "fabricd/peer/peer_address.hpp"

#include <grpc/support/log.h>

#include <atomic>
#include <chrono>

#include "fabricd/net/tls_files.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Result;

namespace {

// On any thread of gRPC.
void log_line_of_grpc(gpr_log_func_args* line) {
    static std::atomic<std::int64_t> next_warning_s{0};
    const auto now_s =
        std::chrono::duration_cast<std::chrono::seconds>(fabricshm::Clock::now().time_since_epoch())
            .count();
    const bool is_handshake =
        std::string_view(line->message).find("andshake failed") != std::string_view::npos;
    // Relaxed: two warnings at the same moment are no harm.
    const bool warns = is_handshake && now_s >= next_warning_s.load(std::memory_order_relaxed);
    if (warns) next_warning_s.store(now_s + 60, std::memory_order_relaxed);
    fabricshm::log(warns ? fabricshm::LogLevel::kWarning : fabricshm::LogLevel::kDebug,
                   warns ? "a peer's certificate is refused: %s" : "gRPC: %s", line->message);
}

}  // namespace

void take_over_grpc_log() {
    gpr_set_log_function(log_line_of_grpc);
}

std::string check_peer_address(const std::string& key, const std::string& address,
                               const PeerFiles& files) {
    if (is_unix_address(address)) return "";
    const std::size_t colon = address.rfind(':');
    const bool has_port = colon != std::string::npos && colon != 0 && colon + 1 < address.size() &&
                          address.find_first_not_of("0123456789", colon + 1) == std::string::npos;
    if (!has_port || address.find('/') != std::string::npos) {
        return key + ": \"" + address + "\" is no HOST:PORT and no unix:/PATH";
    }
    if (files.ca.empty() || files.cert.empty() || files.key.empty()) {
        return key + ": HOST:PORT needs cluster.tls_ca, cluster.tls_cert and cluster.tls_key";
    }
    return "";
}

Result<std::shared_ptr<grpc::ServerCredentials>> peer_server_credentials(const PeerFiles& files) {
    // A guest without a certificate of the authority is refused before it says anything.
    grpc::SslServerCredentialsOptions options(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    FABRIC_TRY(options.pem_root_certs, read_pem("cluster.tls_ca", files.ca, "CERTIFICATE"));
    grpc::SslServerCredentialsOptions::PemKeyCertPair pair;
    FABRIC_TRY(pair.private_key, read_pem("cluster.tls_key", files.key, "PRIVATE KEY"));
    FABRIC_TRY(pair.cert_chain, read_pem("cluster.tls_cert", files.cert, "CERTIFICATE"));
    options.pem_key_cert_pairs.push_back(std::move(pair));
    return grpc::SslServerCredentials(options);
}

Result<std::shared_ptr<grpc::ChannelCredentials>> peer_channel_credentials(
    const std::string& address, const PeerFiles& files) {
    if (is_unix_address(address)) return grpc::InsecureChannelCredentials();
    grpc::SslCredentialsOptions options;
    FABRIC_TRY(options.pem_root_certs, read_pem("cluster.tls_ca", files.ca, "CERTIFICATE"));
    FABRIC_TRY(options.pem_private_key, read_pem("cluster.tls_key", files.key, "PRIVATE KEY"));
    FABRIC_TRY(options.pem_cert_chain, read_pem("cluster.tls_cert", files.cert, "CERTIFICATE"));
    return grpc::SslCredentials(options);
}

}  // namespace fabricd
