#include "fabricd/data/prep/steps.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "fabricd/data/prep/jpeg.hpp"
#include "fabricd/data/prep/tokeniser.hpp"

namespace fabricd {

namespace {

constexpr std::size_t kModelPathBytes = 1024;

const char* unless(bool built, const char* package) {
    return built ? nullptr : package;
}

const StepRow& row_of(StepCode code) {
    const auto rows = step_rows();
    return *std::find_if(rows.begin(), rows.end(),
                         [code](const StepRow& row) { return row.code == code; });
}

const char* name_of(StepForm form) {
    switch (form) {
        case StepForm::kFile:
            return "a file";
        case StepForm::kPicture:
            return "a picture";
        case StepForm::kTokens:
            break;
    }
    return "tokens";
}

// A whole number and nothing else; 0: it is none, or out of range.
std::uint32_t side_of(std::string_view text) {
    std::uint32_t side = 0;
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, side);
    const bool is_whole = read.ec == std::errc() && read.ptr == end;
    return is_whole && side <= kPictureSideMax ? side : 0;
}

// "HxW", or one number; what that means is the step's.
bool read_size(std::string_view text, StepCode code, PictureSize& size) {
    const std::size_t cross = text.find('x');
    if (cross != text.npos) {
        size = {side_of(text.substr(0, cross)), side_of(text.substr(cross + 1))};
        return size.height != 0 && size.width != 0;
    }
    size.width = side_of(text);
    size.height = code == StepCode::kResize ? 0 : size.width;
    return size.width != 0;
}

bool read_arguments(std::string_view text, PrepStep& step) {
    switch (step.code) {
        case StepCode::kDecode:
            step.grey = text == "grey";
            return text.empty() || step.grey;
        case StepCode::kResize:
        case StepCode::kCentreCrop:
            return read_size(text, step.code, step.size);
        case StepCode::kTokenise:
            step.model = text;
            return text.size() <= kModelPathBytes && text.starts_with('/') &&
                   text.find('\0') == text.npos;
        case StepCode::kAugment:
        case StepCode::kNormalise:
            break;
    }
    return true;
}

// `before` is what stands in front of it.
std::optional<StepMistake> read_step(const std::string& text, StepForm before, PrepStep& step) {
    const std::size_t blank = std::min(text.find(' '), text.size());
    const std::string name = text.substr(0, blank);
    const auto rows = step_rows();
    const auto row = std::find_if(rows.begin(), rows.end(),
                                  [&name](const StepRow& known) { return name == known.name; });
    if (row == rows.end()) return StepMistake{0, "there is no step of that name", name};
    if (!row->once) {
        return StepMistake{0,
                           name +
                               " differs from epoch to epoch or makes a file larger, and is not "
                               "kept: it belongs into the reader (fabricshm.prepare)",
                           ""};
    }
    if (row->missing != nullptr) {
        return StepMistake{0, name + " is not in this build (package " + row->missing + ")", ""};
    }
    step.code = row->code;
    const std::size_t begin = std::min(text.find_first_not_of(' ', blank), text.size());
    if (!read_arguments(std::string_view(text).substr(begin), step)) {
        return StepMistake{0, name + " takes " + row->arguments, ""};
    }
    if (row->takes != before) {
        return StepMistake{
            0, name + " needs " + name_of(row->takes) + ", and gets " + name_of(before) + " here",
            ""};
    }
    return std::nullopt;
}

}  // namespace

std::span<const StepRow> step_rows() {
    using enum StepCode;
    constexpr StepForm kFile = StepForm::kFile, kPicture = StepForm::kPicture;
    static const StepRow kRows[] = {
        {kDecode, "decode", "nothing, or \"grey\"", kFile, kPicture, true,
         unless(JpegDecoder::is_built(), "libturbojpeg0-dev"),
         "a JPEG as bytes of red, green and blue, or of grey"},
        {kResize, "resize", "N (the shorter side) or HxW, 1 to 16384", kPicture, kPicture, true,
         nullptr, "another size, with the pixels of Pillow's BILINEAR, which has antialias"},
        {kCentreCrop, "centre-crop", "N or HxW, 1 to 16384", kPicture, kPicture, true, nullptr,
         "what is in the middle; black around a picture that is smaller"},
        {kTokenise, "tokenise", "the path of a model of SentencePiece", kFile, StepForm::kTokens,
         true, unless(Tokeniser::is_built(), "libsentencepiece-dev"),
         "a text as numbers of 32 bits"},
        {kAugment, "augment", "", kPicture, kPicture, false, nullptr, "in the reader"},
        {kNormalise, "normalise", "", kPicture, kPicture, false, nullptr, "in the reader"},
    };
    return kRows;
}

std::optional<StepMistake> parse_steps(const std::vector<std::string>& texts,
                                       std::vector<PrepStep>& steps) {
    if (texts.empty() || texts.size() > kStepsMax) {
        return StepMistake{0, "there are 1 to 16 steps", ""};
    }
    std::vector<PrepStep> found(texts.size());
    StepForm form = StepForm::kFile;
    for (std::size_t at = 0; at < texts.size(); ++at) {
        if (auto bad = read_step(texts[at], form, found[at])) {
            bad->step = at;
            return bad;
        }
        form = row_of(found[at].code).gives;
    }
    steps = std::move(found);
    return std::nullopt;
}

std::string text_of(const PrepStep& step) {
    const std::string name = row_of(step.code).name;
    const std::string size =
        std::to_string(step.size.height) + "x" + std::to_string(step.size.width);
    switch (step.code) {
        case StepCode::kDecode:
            return name + (step.grey ? " grey" : "");
        case StepCode::kResize:
            return name + " " + (step.size.height == 0 ? std::to_string(step.size.width) : size);
        case StepCode::kCentreCrop:
            return name + " " + size;
        case StepCode::kTokenise:
            return name + " " + step.model;
        case StepCode::kAugment:
        case StepCode::kNormalise:
            break;
    }
    return name;
}

std::optional<FixedShape> fixed_shape(const std::vector<PrepStep>& steps) {
    std::optional<FixedShape> shape;
    std::uint32_t channels = 0;
    for (const PrepStep& step : steps) {
        if (step.code == StepCode::kDecode) channels = step.grey ? 1 : 3;
        if (step.code != StepCode::kResize && step.code != StepCode::kCentreCrop) continue;
        // Only a cut and a resize to both sides end with one size for all.
        shape.reset();
        if (step.size.height != 0) shape = FixedShape{step.size, channels};
    }
    return shape;
}

}  // namespace fabricd
