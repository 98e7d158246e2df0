// The certificates of [cluster], read once when the daemon starts: what is wrong with a file is
// reported then, by its key, and not by the first peer that can't connect.

#pragma once

#include <string>

#include "fabricd/net/cluster_config.hpp"
#include "libfabricshm/base/result.hpp"

namespace fabricd {

/// Reads a PEM file with at least one `content` in it ("CERTIFICATE", "PRIVATE KEY"). kInvalid
/// names `key`, which is one of the configuration, and the file.
fabricshm::Result<std::string> read_pem(const char* key, const std::string& path,
                                        const char* content);

/// "", or what is wrong with the named files: one that can't be read or decoded, a key that needs a
/// passphrase, a key of another certificate. Fine where none is named. Some milliseconds.
std::string check_tls_files(const ClusterConfig& config);

}  // namespace fabricd
