#include "fabricd/data/silo/sha256.hpp"

#include <openssl/evp.h>

#include "libfabricshm/base/check.hpp"

namespace fabricd {

std::string sha256_text(std::string_view bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    FABRIC_CHECK(EVP_Digest(bytes.data(), bytes.size(), digest, &length, EVP_sha256(), nullptr) ==
                 1);
    std::string text;
    for (unsigned i = 0; i < length; ++i)
        text += {kDigits[digest[i] >> 4], kDigits[digest[i] & 15]};
    return text;
}

}  // namespace fabricd
