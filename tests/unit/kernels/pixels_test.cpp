// Pixels as numbers, against the formula written here once more.

#include "kernels/pixels.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/half.hpp"

using namespace kernels;

namespace {

constexpr float kMeans[] = {0.485F, 0.456F, 0.406F, 0.0F};
constexpr float kDeviations[] = {0.229F, 0.224F, 0.225F, 1.0F};

std::uint32_t bits_of(DType type, float number) {
    if (type == DType::kF16) return f32_to_f16(number);
    if (type == DType::kBF16) return f32_to_bf16(number);
    return bits_as<std::uint32_t>(number);
}

}  // namespace

TEST_SUITE("kernels.pixels") {
    TEST_CASE("a picture, cut and flipped by its strides, has the numbers of the formula") {
        std::mt19937 random(1);
        constexpr std::int32_t kHeight = 9, kWidth = 14;
        for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
            const std::size_t size = size_of(type);
            for (int turn = 0; turn < 48; ++turn) {
                const bool planes = turn % 2 == 0, flipped = turn % 4 < 2;
                const std::int32_t channels = 1 + turn % 4;
                std::vector<std::uint8_t> picture(kHeight * kWidth * 4);
                for (auto& pixel : picture) pixel = static_cast<std::uint8_t>(random());
                std::vector<std::byte> tables(size * kPixelValues * 4);
                for (int channel = 0; channel < channels; ++channel) {
                    fill_pixel_table(type, kMeans[channel], kDeviations[channel],
                                     tables.data() + size * kPixelValues * channel);
                }
                const std::int32_t top = 2, left = 3, height = 5, width = 8;
                const std::int32_t first = flipped ? left + width - 1 : left;
                PixelJob job;
                job.type = type;
                job.source = picture.data() + (top * kWidth + first) * channels;
                job.row_stride = kWidth * channels;
                job.pixel_stride = flipped ? -channels : channels;
                job.height = height;
                job.width = width;
                job.channels = channels;
                job.tables = tables.data();
                job.planes = planes;
                std::vector<std::byte> result(size * height * width * channels);
                job.destination = result.data();
                map_pixels(job);
                for (std::int32_t place = 0; place < height * width * channels; ++place) {
                    const std::int32_t channel =
                        planes ? place / (height * width) : place % channels;
                    const std::int32_t pixel = planes ? place % (height * width) : place / channels;
                    const std::int32_t row = pixel / width, column = pixel % width;
                    const std::int32_t from = flipped ? left + width - 1 - column : left + column;
                    const std::uint8_t value =
                        picture[((top + row) * kWidth + from) * channels + channel];
                    const float number = (static_cast<float>(value) / 255.0F - kMeans[channel]) /
                                         kDeviations[channel];
                    std::uint32_t bits = 0;
                    std::memcpy(&bits, result.data() + size * place, size);
                    CHECK(bits == bits_of(type, number));
                }
            }
        }
    }
}
