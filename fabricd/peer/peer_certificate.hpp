// Whether a peer's certificate has the name by which the peer calls itself.

#pragma once

#include <string>
#include <vector>

namespace fabricd {

/// Names of a certificate that was verified.
struct CertificateNames {
    bool has_alternatives = false;          // a subjectAltName, of whatever kind
    std::vector<std::string> hosts;         // DNS names and addresses of it
    std::vector<std::string> common_names;  // of the subject
};

/// As RFC 6125 and 9525 have it: where there is a subjectAltName its names alone count. The common
/// name is for certificates without one. Letters have to be the same: names of hosts are.
bool has_name(const CertificateNames& names, const std::string& host);

}  // namespace fabricd
