// Where the daemons of hosts that share a pool reach each other, and by which certificates.

#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "libfabricshm/base/result.hpp"

namespace fabricd {

/// The files of mutual TLS: authority, this host's certificate and its key (PEM).
struct PeerFiles {
    std::string ca;
    std::string cert;
    std::string key;
};

/// A peer that is cut off is noticed without a packet of its own.
inline constexpr int kPeerPingMs = 2000;

/// "unix:/PATH" has no certificates: its mode is 0600, and both ends are of one host.
inline bool is_unix_address(const std::string& address) {
    return address.starts_with("unix:/");
}

/// "" when `address` is unix:/PATH, or HOST:PORT with all three files; else one line that begins
/// with `key`.
std::string check_peer_address(const std::string& key, const std::string& address,
                               const PeerFiles& files);

/// What gRPC would write to standard error goes to the log at level debug, but for handshakes that
/// fail, of which the first in a minute is a warning: it is all that is heard of a peer with a
/// wrong certificate. Idempotent.
void take_over_grpc_log();

/// kNotFound names the file that can't be read.
fabricshm::Result<std::shared_ptr<grpc::ServerCredentials>> peer_server_credentials(
    const PeerFiles& files);
fabricshm::Result<std::shared_ptr<grpc::ChannelCredentials>> peer_channel_credentials(
    const std::string& address, const PeerFiles& files);

}  // namespace fabricd
