#include "fabricd/data/prep/jpeg.hpp"

#include "libfabricshm/base/reason.hpp"

#ifdef FABRIC_PREP_JPEG
#include <turbojpeg.h>

#include <cstring>
#endif

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;
using fabricshm::Result;

#ifdef FABRIC_PREP_JPEG

namespace {

constexpr const char* kStep = "decode JPEG";

// A file of megabytes may have thousands of passes over each pixel: TJFLAG_LIMITSCANS allows 500.
constexpr int kFlags = TJFLAG_LIMITSCANS;

// What the library warns of, and Pillow takes as well: bytes that belong to nothing.
bool is_harmless(const char* warning) {
    return std::strstr(warning, "extraneous bytes before marker") != nullptr;
}

// What the library says of a picture whose components have other shares of the samples than it
// knows.
bool is_of_sampling(const char* problem) {
    return std::strstr(problem, "determine subsampling type") != nullptr;
}

// The product of two shares of 255, rounded as Pillow rounds it.
std::uint32_t product(std::uint32_t a, std::uint32_t b) {
    const std::uint32_t sum = a * b + 128;
    return ((sum >> 8) + sum) >> 8;
}

// Inks are stored inverted, as Adobe does and Pillow assumes.
void add_inks(const std::vector<std::uint8_t>& inks, std::uint8_t* to) {
    for (std::size_t at = 0; at < inks.size(); at += 4) {
        const std::uint32_t light = inks[at + 3];
        for (std::size_t ink = 0; ink < 3; ++ink) {
            const std::uint32_t dark = product(255U - inks[at + ink], light);
            *to++ = static_cast<std::uint8_t>(light > dark ? light - dark : 0U);
        }
    }
}

// Pillow's weights for red, green and blue.
void make_grey(PreparedPicture& picture) {
    const std::uint8_t* from = picture.pixels();
    std::uint8_t* to = picture.pixels();
    const std::size_t pixels = picture.bytes() / 3;
    for (std::size_t pixel = 0; pixel < pixels; ++pixel, from += 3) {
        *to++ = static_cast<std::uint8_t>(
            (from[0] * 19595U + from[1] * 38470U + from[2] * 7471U + 0x8000U) >> 16);
    }
    picture.reshape(picture.size(), 1);
}

const unsigned char* start_of(std::span<const std::byte> file) {
    return reinterpret_cast<const unsigned char*>(file.data());
}

}  // namespace

JpegDecoder::JpegDecoder() = default;

JpegDecoder::~JpegDecoder() {
    if (library_ != nullptr) tjDestroy(library_);
}

bool JpegDecoder::is_built() noexcept {
    return true;
}

const char* JpegDecoder::version() noexcept {
    return FABRIC_PREP_JPEG;
}

Result<JpegDecoder::Header> JpegDecoder::read_header(std::span<const std::byte> file,
                                                     std::uint64_t most_pixels) {
    if (library_ == nullptr) {
        return explain({Errc::kNoMemory, 0, kStep}, "libjpeg-turbo has no memory");
    }
    int width = 0, height = 0, subsampling = 0, colours = 0;
    // It writes nothing there, but its oldest interface has no const.
    if (file.empty() || tjDecompressHeader3(library_, start_of(file), file.size(), &width, &height,
                                            &subsampling, &colours) != 0) {
        const char* const text = file.empty() ? "it is empty" : tjGetErrorStr2(library_);
        if (is_of_sampling(text)) {
            return explain({Errc::kUnsupported, 0, kStep},
                           "a JPEG whose colours are sampled in a way that libturbojpeg does not "
                           "decode; saved without subsampling it can be prepared");
        }
        return explain({Errc::kCorrupt, 0, kStep}, "no JPEG: %s", text);
    }
    const auto pixels = static_cast<std::uint64_t>(width) * static_cast<std::uint64_t>(height);
    if (width < 1 || height < 1) {
        return explain({Errc::kCorrupt, 0, kStep}, "no JPEG: it ends before its picture");
    }
    if (pixels > most_pixels) {
        return explain({Errc::kNoMemory, 0, kStep},
                       "%d x %d pixels are more than the %llu that pixels allows", width, height,
                       static_cast<unsigned long long>(most_pixels));
    }
    Header header;
    header.size = {static_cast<std::uint32_t>(height), static_cast<std::uint32_t>(width)};
    header.is_grey = colours == TJCS_GRAY;
    header.is_cmyk = colours == TJCS_CMYK || colours == TJCS_YCCK;
    return header;
}

Result<void> JpegDecoder::decode_as(std::span<const std::byte> file, int format, PictureSize size,
                                    std::uint8_t* pixels) {
    const int failed =
        tjDecompress2(library_, start_of(file), file.size(), pixels, static_cast<int>(size.width),
                      0, static_cast<int>(size.height), format, kFlags);
    if (failed == 0) return {};
    const char* const text = tjGetErrorStr2(library_);
    if (tjGetErrorCode(library_) == TJERR_WARNING && is_harmless(text)) return {};
    return explain({Errc::kCorrupt, 0, kStep}, "damaged JPEG: %s", text);
}

Result<void> JpegDecoder::decode(std::span<const std::byte> file, bool grey,
                                 std::uint64_t most_pixels, PreparedPicture& picture) {
    // A file that lacks its tables would get those of the file before: what comes of a file must
    // not depend on what came before it.
    if (library_ != nullptr) tjDestroy(library_);
    library_ = tjInitDecompress();
    FABRIC_TRY(const Header header, read_header(file, most_pixels));
    if (header.is_grey && grey) {
        picture.reshape(header.size, 1);
        return decode_as(file, TJPF_GRAY, header.size, picture.pixels());
    }
    picture.reshape(header.size, 3);
    if (header.is_cmyk) {
        inks_.resize(picture.bytes() / 3 * 4);
        FABRIC_TRY_VOID(decode_as(file, TJPF_CMYK, header.size, inks_.data()));
        add_inks(inks_, picture.pixels());
    } else {
        FABRIC_TRY_VOID(decode_as(file, TJPF_RGB, header.size, picture.pixels()));
    }
    if (grey) make_grey(picture);
    return {};
}

#else

JpegDecoder::JpegDecoder() = default;
JpegDecoder::~JpegDecoder() = default;

bool JpegDecoder::is_built() noexcept {
    return false;
}

const char* JpegDecoder::version() noexcept {
    return "";
}

Result<void> JpegDecoder::decode(std::span<const std::byte>, bool, std::uint64_t,
                                 PreparedPicture&) {
    return explain({Errc::kUnsupported, 0, "decode JPEG"},
                   "this build has no libjpeg-turbo (package libturbojpeg0-dev)");
}

#endif

}  // namespace fabricd
