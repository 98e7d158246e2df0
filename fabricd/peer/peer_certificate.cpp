#include "fabricd/peer/peer_certificate.hpp"

#include <algorithm>

namespace fabricd {

bool has_name(const CertificateNames& names, const std::string& host) {
    const auto& counted = names.has_alternatives ? names.hosts : names.common_names;
    return std::find(counted.begin(), counted.end(), host) != counted.end();
}

}  // namespace fabricd
