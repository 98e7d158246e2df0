// A list of steps at work: the bytes of a file become those of a prepared one.

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fabricd/data/prep/jpeg.hpp"
#include "fabricd/data/prep/npy.hpp"
#include "fabricd/data/prep/reshape.hpp"
#include "fabricd/data/prep/steps.hpp"
#include "fabricd/data/prep/tokeniser.hpp"
#include "libfabricshm/base/result.hpp"

namespace fabricd {

/// What is prepared how: the same for all threads.
class PrepRules {
  public:
    /// Loads what the steps need. `most_pixels` is of a decoded or resized picture.
    static fabricshm::Result<std::shared_ptr<const PrepRules>> open(std::vector<PrepStep> steps,
                                                                    std::uint64_t most_pixels);

    const std::vector<PrepStep>& steps() const noexcept { return steps_; }
    std::uint64_t most_pixels() const noexcept { return most_pixels_; }
    /// Of the step's model.
    const Tokeniser& tokeniser() const noexcept { return *tokeniser_; }
    /// Other steps, models or versions of libraries have another text.
    const std::string& text() const noexcept { return text_; }
    /// Of each prepared file, where all have one size; 0 otherwise.
    std::size_t fixed_bytes() const noexcept;

  private:
    std::vector<PrepStep> steps_;
    std::uint64_t most_pixels_ = 0;
    std::shared_ptr<const Tokeniser> tokeniser_;
    std::string text_;
};

/// One thread's part: what it keeps in memory between two files.
class Preparation {
  public:
    explicit Preparation(std::shared_ptr<const PrepRules> rules) : rules_(std::move(rules)) {}

    /// The prepared file: an array of NumPy (npy.hpp), of bytes (height, width, channels) or of the
    /// tokens' numbers of 32 bits; `result` is changed only then. kCorrupt, kNoMemory: what is
    /// wrong with this file.
    fabricshm::Result<void> run(std::span<const std::byte> file, std::vector<std::byte>& result);

  private:
    fabricshm::Result<void> resize(const PrepStep& step, const PrepStep* next);
    fabricshm::Result<void> change_picture();
    fabricshm::Result<void> run_tokenise(std::span<const std::byte> file,
                                         std::vector<std::byte>& result);

    std::shared_ptr<const PrepRules> rules_;
    JpegDecoder jpeg_;
    Resizer resizer_;
    PreparedPicture picture_, other_;
    std::vector<std::int32_t> tokens_;
};

}  // namespace fabricd
