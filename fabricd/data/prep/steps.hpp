// The steps that prepare a file: one table of them, and lists of them as the data file has them:
// ["decode", "resize 256", "centre-crop 224"].

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fabricd/data/prep/picture.hpp"

namespace fabricd {

enum class StepCode { kDecode, kResize, kCentreCrop, kTokenise, kAugment, kNormalise };

/// What a step takes and gives.
enum class StepForm { kFile, kPicture, kTokens };

struct PrepStep {
    StepCode code = StepCode::kDecode;
    bool grey = false;  // of kDecode
    PictureSize size;   // of kResize and kCentreCrop; height 0: `width` is the shorter side
    std::string model;  // of kTokenise, a file

    bool operator==(const PrepStep&) const = default;
};

struct StepRow {
    StepCode code;
    const char* name;
    const char* arguments;  // for people: what stands behind the name
    StepForm takes;
    StepForm gives;
    bool once;            // the same in every epoch, so that its result may be kept
    const char* missing;  // the package that this build was made without, or nullptr
    const char* help;
};

/// All of them, also those that a list can't have: `once` is false.
std::span<const StepRow> step_rows();

/// What is wrong with a list.
struct StepMistake {
    std::size_t step = 0;  // of the list
    std::string text;
    std::string unknown;  // the name that no step has, or ""
};

inline constexpr std::size_t kStepsMax = 16;

/// Reads a list. The first mistake is given back; `steps` is untouched then.
std::optional<StepMistake> parse_steps(const std::vector<std::string>& texts,
                                       std::vector<PrepStep>& steps);

/// As parse_steps() takes it: one text for all spellings.
std::string text_of(const PrepStep& step);

/// The shape of every result, where the steps say it: height, width and channels.
struct FixedShape {
    PictureSize size;
    std::uint32_t channels = 0;
};
std::optional<FixedShape> fixed_shape(const std::vector<PrepStep>& steps);

}  // namespace fabricd
