// Resizing against means by real numbers, and each instruction set against the scalar one. Pillow's
// own bits are compared in python.prep.pictures.

#include "kernels/resize.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/kernel_set.hpp"

using namespace kernels;

namespace {

struct Axis {
    Axis(std::int32_t inputs, std::int32_t outputs, std::int32_t from, std::int32_t wanted) {
        axis.outputs = wanted;
        axis.taps = resize_taps(inputs, outputs);
        memory.resize(static_cast<std::size_t>(wanted * (axis.taps + 2)));
        std::vector<double> work(static_cast<std::size_t>(axis.taps));
        axis.first = memory.data();
        axis.count = axis.first + wanted;
        axis.weights = axis.count + wanted;
        fill_resize_axis(inputs, outputs, from, work.data(), axis);
    }
    std::vector<std::int32_t> memory;
    ResizeAxis axis;
};

std::vector<std::uint8_t> noise(std::size_t bytes, std::mt19937& random) {
    std::vector<std::uint8_t> pixels(bytes);
    for (auto& pixel : pixels) pixel = static_cast<std::uint8_t>(random());
    return pixels;
}

// The mean below a triangle as wide as an output, around its middle.
double mean_at(const std::vector<std::uint8_t>& line, std::int32_t outputs, std::int32_t output) {
    const double scale = static_cast<double>(line.size()) / outputs;
    const double reach = std::max(scale, 1.0);
    double sum = 0, weights = 0;
    for (std::size_t input = 0; input < line.size(); ++input) {
        const double distance =
            std::fabs(static_cast<double>(input) + 0.5 - (output + 0.5) * scale) / reach;
        if (distance >= 1) continue;
        sum += (1 - distance) * line[input];
        weights += 1 - distance;
    }
    return sum / weights;
}

}  // namespace

TEST_SUITE("kernels.resize") {
    TEST_CASE("each output is the mean below a triangle, rounded") {
        std::mt19937 random(1);
        for (const std::int32_t inputs : {1, 2, 7, 100, 375}) {
            for (const std::int32_t outputs : {1, 2, 5, 64, 100, 301}) {
                CAPTURE(inputs);
                CAPTURE(outputs);
                const auto line = noise(static_cast<std::size_t>(inputs), random);
                const Axis axis(inputs, outputs, 0, outputs);
                std::vector<std::uint8_t> across(static_cast<std::size_t>(outputs)), down = across;
                resize_rows({line.data(), across.data(), 1, inputs, 1}, axis.axis);
                std::int32_t sum = 0;
                resize_columns({line.data(), down.data(), 0, 1, 1}, axis.axis, 0, &sum);
                CHECK(across == down);
                for (std::int32_t i = 0; i < outputs; ++i) {
                    CHECK(std::fabs(across[static_cast<std::size_t>(i)] -
                                    mean_at(line, outputs, i)) <= 0.501);
                }
            }
        }
    }

    TEST_CASE("a part of the outputs is that part of all") {
        std::mt19937 random(2);
        const auto line = noise(97, random);
        const Axis all(97, 41, 0, 41), part(97, 41, 13, 20);
        std::vector<std::uint8_t> whole(41), some(20);
        resize_rows({line.data(), whole.data(), 1, 97, 1}, all.axis);
        resize_rows({line.data(), some.data(), 1, 97, 1}, part.axis);
        CHECK(std::equal(some.begin(), some.end(), whole.begin() + 13));
    }

    TEST_CASE("every instruction set has the bits of the scalar one") {
        std::mt19937 random(3);
        const KernelSet& scalar = *kernel_set(0);
        for (int turn = 0; turn < 200; ++turn) {
            const auto below = [&random](unsigned most) {
                return static_cast<std::int32_t>(1 + random() % most);
            };
            const std::int32_t width = below(60), height = below(60), channels = below(4);
            const std::int32_t wide = below(80), high = below(80);
            const Axis rows(width, wide, 0, wide), columns(height, high, 0, high);
            const auto pixels = noise(static_cast<std::size_t>(width * height * channels), random);
            std::vector<std::uint8_t> expected;
            for (int i = 0; const KernelSet* set = kernel_set(i); ++i) {
                if (!set->available()) continue;
                std::vector<std::uint8_t> between(
                    static_cast<std::size_t>(wide * height * channels));
                std::vector<std::uint8_t> result(static_cast<std::size_t>(wide * high * channels));
                std::vector<std::int32_t> sums(static_cast<std::size_t>(wide * channels));
                set->resize->rows({pixels.data(), between.data(), height, width, channels},
                                  rows.axis);
                set->resize->columns({between.data(), result.data(), 0, wide, channels},
                                     columns.axis, 0, sums.data());
                if (set == &scalar) expected = result;
                CHECK(result == expected);
            }
        }
    }
}
