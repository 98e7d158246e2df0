#include "fabricd/data/prep/reshape.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/resize.hpp"

namespace fabricd {

namespace {

// Half of the difference; of two middles the even one, as Python rounds.
std::uint32_t half_of(std::uint32_t difference) {
    const std::uint32_t half = difference / 2;
    return difference % 2 == 0 ? half : half + half % 2;
}

// An axis in memory of ours.
kernels::ResizeAxis make_axis(std::uint32_t inputs, std::uint32_t outputs, std::uint32_t from,
                              std::uint32_t wanted, std::vector<std::int32_t>& memory,
                              std::vector<double>& work) {
    const auto in = static_cast<std::int32_t>(inputs);
    const auto out = static_cast<std::int32_t>(outputs);
    kernels::ResizeAxis axis;
    axis.outputs = static_cast<std::int32_t>(wanted);
    axis.taps = kernels::resize_taps(in, out);
    const auto taps = static_cast<std::size_t>(axis.taps);
    memory.resize(wanted * (taps + 2));
    work.resize(taps);
    axis.first = memory.data();
    axis.count = axis.first + wanted;
    axis.weights = axis.count + wanted;
    kernels::fill_resize_axis(in, out, static_cast<std::int32_t>(from), work.data(), axis);
    return axis;
}

}  // namespace

PictureSize size_of_shorter(PictureSize now, std::uint32_t side) noexcept {
    const std::uint32_t shorter = std::min(now.height, now.width);
    const std::uint64_t longer = std::max(now.height, now.width);
    // The other side may become very long; no JPEG has more of them than can be named.
    const auto other = static_cast<std::uint32_t>(side * longer / shorter);
    return now.height <= now.width ? PictureSize{side, other} : PictureSize{other, side};
}

PictureWindow centre_of(PictureSize now, PictureSize wanted) noexcept {
    PictureWindow window;
    window.size = {std::min(now.height, wanted.height), std::min(now.width, wanted.width)};
    window.top = half_of(now.height - window.size.height);
    window.left = half_of(now.width - window.size.width);
    return window;
}

void Resizer::resize(const PreparedPicture& picture, PictureSize whole, const PictureWindow& window,
                     PreparedPicture& result) {
    const auto across = make_axis(picture.size().width, whole.width, window.left, window.size.width,
                                  across_, work_);
    const auto down = make_axis(picture.size().height, whole.height, window.top, window.size.height,
                                down_, work_);
    // Rows that no output is made of are left out.
    const std::int32_t first = down.first[0];
    const std::int32_t last = down.first[down.outputs - 1] + down.count[down.outputs - 1];
    const auto channels = static_cast<std::int32_t>(picture.channels());
    const std::size_t row = std::size_t{picture.size().width} * picture.channels();
    kernels::ResizeJob job;
    job.source = picture.pixels() + static_cast<std::size_t>(first) * row;
    job.rows = last - first;
    job.width = static_cast<std::int32_t>(picture.size().width);
    job.channels = channels;
    const std::size_t narrow = std::size_t{window.size.width} * picture.channels();
    rows_.resize(static_cast<std::size_t>(job.rows) * narrow);
    job.destination = rows_.data();
    kernels::resize_rows(job, across);

    sums_.resize(narrow);
    result.reshape(window.size, picture.channels());
    job.source = rows_.data();
    job.width = across.outputs;
    job.destination = result.pixels();
    kernels::resize_columns(job, down, first, sums_.data());
}

void centre_crop(const PreparedPicture& picture, PictureSize wanted, PreparedPicture& result) {
    const PictureWindow from = centre_of(picture.size(), wanted);
    result.reshape(wanted, picture.channels());
    const bool has_border = !(from.size == wanted);
    if (has_border) std::memset(result.pixels(), 0, result.bytes());
    // A missing side is split with the larger half behind, as torchvision pads.
    const std::size_t top = (wanted.height - from.size.height) / 2;
    const std::size_t left = (wanted.width - from.size.width) / 2;
    const std::size_t bytes = std::size_t{from.size.width} * picture.channels();
    for (std::size_t row = 0; row < from.size.height; ++row) {
        const std::size_t source = (from.top + row) * picture.size().width + from.left;
        const std::size_t target = (top + row) * wanted.width + left;
        std::memcpy(result.pixels() + target * picture.channels(),
                    picture.pixels() + source * picture.channels(), bytes);
    }
}

}  // namespace fabricd
