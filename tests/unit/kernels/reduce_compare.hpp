// Shared by the reduce tests: buffers with guard bytes, inputs full of special values, and one
// comparison of a kernel set with the scalar reference.

#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cpu/kernel_set.hpp"

namespace kernels_test {

inline constexpr std::size_t kGuard = 128;
inline constexpr unsigned char kGuardByte = 0xa5;

/// A quick source of bits (splitmix64); most of a test's time goes into filling buffers.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t operator()() {
        std::uint64_t mixed = state_ += 0x9e3779b97f4a7c15u;
        mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
        mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
        return mixed ^ (mixed >> 31);
    }

  private:
    std::uint64_t state_;
};

/// `bytes` bytes that start `misalignment` bytes past a cache line, guarded on both sides.
class Buffer {
  public:
    Buffer(std::size_t bytes, std::size_t misalignment)
        : memory_(bytes + misalignment + 2 * kGuard + 64, kGuardByte), bytes_(bytes) {
        const auto address = reinterpret_cast<std::uintptr_t>(memory_.data()) + kGuard;
        start_ = kGuard + (-address % 64) + misalignment;
    }
    unsigned char* data() { return memory_.data() + start_; }
    const unsigned char* data() const { return memory_.data() + start_; }
    std::size_t size() const { return bytes_; }
    bool guards_intact() const {
        for (std::size_t i = 0; i < memory_.size(); ++i) {
            const bool inside = i >= start_ && i < start_ + bytes_;
            if (!inside && memory_[i] != kGuardByte) return false;
        }
        return true;
    }

  private:
    std::vector<unsigned char> memory_;
    std::size_t start_ = 0;
    std::size_t bytes_;
};

template <class T, std::size_t kCount>
void put_special(unsigned char* to, const T (&values)[kCount], unsigned choice) {
    std::memcpy(to, &values[choice % kCount], sizeof(T));
}

/// Writes a special value of `type`: NaNs (quiet, signalling, negative, with payload), infinities,
/// largest, smallest, denormals, both zeros; for integers the ends of the range.
inline void write_special(kernels::DType type, unsigned char* to, unsigned choice) {
    using kernels::DType;
    static const std::uint64_t kF64[] = {
        0x7ff8000000000001, 0x7ff0000000000123, 0xfff8000000000456, 0x7ff0000000000000,
        0xfff0000000000000, 0x7fefffffffffffff, 0xffefffffffffffff, 0x0010000000000000,
        0x0000000000000001, 0x800fffffffffffff, 0x0000000000000000, 0x8000000000000000};
    static const std::uint32_t kF32[] = {0x7fc00001, 0x7f800123, 0xffc00456, 0x7f800000,
                                         0xff800000, 0x7f7fffff, 0xff7fffff, 0x00800000,
                                         0x00000001, 0x807fffff, 0x00000000, 0x80000000};
    static const std::uint16_t kF16[] = {0x7e01, 0x7d23, 0xfe56, 0x7c00, 0xfc00, 0x7bff,
                                         0xfbff, 0x0400, 0x0001, 0x83ff, 0x0000, 0x8000};
    static const std::uint16_t kBF16[] = {0x7fc1, 0x7f83, 0xffc5, 0x7f80, 0xff80, 0x7f7f,
                                          0xff7f, 0x0080, 0x0001, 0x807f, 0x0000, 0x8000};
    static const std::uint64_t kEnds[] = {0,
                                          1,
                                          ~0ull,
                                          0x8080808080808080,
                                          0x7f7f7f7f7f7f7f7f,
                                          0x8000000080000000,
                                          0x7fffffffffffffff,
                                          0x8000000000000000};
    // Few indices, so that equal values often have different ones, and equal ones.
    if (kernels::is_located(type)) {
        const std::int32_t index = static_cast<std::int32_t>(choice / 16 % 3) - 1;
        std::memcpy(to + kernels::size_of(type) / 2, &index, sizeof index);
    }
    switch (type) {
        case DType::kF64:
        case DType::kF64Loc:
            return put_special(to, kF64, choice);
        case DType::kF32Loc:
            return put_special(to, kF32, choice);
        case DType::kF32:
            return put_special(to, kF32, choice);
        case DType::kF16:
            return put_special(to, kF16, choice);
        case DType::kBF16:
            return put_special(to, kBF16, choice);
        case DType::kI32Loc:
            return static_cast<void>(std::memcpy(to, &kEnds[choice % 8], 4));
        case DType::kI64Loc:
            return put_special(to, kEnds, choice);
        default:
            std::memcpy(to, &kEnds[choice % 8], kernels::size_of(type));
    }
}

