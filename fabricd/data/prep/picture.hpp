// A picture in memory: rows from the top, pixels from the left, channels next to each other.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fabricd/data/prep/npy.hpp"

namespace fabricd {

/// Sides of pictures that steps make; those of a JPEG are 65,535 at most.
inline constexpr std::uint32_t kPictureSideMax = 16384;

struct PictureSize {
    std::uint32_t height = 0;
    std::uint32_t width = 0;

    bool operator==(const PictureSize&) const = default;
};

/// Its bytes are those of a prepared file, whose header is still to be written: no copy at the end.
class PreparedPicture {
  public:
    PictureSize size() const noexcept { return size_; }
    std::uint32_t channels() const noexcept { return channels_; }  // 1 grey, 3 red, green, blue
    std::uint8_t* pixels() noexcept {
        return reinterpret_cast<std::uint8_t*>(file_.data()) + kNpyHeader;
    }
    const std::uint8_t* pixels() const noexcept {
        return reinterpret_cast<const std::uint8_t*>(file_.data()) + kNpyHeader;
    }
    std::size_t bytes() const noexcept { return file_.size() - kNpyHeader; }

    /// Room for other content, whose bytes are not set. Keeps the memory that it has.
    void reshape(PictureSize now, std::uint32_t channels_now) {
        size_ = now;
        channels_ = channels_now;
        file_.resize(kNpyHeader + std::size_t{now.height} * now.width * channels_now);
    }

    /// Becomes `file`, with its header, and takes the memory of that.
    void finish(std::vector<std::byte>& file) {
        write_npy_header({"|u1", {size_.height, size_.width, channels_}}, file_);
        file_.swap(file);
    }

  private:
    PictureSize size_;
    std::uint32_t channels_ = 0;
    std::vector<std::byte> file_ = std::vector<std::byte>(kNpyHeader);
};

}  // namespace fabricd
