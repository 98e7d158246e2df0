// Texts as numbers of tokens, by SentencePiece.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libfabricshm/base/result.hpp"

namespace fabricd {

/// A model in memory. All threads may use it.
class Tokeniser {
  public:
    virtual ~Tokeniser() = default;

    /// Whether this build has SentencePiece; without it open() gives kUnsupported.
    static bool is_built() noexcept;

    /// kNotFound: the file is not there or can't be read. kCorrupt: it is no model.
    static fabricshm::Result<std::shared_ptr<const Tokeniser>> open(const std::string& model);

    /// The tokens of a text, of any bytes. kCorrupt: the library refuses it.
    virtual fabricshm::Result<void> encode(std::string_view text,
                                           std::vector<std::int32_t>& tokens) const = 0;

    /// Another model, or another version of the library, has another fingerprint.
    virtual std::string fingerprint() const = 0;
};

}  // namespace fabricd
