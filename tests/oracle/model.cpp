#include "tests/oracle/model.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>

namespace oracle {

namespace {

constexpr std::uint64_t kWord = 8;

std::uint64_t size_of(fabricshm_dtype type) {
    switch (type) {
        case FABRICSHM_F64_INT:
        case FABRICSHM_I64_INT:
            return 16;
        case FABRICSHM_F64:
        case FABRICSHM_I64:
        case FABRICSHM_U64:
        case FABRICSHM_F32_INT:
        case FABRICSHM_I32_INT:
            return 8;
        case FABRICSHM_F32:
        case FABRICSHM_I32:
        case FABRICSHM_U32:
            return 4;
        case FABRICSHM_F16:
        case FABRICSHM_BF16:
            return 2;
        default:
            return 1;
    }
}

// ---- 16-bit floats, from their definitions ------------------------------------------------------

template <class To, class From>
To bits_of(From value) {
    static_assert(sizeof(To) == sizeof(From));
    To bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

float half_to_float(std::uint16_t bits) {
    const int exponent = bits >> 10 & 31;
    const int mantissa = bits & 1023;
    const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
    if (exponent == 31) {
        return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN()
                             : sign * std::numeric_limits<float>::infinity();
    }
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
    return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

// To nearest, ties to even: the value is counted in units of the last place it will have.
std::uint16_t float_to_half(float value) {
    if (std::isnan(value)) return 0x7e00;
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double size = std::fabs(static_cast<double>(value));
    if (size >= 65520.0) return sign | 0x7c00;
    int exponent = 0;
    std::frexp(size, &exponent);                    // size = f * 2^exponent, f in [0.5, 1)
    const int unit = std::max(exponent - 11, -24);  // 2^unit is the last place
    const auto places = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(size, -unit)));
    // `places` has at most 11 bits, or is 2048 when rounding carried: the carry raises the exponent
    // by itself, since the encodings of floats follow each other as integers do.
    if (places < 1024) return static_cast<std::uint16_t>(sign | places);
    return static_cast<std::uint16_t>(
        sign | ((static_cast<std::uint32_t>(unit + 25) << 10) + (places - 1024)));
}

float bfloat_to_float(std::uint16_t bits) {
    return bits_of<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t float_to_bfloat(float value) {
    if (std::isnan(value)) return 0x7fc0;
    const auto bits = bits_of<std::uint32_t>(value);
    const std::uint32_t kept = bits >> 16, rest = bits & 0xffff;
    const bool up = rest > 0x8000 || (rest == 0x8000 && (kept & 1) != 0);
    return static_cast<std::uint16_t>(kept + (up ? 1 : 0));
}

// The two of 8 bits: all their numbers are few enough to be searched.
template <int kMantissaBits, int kBias, int kLargest, int kOverflow>
struct Byte {
    using Stored = std::uint8_t;
    using Computed = float;
    static float load(Stored bits) {
        const int size = bits & 127, one = 1 << kMantissaBits;
        const float sign = bits >= 128 ? -1.0f : 1.0f;
        if (size > kLargest) {
            const bool infinite = kOverflow != 127 && size == kOverflow;
            return infinite ? sign * std::numeric_limits<float>::infinity()
                            : std::numeric_limits<float>::quiet_NaN();
        }
        const auto mantissa = static_cast<float>(size % one + (size < one ? 0 : one));
        return sign * std::ldexp(mantissa, std::max(size / one, 1) - kBias - kMantissaBits);
    }
    static Stored store(float value) {
        if (std::isnan(value)) return 127;
        const auto sign = static_cast<Stored>(std::signbit(value) ? 128 : 0);
        const double size = std::fabs(static_cast<double>(value));
        // Its own value of each code, and behind the largest what would come next.
        static const std::array<double, kLargest + 2> kValues = [] {
            std::array<double, kLargest + 2> values{};
            for (int code = 0; code <= kLargest; ++code) {
                values[code] = load(static_cast<Stored>(code));
            }
            values[kLargest + 1] = 2 * values[kLargest] - values[kLargest - 1];
            return values;
        }();
        const auto above = std::lower_bound(kValues.begin(), kValues.end(), size);
        auto code = static_cast<int>(above - kValues.begin());
        if (code > 0 && code <= kLargest + 1) {
            const double middle = (kValues[code - 1] + kValues[code]) / 2;
            if (size < middle || (size == middle && (code - 1) % 2 == 0)) --code;
        }
        if (code <= kLargest) return static_cast<Stored>(sign | code);
        return kOverflow == 127 ? Stored{127} : static_cast<Stored>(sign | kOverflow);
    }
};
using E4M3 = Byte<3, 7, 0x7e, 127>;
using E5M2 = Byte<2, 15, 0x7b, 0x7c>;

// ---- Element types: how they are stored and what is computed with -------------------------------

template <class Number>
struct Plain {
    using Stored = Number;
    using Computed = Number;
    static Computed load(Stored stored) { return stored; }
    static Stored store(Computed value) { return value; }
};

template <class Number>
struct Float : Plain<Number> {
    static Number store(Number value) {
        return std::isnan(value) ? std::numeric_limits<Number>::quiet_NaN() : value;
    }
};

struct Half {
    using Stored = std::uint16_t;
    using Computed = float;
    static float load(Stored stored) { return half_to_float(stored); }
    static Stored store(float value) { return float_to_half(value); }
};

struct BFloat {
    using Stored = std::uint16_t;
    using Computed = float;
    static float load(Stored stored) { return bfloat_to_float(stored); }
    static Stored store(float value) { return float_to_bfloat(value); }
};

template <class Visitor>
void with_type(fabricshm_dtype type, const Visitor& visit) {
    switch (type) {
        case FABRICSHM_F64:
            return visit(Float<double>{});
        case FABRICSHM_F32:
            return visit(Float<float>{});
        case FABRICSHM_F16:
            return visit(Half{});
        case FABRICSHM_BF16:
            return visit(BFloat{});
        case FABRICSHM_F8_E4M3:
            return visit(E4M3{});
        case FABRICSHM_F8_E5M2:
            return visit(E5M2{});
        case FABRICSHM_I8:
            return visit(Plain<std::int8_t>{});
        case FABRICSHM_U8:
            return visit(Plain<std::uint8_t>{});
        case FABRICSHM_I32:
            return visit(Plain<std::int32_t>{});
        case FABRICSHM_U32:
            return visit(Plain<std::uint32_t>{});
        case FABRICSHM_I64:
            return visit(Plain<std::int64_t>{});
        case FABRICSHM_U64:
            return visit(Plain<std::uint64_t>{});
        default:
            return;  // values with an index are no numbers
    }
}

// The type of the value of those with an index.
template <class Visitor>
bool with_indexed_type(fabricshm_dtype type, const Visitor& visit) {
    switch (type) {
        case FABRICSHM_F64_INT:
            visit(double{});
            return true;
        case FABRICSHM_F32_INT:
            visit(float{});
            return true;
        case FABRICSHM_I32_INT:
            visit(std::int32_t{});
            return true;
        case FABRICSHM_I64_INT:
            visit(std::int64_t{});
            return true;
        default:
            return false;
    }
}

// ---- Operations ---------------------------------------------------------------------------------

// Minimum and maximum of IEEE 754-2019: NaN if either is, -0 below +0.
template <class T>
T extreme(T a, T b, bool largest) {
    if constexpr (std::is_floating_point_v<T>) {
        if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
        if (a == b) return std::signbit(a) == largest ? b : a;
    }
    return (a < b) == largest ? b : a;
}

template <class T>
T combine(T a, T b, fabricshm_op op) {
    if (op == FABRICSHM_MIN || op == FABRICSHM_MAX) return extreme(a, b, op == FABRICSHM_MAX);
    if constexpr (std::is_floating_point_v<T>) {
        return op == FABRICSHM_PROD ? a * b : a + b;
    } else {
        // In 64 bits without a sign, so that it wraps; the lower bits are right for each type.
        const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
        switch (op) {
            case FABRICSHM_PROD:
                return static_cast<T>(x * y);
            case FABRICSHM_BAND:
                return static_cast<T>(x & y);
            case FABRICSHM_BOR:
                return static_cast<T>(x | y);
            case FABRICSHM_BXOR:
                return static_cast<T>(x ^ y);
            case FABRICSHM_LAND:
                return a && b ? T{1} : T{0};
            case FABRICSHM_LOR:
                return a || b ? T{1} : T{0};
            case FABRICSHM_LXOR:
                return !a != !b ? T{1} : T{0};
            default:
                return static_cast<T>(x + y);
        }
    }
}

// Of values with an index: the value that extreme() says, and of the members that have it
// the lowest index. Members have it when it is also the extreme of theirs and it.
template <class T>
void reduce_indexed(const Operation& operation, int members, std::uint64_t first,
                    std::uint64_t count, std::byte* to) {
    const std::uint64_t size = size_of(operation.dtype);
    const bool largest = operation.op == FABRICSHM_MAXLOC;
    const auto same = [](T a, T b) {
        if constexpr (std::is_floating_point_v<T>) {
            if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
            return a == b && std::signbit(a) == std::signbit(b);
        }
        return a == b;
    };
    std::vector<std::byte> input(size * static_cast<std::uint64_t>(members));
    for (std::uint64_t i = 0; i < count; ++i, to += size) {
        T best{};
        for (int member = 0; member < members; ++member) {
            std::byte* element = input.data() + size * static_cast<std::uint64_t>(member);
            make_input(operation, member, (first + i) * size, size, element);
            T value;
            std::memcpy(&value, element, sizeof value);
            best = member == 0 ? value : extreme(best, value, largest);
        }
        std::int32_t lowest = std::numeric_limits<std::int32_t>::max();
        for (int member = 0; member < members; ++member) {
            const std::byte* element = input.data() + size * static_cast<std::uint64_t>(member);
            T value;
            std::int32_t index;
            std::memcpy(&value, element, sizeof value);
            std::memcpy(&index, element + sizeof value, sizeof index);
            if (same(value, best)) lowest = std::min(lowest, index);
        }
        if constexpr (std::is_floating_point_v<T>) best = Float<T>::store(best);
        std::memset(to, 0, size);
        std::memcpy(to, &best, sizeof best);
        std::memcpy(to + sizeof best, &lowest, sizeof lowest);
    }
}

// The reduction of elements [first, first + count) over the first `members` members, in the order
// of ranks.
template <class Type>
void reduce_range(const Operation& operation, int members, std::uint64_t first, std::uint64_t count,
                  std::byte* to) {
    using Stored = typename Type::Stored;
    using Computed = typename Type::Computed;
    constexpr std::uint64_t kBlock = 4096;
    std::vector<Stored> input(std::min(kBlock, count));
    std::vector<Computed> sum(input.size());
    for (std::uint64_t done = 0; done < count; done += kBlock) {
        const std::uint64_t some = std::min(kBlock, count - done);
        for (int member = 0; member < members; ++member) {
            make_input(operation, member, (first + done) * sizeof(Stored), some * sizeof(Stored),
                       reinterpret_cast<std::byte*>(input.data()));
            for (std::uint64_t i = 0; i < some; ++i) {
                const Computed value = Type::load(input[i]);
                sum[i] = member == 0 ? value : combine(sum[i], value, operation.op);
            }
        }
        for (std::uint64_t i = 0; i < some; ++i) {
            if (operation.op == FABRICSHM_AVG) {
                sum[i] = static_cast<Computed>(sum[i] / static_cast<Computed>(operation.world()));
            }
            input[i] = Type::store(sum[i]);
        }
        std::memcpy(to + done * sizeof(Stored), input.data(), some * sizeof(Stored));
    }
}

// Over the first `members` members.
void reduce(const Operation& operation, int members, std::uint64_t first, std::uint64_t count,
            std::byte* to) {
    // A single source is copied bit by bit.
    if (members == 1 && operation.op != FABRICSHM_AVG) {
        const std::uint64_t size = size_of(operation.dtype);
        return make_input(operation, 0, first * size, count * size, to);
    }
    const bool indexed = with_indexed_type(operation.dtype, [&](auto value) {
        reduce_indexed<decltype(value)>(operation, members, first, count, to);
    });
    if (indexed) return;
    with_type(operation.dtype, [&](auto type) {
        reduce_range<decltype(type)>(operation, members, first, count, to);
    });
}

// ---- Inputs -------------------------------------------------------------------------------------

// Eight bytes of elements from 64 random bits.
template <class Type>
std::uint64_t encode(std::uint64_t random, Values values, fabricshm_op op) {
    using Stored = typename Type::Stored;
    using Computed = typename Type::Computed;
    Stored lanes[kWord / sizeof(Stored)];
    for (Stored& lane : lanes) {
        const auto byte = static_cast<int>(random & 0xff);
        random = random >> 8 | random << 56;
        if (values == Values::kSmall) {
            constexpr int kFactors[] = {1, -1, 2, 1};
            const int number = op == FABRICSHM_PROD ? kFactors[byte & 3] : byte % 17 - 8;
            lane = Type::store(static_cast<Computed>(number));
        } else {
            const double size =
                std::ldexp(1.0 + static_cast<double>(random >> 40) * 0x1p-24, byte % 9 - 4);
            lane = Type::store(static_cast<Computed>((byte & 0x80) != 0 ? -size : size));
        }
    }
    std::uint64_t word;
    std::memcpy(&word, lanes, sizeof word);
    return word;
}

// The same of values with an index: few values and few indices, so that there are many equal ones.
// Of 16 bytes the second word has the index, and padding of any bits.
template <class T>
std::uint64_t encode_indexed(std::uint64_t random, std::uint64_t word) {
    const auto value = static_cast<T>(static_cast<int>(random % 5) - 2);
    const auto index = static_cast<std::uint64_t>(random >> 8 & 3);
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    if constexpr (sizeof(T) == 4) return bits | index << 32;
    return word % 2 == 0 ? bits : index | random << 32;
}

template <class Word>
void fill_words(std::uint64_t first, std::uint64_t bytes, std::byte* to, const Word& word_at) {
    std::uint64_t index = first / kWord;
    const std::uint64_t skip = first % kWord;
    if (skip != 0) {
        const std::uint64_t word = word_at(index++);
        const std::uint64_t some = std::min(bytes, kWord - skip);
        std::memcpy(to, reinterpret_cast<const std::byte*>(&word) + skip, some);
        to += some;
        bytes -= some;
    }
    for (; bytes >= kWord; bytes -= kWord, to += kWord) {
        const std::uint64_t word = word_at(index++);
        std::memcpy(to, &word, kWord);
    }
    if (bytes != 0) {
        const std::uint64_t word = word_at(index);
        std::memcpy(to, &word, bytes);
    }
}

}  // namespace

std::uint64_t part_start(const Operation& operation, int member) {
    if (operation.counts.empty()) return operation.count * static_cast<std::uint64_t>(member);
    return std::accumulate(operation.counts.begin(), operation.counts.begin() + member,
                           std::uint64_t{0});
}

namespace {

std::uint64_t part_elements(const Operation& operation, int member) {
    return operation.counts.empty() ? operation.count
                                    : operation.counts[static_cast<std::size_t>(member)];
}

std::uint64_t all_elements(const Operation& operation) {
    return part_start(operation, operation.world());
}

std::uint64_t sent(const Operation& operation, int from, int to) {
    if (operation.matrix.empty()) return operation.count;
    return operation.matrix[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
}

}  // namespace

std::uint64_t input_elements(const Operation& operation, int member) {
    switch (operation.kind) {
        case FABRICSHM_ALLREDUCE:
        case FABRICSHM_REDUCE:
        case FABRICSHM_SCAN:
        case FABRICSHM_EXSCAN:
            return operation.count;
        case FABRICSHM_REDUCE_SCATTER:
            return all_elements(operation);
        case FABRICSHM_ALL_GATHER:
        case FABRICSHM_GATHER:
            return part_elements(operation, member);
        case FABRICSHM_BROADCAST:
            return member == operation.root ? operation.count : 0;
        case FABRICSHM_SCATTER:
            return member == operation.root ? all_elements(operation) : 0;
        case FABRICSHM_ALL_TO_ALL: {
            std::uint64_t sum = 0;
            for (int to = 0; to < operation.world(); ++to) sum += sent(operation, member, to);
            return sum;
        }
        case FABRICSHM_SEND:
            return member == operation.sender ? operation.count : 0;
        default:
            return 0;
    }
}

std::uint64_t output_elements(const Operation& operation, int member) {
    switch (operation.kind) {
        case FABRICSHM_ALLREDUCE:
        case FABRICSHM_BROADCAST:
        case FABRICSHM_SCAN:
            return operation.count;
        case FABRICSHM_EXSCAN:
            return member == 0 ? 0 : operation.count;
        case FABRICSHM_REDUCE:
            return member == operation.root ? operation.count : 0;
        case FABRICSHM_REDUCE_SCATTER:
        case FABRICSHM_SCATTER:
            return part_elements(operation, member);
        case FABRICSHM_ALL_GATHER:
            return all_elements(operation);
        case FABRICSHM_GATHER:
            return member == operation.root ? all_elements(operation) : 0;
        case FABRICSHM_ALL_TO_ALL: {
            std::uint64_t sum = 0;
            for (int from = 0; from < operation.world(); ++from) {
                sum += sent(operation, from, member);
            }
            return sum;
        }
        case FABRICSHM_SEND:
            return member == operation.receiver ? operation.count : 0;
        default:
            return 0;
    }
}

std::uint64_t input_bytes(const Operation& operation, int member) {
    return input_elements(operation, member) * size_of(operation.dtype);
}

std::uint64_t output_bytes(const Operation& operation, int member) {
    return output_elements(operation, member) * size_of(operation.dtype);
}

void make_input(const Operation& operation, int member, std::uint64_t first, std::uint64_t bytes,
                std::byte* to) {
    const std::uint64_t seed = mix(operation.data, static_cast<std::uint64_t>(member) + 1);
    const auto random = [&](std::uint64_t index) { return mix(seed, index); };
    if (operation.values == Values::kBits) return fill_words(first, bytes, to, random);
    const bool indexed = with_indexed_type(operation.dtype, [&](auto value) {
        fill_words(first, bytes, to, [&](std::uint64_t index) {
            return encode_indexed<decltype(value)>(random(index), index);
        });
    });
    if (indexed) return;
    with_type(operation.dtype, [&](auto type) {
        fill_words(first, bytes, to, [&](std::uint64_t index) {
            return encode<decltype(type)>(random(index), operation.values, operation.op);
        });
    });
}

void make_output(const Operation& operation, int member, std::byte* to) {
    const std::uint64_t size = size_of(operation.dtype);
    const std::uint64_t bytes = output_bytes(operation, member);
    if (bytes == 0) return;
    switch (operation.kind) {
        case FABRICSHM_ALLREDUCE:
        case FABRICSHM_REDUCE:
            return reduce(operation, operation.world(), 0, operation.count, to);
        case FABRICSHM_SCAN:
            return reduce(operation, member + 1, 0, operation.count, to);
        case FABRICSHM_EXSCAN:
            return reduce(operation, member, 0, operation.count, to);
        case FABRICSHM_REDUCE_SCATTER:
            return reduce(operation, operation.world(), part_start(operation, member), bytes / size,
                          to);
        case FABRICSHM_BROADCAST:
            return make_input(operation, operation.root, 0, bytes, to);
        case FABRICSHM_SCATTER:
            return make_input(operation, operation.root, part_start(operation, member) * size,
                              bytes, to);
        case FABRICSHM_SEND:
            return make_input(operation, operation.sender, 0, bytes, to);
        case FABRICSHM_ALL_GATHER:
        case FABRICSHM_GATHER:
            for (int from = 0; from < operation.world(); ++from) {
                make_input(operation, from, 0, part_elements(operation, from) * size,
                           to + part_start(operation, from) * size);
            }
            return;
        case FABRICSHM_ALL_TO_ALL:
            for (int from = 0; from < operation.world(); ++from) {
                std::uint64_t start = 0;
                for (int peer = 0; peer < member; ++peer) start += sent(operation, from, peer);
                const std::uint64_t part = sent(operation, from, member) * size;
                make_input(operation, from, start * size, part, to);
                to += part;
            }
            return;
        default:
            return;
    }
}

void make_junk(std::uint64_t seed, std::uint64_t bytes, std::byte* to) {
    fill_words(0, bytes, to, [&](std::uint64_t index) { return mix(seed, index); });
}

}  // namespace oracle
