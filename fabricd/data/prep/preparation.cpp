#include "fabricd/data/prep/preparation.hpp"

#include <bit>
#include <cstring>
#include <utility>

#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;
using fabricshm::Result;

// The elements of prepared files are little-endian, as this machine's.
static_assert(std::endian::native == std::endian::little);

namespace {

// Rises when a step of this file or of reshape.cpp gives other bytes than before.
constexpr const char* kRevision = "1";
// What the library makes of a text has several times its bytes.
constexpr std::size_t kTextMax = 16 << 20;

}  // namespace

Result<std::shared_ptr<const PrepRules>> PrepRules::open(std::vector<PrepStep> steps,
                                                         std::uint64_t most_pixels) {
    auto rules = std::make_shared<PrepRules>();
    rules->text_ = kRevision;
    for (const PrepStep& step : steps) {
        rules->text_ += "\n" + fabricd::text_of(step);
        if (step.code == StepCode::kDecode) {
            rules->text_ += std::string(" by ") + JpegDecoder::version();
        }
        if (step.code != StepCode::kTokenise) continue;
        FABRIC_TRY(rules->tokeniser_, Tokeniser::open(step.model));
        rules->text_ += " by " + rules->tokeniser_->fingerprint();
    }
    rules->steps_ = std::move(steps);
    rules->most_pixels_ = most_pixels;
    return std::shared_ptr<const PrepRules>(std::move(rules));
}

std::size_t PrepRules::fixed_bytes() const noexcept {
    const auto shape = fixed_shape(steps_);
    if (!shape) return 0;
    return kNpyHeader + std::size_t{shape->size.height} * shape->size.width * shape->channels;
}

// A cut that follows says which pixels are needed at all.
Result<void> Preparation::resize(const PrepStep& step, const PrepStep* next) {
    const PictureSize whole =
        step.size.height != 0 ? step.size : size_of_shorter(picture_.size(), step.size.width);
    if (std::uint64_t{whole.height} * whole.width > rules_->most_pixels()) {
        return explain({Errc::kNoMemory, 0, "resize"},
                       "resized it has %u x %u pixels, more than pixels allows", whole.width,
                       whole.height);
    }
    PictureWindow window{0, 0, whole};
    if (next != nullptr && next->code == StepCode::kCentreCrop) {
        window = centre_of(whole, next->size);
    }
    resizer_.resize(picture_, whole, window, other_);
    std::swap(picture_, other_);
    return {};
}

Result<void> Preparation::change_picture() {
    const auto& steps = rules_->steps();
    for (std::size_t at = 1; at < steps.size(); ++at) {
        const PrepStep* const next = at + 1 < steps.size() ? &steps[at + 1] : nullptr;
        if (steps[at].code == StepCode::kResize) FABRIC_TRY_VOID(resize(steps[at], next));
        if (steps[at].code != StepCode::kCentreCrop) continue;
        if (picture_.size() == steps[at].size) continue;
        centre_crop(picture_, steps[at].size, other_);
        std::swap(picture_, other_);
    }
    return {};
}

Result<void> Preparation::run_tokenise(std::span<const std::byte> file,
                                       std::vector<std::byte>& result) {
    if (file.size() > kTextMax) {
        return explain({Errc::kNoMemory, 0, "tokenise"}, "a text of more than 16 MiB");
    }
    const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
    FABRIC_TRY_VOID(rules_->tokeniser().encode(text, tokens_));
    const std::size_t bytes = tokens_.size() * sizeof tokens_[0];
    result.resize(kNpyHeader + bytes);
    write_npy_header({"<i4", {tokens_.size()}}, result);
    if (bytes != 0) std::memcpy(result.data() + kNpyHeader, tokens_.data(), bytes);
    return {};
}

Result<void> Preparation::run(std::span<const std::byte> file, std::vector<std::byte>& result) {
    const PrepStep& first = rules_->steps().front();
    if (first.code == StepCode::kTokenise) return run_tokenise(file, result);
    FABRIC_TRY_VOID(jpeg_.decode(file, first.grey, rules_->most_pixels(), picture_));
    FABRIC_TRY_VOID(change_picture());
    picture_.finish(result);
    return {};
}

}  // namespace fabricd
