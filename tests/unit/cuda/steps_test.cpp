// Fused steps whose buffers begin at any element: ranks as threads, on the mock's device and on
// CPUs, against a loop that has nothing of the kernels.

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "libfabricshm/base/reason.hpp"
#include "tests/support/mock_gpu/stream_ranks.hpp"

using namespace fabricshm;
using namespace mock_gpu;
using kernels::DType;

namespace {

constexpr Bytes kFactorsAt = kBuffersAt - 4096;
constexpr double kRate = 0.5;

// Small whole numbers and halves: every type has them exactly.
std::uint32_t bits_of(DType type, double value) {
    const bool is_negative = value < 0;
    double rest = is_negative ? -value : value;
    if (rest == 0) return 0;
    int exponent = 0;
    for (; rest >= 2; rest /= 2) ++exponent;
    for (; rest < 1; rest *= 2) --exponent;
    const int mantissa = type == DType::kF32 ? 23 : type == DType::kF16 ? 10 : 7;
    const int exponent_bits = type == DType::kF16 ? 5 : 8;
    const std::uint32_t bias = (1U << (exponent_bits - 1)) - 1;
    auto bits = static_cast<std::uint32_t>((rest - 1) * (1 << mantissa));
    bits |= (static_cast<std::uint32_t>(exponent) + bias) << mantissa;
    return bits | static_cast<std::uint32_t>(is_negative) << (exponent_bits + mantissa);
}

Bytes width_of(DType type) {
    return type == DType::kF32 ? 4 : 2;
}

void write(std::byte* buffer, DType type, std::uint64_t index, double value) {
    const std::uint32_t bits = bits_of(type, value);
    std::memcpy(buffer + index * width_of(type), &bits, width_of(type));
}

bool is_there(const std::byte* buffer, DType type, std::uint64_t index, double value) {
    const std::uint32_t bits = bits_of(type, value);
    return std::memcmp(buffer + index * width_of(type), &bits, width_of(type)) == 0;
}

double gradient_of(int rank, std::uint64_t i) {
    return static_cast<double>((static_cast<std::uint64_t>(rank) * 5 + i * 3) % 9) - 4;
}
double parameter_of(std::uint64_t i) {
    return static_cast<double>(i % 41) - 20;
}

struct Case {
    DType gradient;
    DType publish;
    std::uint64_t total;
    std::uint64_t first;  // of rank 0: elements [0, first), the others share the rest
    Bytes shift;          // of every buffer, in elements of its own
    Where where;
};

gpu::DeviceStep step_of(const Case& one, Ranks& ranks, int rank) {
    std::byte* memory = ranks.own(rank, one.where);
    gpu::DeviceStep step;
    step.rule = kernels::Rule::kSgd;
    step.gradient_type = one.gradient;
    step.publish_type = one.publish;
    step.total = one.total;
    const auto others = static_cast<std::uint64_t>(ranks.world - 1);
    const std::uint64_t rest = one.total - one.first;
    const auto place = static_cast<std::uint64_t>(rank);
    step.begin = rank == 0 ? 0 : one.first + rest * (place - 1) / others;
    step.count = (rank == 0 ? one.first : one.first + rest * place / others) - step.begin;
    if (ranks.world == 1) step.count = one.total;
    step.factors = ranks.base + kFactorsAt;
    step.gradient = memory + one.shift * width_of(one.gradient);
    step.publish = memory + 32 * kKiB + one.shift * width_of(one.publish);
    step.parameters = memory + 64 * kKiB + one.shift * sizeof(float);
    return step;
}

bool step_is_right(const Case& one, Ranks& ranks, int rank, gpu::DeviceGroup& group) {
    const gpu::DeviceStep step = step_of(one, ranks, rank);
    auto* gradient = static_cast<std::byte*>(const_cast<void*>(step.gradient));
    auto* parameters = static_cast<std::byte*>(step.parameters);
    const auto* publish = static_cast<const std::byte*>(step.publish);
    for (std::uint64_t i = 0; i < one.total; ++i) {
        write(gradient, one.gradient, i, gradient_of(rank, i));
    }
    for (std::uint64_t i = 0; i < step.count; ++i) {
        write(parameters, DType::kF32, i, parameter_of(step.begin + i));
    }
    if (!group.step(step, nullptr).ok() || !group.status().ok()) return false;
    const auto moved = [&](std::uint64_t i) {
        double sum = 0;
        for (int other = 0; other < ranks.world; ++other) sum += gradient_of(other, i);
        return parameter_of(i) - kRate * sum;
    };
    for (std::uint64_t i = 0; i < one.total; ++i) {
        if (!is_there(publish, one.publish, i, moved(i))) return false;
    }
    for (std::uint64_t i = 0; i < step.count; ++i) {
        if (!is_there(parameters, DType::kF32, i, moved(step.begin + i))) return false;
    }
    return true;
}

void put_factors(Ranks& ranks) {
    kernels::Hyper hyper;
    hyper.learning_rate = kRate;
    const auto factors = kernels::make_step_factors(kernels::Rule::kSgd, hyper, 1);
    std::memcpy(ranks.base + kFactorsAt, &factors, sizeof factors);
}

constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

}  // namespace

TEST_SUITE("cuda.steps") {
    TEST_CASE("buffers of a step begin at any element, of every pair of types") {
        for (const int world : {1, 3}) {
            for (const unsigned int cpus : {0b00U, 0b01U}) {
                Ranks ranks(world, std::chrono::seconds(60), cpus);
                put_factors(ranks);
                std::vector<int> wrong(static_cast<std::size_t>(world));
                ranks.run([&](int rank, gpu::DeviceGroup& group) {
                    for (const DType gradient : kTypes) {
                        for (const DType publish : kTypes) {
                            for (const Bytes shift : {0, 1, 3}) {
                                for (const Where where : {Where::kPool, Where::kDevice}) {
                                    for (const std::uint64_t total : {5, 333}) {
                                        const Case one{gradient,  publish, total,
                                                       total / 3, shift,   where};
                                        if (!step_is_right(one, ranks, rank, group)) {
                                            ++wrong[static_cast<std::size_t>(rank)];
                                        }
                                    }
                                }
                            }
                        }
                    }
                });
                for (const int count : wrong) CHECK(count == 0);
            }
        }
    }

    TEST_CASE("a step with a buffer between two elements is refused by name, and goes nowhere") {
        Ranks ranks(1);
        put_factors(ranks);
        const Case one{DType::kF32, DType::kBF16, 5, 5, 0, Where::kPool};
        const auto refuses = [&](const char* name, auto change) {
            gpu::DeviceStep step = step_of(one, ranks, 0);
            change(step);
            const auto refused = ranks.groups[0]->step(step, nullptr);
            CHECK(refused.error().code == Errc::kInvalid);
            CHECK(std::string(reason_of(refused.error())).find(name) == 0);
        };
        const auto moved = [](const void* pointer, Bytes bytes) {
            return static_cast<std::byte*>(const_cast<void*>(pointer)) + bytes;
        };
        refuses("gradient", [&](auto& step) { step.gradient = moved(step.gradient, 2); });
        refuses("publish", [&](auto& step) { step.publish = moved(step.publish, 1); });
        refuses("parameters", [&](auto& step) { step.parameters = moved(step.parameters, 2); });
        refuses("factors", [&](auto& step) { step.factors = moved(step.factors, 1); });
        CHECK(ranks.host.launches.empty());
        CHECK(ranks.groups[0]->status().ok());
    }
}
