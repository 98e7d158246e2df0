// JPEG files as pictures, by libjpeg-turbo: the pixels that Pillow gets of the same library.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fabricd/data/prep/picture.hpp"
#include "libfabricshm/base/result.hpp"

namespace fabricd {

/// Used by one thread at a time; each keeps the memory of its last picture.
class JpegDecoder {
  public:
    JpegDecoder();
    ~JpegDecoder();
    JpegDecoder(const JpegDecoder&) = delete;
    JpegDecoder& operator=(const JpegDecoder&) = delete;

    /// Whether this build has libjpeg-turbo; without it all others give kUnsupported.
    static bool is_built() noexcept;
    /// The library's version, "" without it.
    static const char* version() noexcept;

    /// Decodes to three channels, or one of grey. The size in the header is compared with
    /// `most_pixels` before any memory is taken: kNoMemory. kCorrupt: no JPEG, or one that is
    /// damaged or cut off; kUnsupported: its colours
    /// are sampled in a way that libturbojpeg does not decode. Superfluous bytes between its parts,
    /// which many cameras write, are no damage. The orientation of EXIF is not applied, as Pillow
    /// does not.
    fabricshm::Result<void> decode(std::span<const std::byte> file, bool grey,
                                   std::uint64_t most_pixels, PreparedPicture& picture);

  private:
    struct Header {
        PictureSize size;
        bool is_grey = false;
        bool is_cmyk = false;
    };

    fabricshm::Result<Header> read_header(std::span<const std::byte> file,
                                          std::uint64_t most_pixels);
    fabricshm::Result<void> decode_as(std::span<const std::byte> file, int format, PictureSize size,
                                      std::uint8_t* pixels);

    void* library_ = nullptr;         // its tjhandle
    std::vector<std::uint8_t> inks_;  // of a picture of four inks
};

}  // namespace fabricd
