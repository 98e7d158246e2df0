// Pictures of another size: resized, and cut at their centre. With the pixels that torchvision's
// Resize and CenterCrop give of a Pillow image.

#pragma once

#include <cstdint>
#include <vector>

#include "fabricd/data/prep/picture.hpp"

namespace fabricd {

/// A part of a picture, in pixels.
struct PictureWindow {
    std::uint32_t top = 0;
    std::uint32_t left = 0;
    PictureSize size;
};

/// The size whose shorter side is `side`; the longer one is rounded down, as torchvision does.
PictureSize size_of_shorter(PictureSize now, std::uint32_t side) noexcept;

/// Where a cut of `wanted` lies in a picture of size `now`; as a picture may be smaller, in the
/// direction where it is the window has its whole side.
PictureWindow centre_of(PictureSize now, PictureSize wanted) noexcept;

/// Resizes by a triangle with antialias (Pillow's BILINEAR). Keeps its memory; one thread at a
/// time.
class Resizer {
  public:
    /// The pixels of `window` of what `picture` is when resized to `whole`; others are not
    /// computed.
    void resize(const PreparedPicture& picture, PictureSize whole, const PictureWindow& window,
                PreparedPicture& result);

  private:
    std::vector<std::uint8_t> rows_;
    std::vector<std::int32_t> across_, down_, sums_;
    std::vector<double> work_;
};

/// `picture` in the middle of one of size `wanted`: what is beyond is cut off, what is missing
/// black.
void centre_crop(const PreparedPicture& picture, PictureSize wanted, PreparedPicture& result);

}  // namespace fabricd