/// What the elements of an input are.
enum class Content { kRandomBits, kOrdinary, kSpecial };

/// Ordinary values lie near one, where sums round, and neither overflow nor vanish.
inline void write_ordinary(kernels::DType type, unsigned char* to, std::uint64_t random) {
    using kernels::DType;
    const std::uint64_t sign = random >> 63;
    if (kernels::is_located(type)) return write_special(type, to, static_cast<unsigned>(random));
    switch (type) {
        case DType::kF64: {
            const std::uint64_t bits =
                sign << 63 | 0x3fe0000000000000 | (random & 0x1fffffffffffff);
            return static_cast<void>(std::memcpy(to, &bits, 8));
        }
        case DType::kF32: {
            const std::uint32_t bits =
                static_cast<std::uint32_t>(sign << 31 | 0x3f000000 | (random & 0xffffff));
            return static_cast<void>(std::memcpy(to, &bits, 4));
        }
        case DType::kF16: {
            const auto bits = static_cast<std::uint16_t>(sign << 15 | 0x3800 | (random & 0x7ff));
            return static_cast<void>(std::memcpy(to, &bits, 2));
        }
        case DType::kBF16: {
            const auto bits = static_cast<std::uint16_t>(sign << 15 | 0x3f00 | (random & 0xff));
            return static_cast<void>(std::memcpy(to, &bits, 2));
        }
        default:
            std::memcpy(to, &random, kernels::size_of(type));
    }
}

/// One special value among `rarity` when the content is special.
inline void fill(Buffer& buffer, kernels::DType type, Content content, std::uint64_t rarity,
                 Random& random) {
    const std::size_t width = kernels::size_of(type);
    for (std::size_t offset = 0; offset < buffer.size(); offset += width) {
        unsigned char* to = buffer.data() + offset;
        const std::uint64_t value = random();
        if (content == Content::kRandomBits) {
            for (std::size_t at = 0; at < width; at += 8) {
                const std::uint64_t bits = at == 0 ? value : random();
                std::memcpy(to + at, &bits, std::min<std::size_t>(width, 8));
            }
        } else if (content == Content::kOrdinary || value % rarity != 0) {
            write_ordinary(type, to, random());
        } else {
            write_special(type, to, static_cast<unsigned>(value >> 32));
        }
    }
}

struct Case {
    kernels::DType type = kernels::DType::kF32;
    kernels::ReduceOp op = kernels::ReduceOp::kSum;
    std::size_t count = 0;
    int sources = 2;
    int destinations = 1;
    int divisor = 1;
    int in_place = -1;          // the source that is also the first destination, or -1
    bool all_in_place = false;  // destination d is source d
    bool streaming = false;
    int cached_destinations = 0;
    std::size_t source_misalignment = 0;       // of source s: this times (s + 1)
    std::size_t destination_misalignment = 0;  // of destination d: this times (d + 1)
    Content content = Content::kSpecial;
    std::uint64_t seed = 1;

    std::string text() const {
        std::string line;
        const std::pair<const char*, long> parts[] = {
            {"type", static_cast<long>(type)},
            {"op", static_cast<long>(op)},
            {"count", static_cast<long>(count)},
            {"sources", sources},
            {"destinations", destinations},
            {"divisor", divisor},
            {"in_place", in_place},
            {"all_in_place", all_in_place},
            {"streaming", streaming},
            {"cached", cached_destinations},
            {"source+", static_cast<long>(source_misalignment)},
            {"destination+", static_cast<long>(destination_misalignment)},
            {"content", static_cast<long>(content)}};
        for (const auto& [name, value] : parts) {
            line += std::string(name) + "=" + std::to_string(value) + " ";
        }
        return line;
    }
};

/// The buffers of one run of a case; the same seed gives the same inputs.
class Run {
  public:
    Run(const Case& what, std::size_t width) : what_(what) {
        Random random(what.seed);
        // Rarer with more sources, or every sum would be a NaN.
        const std::uint64_t rarity = 1 + static_cast<std::uint64_t>(what.sources) / 2;
        const std::size_t bytes = what.count * width;
        for (int s = 0; s < what.sources; ++s) {
            sources_.emplace_back(bytes, what.source_misalignment * (s + 1) * width % 64);
            fill(sources_.back(), what.type, what.content, rarity, random);
        }
        for (int d = 0; d < what.destinations; ++d) {
            destinations_.emplace_back(bytes, what.destination_misalignment * (d + 1) * width % 64);
        }
    }

