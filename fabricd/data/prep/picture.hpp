// A picture in memory: rows from the top, pixels from the left, channels next to each other.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fabricd {

/// Sides of pictures that steps make; those of a JPEG are 65,535 at most.
inline constexpr std::uint32_t kPictureSideMax = 16384;

struct PictureSize {
    std::uint32_t height = 0;
    std::uint32_t width = 0;

    bool operator==(const PictureSize&) const = default;
};

struct Picture {
    PictureSize size;
    std::uint32_t channels = 0;        // 1 grey, 3 red, green, blue
    std::vector<std::uint8_t> pixels;  // height * width * channels

    /// Room for other content, whose bytes are not set. Keeps the memory that it has.
    void reshape(PictureSize now, std::uint32_t channels_now) {
        size = now;
        channels = channels_now;
        pixels.resize(std::size_t{now.height} * now.width * channels_now);
    }
};

}  // namespace fabricd
