// What a server's answer means, as an error in words: with silo, path, status and the server's id
// of the request; never with a secret.

#pragma once

#include <string>

#include "fabricd/data/silo/http_transfers.hpp"

namespace fabricd {

/// A path for people; of a long one both ends, since the words before it have to fit next to it.
std::string shown_path(const std::string& path);

/// `code`: what the body calls it ("SlowDown"), "": nothing.
std::string web_words(const TransferAnswer& answer, const std::string& code);
fabricshm::Error web_error(const std::string& silo, const TransferAnswer& answer,
                           const std::string& code, const std::string& path, const char* step);

}  // namespace fabricd
