#include "fabricd/data/prep/tokeniser.hpp"

#include "libfabricshm/base/reason.hpp"

#ifdef FABRIC_PREP_TEXT
#include <sentencepiece_processor.h>

#include <fstream>
#include <sstream>

#include "fabricd/data/prep/fingerprint.hpp"
#endif

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;
using fabricshm::Result;

#ifdef FABRIC_PREP_TEXT

namespace {

class SentencePieces : public Tokeniser {
  public:
    Result<void> load(const std::string& model) {
        std::ifstream file(model, std::ios::binary);
        std::ostringstream content;
        if (file) content << file.rdbuf();
        if (!file || file.bad()) {
            return explain({Errc::kNotFound, 0, "open model"}, "%s can't be read", model.c_str());
        }
        const std::string bytes = content.str();
        if (!pieces_.LoadFromSerializedProto(bytes).ok() || pieces_.GetPieceSize() < 1) {
            return explain({Errc::kCorrupt, 0, "open model"}, "%s is no model of SentencePiece",
                           model.c_str());
        }
        fingerprint_ = FABRIC_PREP_TEXT " " + text_of(fingerprint_of(bytes));
        return {};
    }

    Result<void> encode(std::string_view text, std::vector<std::int32_t>& tokens) const override {
        std::vector<int> ids;
        const auto status = pieces_.Encode(text, &ids);
        if (!status.ok()) {
            return explain({Errc::kCorrupt, 0, "tokenise"}, "%s", status.ToString().c_str());
        }
        tokens.assign(ids.begin(), ids.end());
        return {};
    }

    std::string fingerprint() const override { return fingerprint_; }

  private:
    sentencepiece::SentencePieceProcessor pieces_;
    std::string fingerprint_;
};

}  // namespace

bool Tokeniser::is_built() noexcept {
    return true;
}

Result<std::shared_ptr<const Tokeniser>> Tokeniser::open(const std::string& model) {
    auto pieces = std::make_shared<SentencePieces>();
    FABRIC_TRY_VOID(pieces->load(model));
    return std::shared_ptr<const Tokeniser>(std::move(pieces));
}

#else

bool Tokeniser::is_built() noexcept {
    return false;
}

Result<std::shared_ptr<const Tokeniser>> Tokeniser::open(const std::string&) {
    return explain({Errc::kUnsupported, 0, "open model"},
                   "this build has no SentencePiece (package libsentencepiece-dev)");
}

#endif

}  // namespace fabricd