    template <class Function>
    void operator()(const Function& reduce) {
        std::vector<const void*> from;
        std::vector<void*> to;
        for (Buffer& source : sources_) from.push_back(source.data());
        for (int d = 0; d < what_.destinations; ++d) {
            const int source = source_at(d);
            to.push_back(source >= 0 ? sources_[source].data() : destinations_[d].data());
        }
        kernels::ReduceJob job;
        job.type = what_.type;
        job.op = what_.op;
        job.sources = from.data();
        job.source_count = what_.sources;
        job.destinations = to.data();
        job.destination_count = what_.destinations;
        job.count = what_.count;
        job.divisor = what_.divisor;
        job.streaming = what_.streaming;
        job.cached_destinations = what_.cached_destinations;
        reduce(job);
    }

    const Buffer& result(int d) const {
        const int source = source_at(d);
        return source >= 0 ? sources_[source] : destinations_[d];
    }
    bool guards_intact() const {
        for (const Buffer& source : sources_) {
            if (!source.guards_intact()) return false;
        }
        for (const Buffer& destination : destinations_) {
            if (!destination.guards_intact()) return false;
        }
        return true;
    }
    bool same_sources_as(const Run& other) const {
        for (std::size_t s = 0; s < sources_.size(); ++s) {
            const int index = static_cast<int>(s);
            const bool written =
                index == what_.in_place || (what_.all_in_place && index < what_.destinations);
            if (written || what_.count == 0) continue;
            if (std::memcmp(sources_[s].data(), other.sources_[s].data(), sources_[s].size()) !=
                0) {
                return false;
            }
        }
        return true;
    }

  private:
    int source_at(int d) const {
        if (what_.all_in_place) return d;
        return d == 0 ? what_.in_place : -1;
    }

    Case what_;
    std::vector<Buffer> sources_, destinations_;
};

/// Runs the case with `reduce` and with the scalar reference. True when every destination has the
/// same bits, the sources are untouched and nothing was written outside.
template <class Function>
bool equals_reference(const Case& what, const Function& reduce) {
    const std::size_t width = kernels::size_of(what.type);
    Run expected(what, width), actual(what, width);
    expected(
        [](const kernels::ReduceJob& job) { kernels::reduce_with(*kernels::kernel_set(0), job); });
    actual(reduce);
    if (!actual.guards_intact() || !expected.guards_intact()) return false;
    if (!actual.same_sources_as(expected)) return false;
    for (int d = 0; d < what.destinations && what.count != 0; ++d) {
        if (std::memcmp(expected.result(0).data(), actual.result(d).data(), what.count * width)) {
            return false;
        }
    }
    return true;
}

/// Runs cases on one kernel set, names those that fail, and checks at the end that none did: a
/// CHECK per case would be most of the test's time.
class Checker {
  public:
    explicit Checker(const kernels::KernelSet* set) : set_(set) {}
    ~Checker() {
        CHECK(failures_ == 0);
        CHECK((cases_ != 0 || set_ == nullptr));
    }

    void operator()(const Case& what) {
        if (set_ == nullptr) return;
        ++cases_;
        const auto reduce = [this](const kernels::ReduceJob& job) {
            kernels::reduce_with(*set_, job);
        };
        if (equals_reference(what, reduce)) return;
        if (++failures_ <= 5) MESSAGE("differs: " << what.text());
    }

  private:
    const kernels::KernelSet* set_;
    int cases_ = 0;
    int failures_ = 0;
};

/// The kernel set called `name`, or nullptr where the processor lacks it.
inline const kernels::KernelSet* available_set(const std::string& name) {
    for (int i = 0; kernels::kernel_set(i) != nullptr; ++i) {
        const kernels::KernelSet* set = kernels::kernel_set(i);
        if (set->name == name && set->available()) return set;
    }
    return nullptr;
}

/// Calls `visit(type, op)` for every pair that has a meaning, of numbers alone or of all types.
template <class Visit>
void for_each_operation(const Visit& visit, bool numbers_only = true) {
    for (int type = 0; type < kernels::kDTypeCount; ++type) {
        if (numbers_only && !kernels::is_number(static_cast<kernels::DType>(type))) continue;
        for (int op = 0; op < kernels::kReduceOpCount; ++op) {
            const auto t = static_cast<kernels::DType>(type);
            const auto o = static_cast<kernels::ReduceOp>(op);
            if (kernels::is_supported(t, o)) visit(t, o);
        }
    }
}

}  // namespace kernels_test
