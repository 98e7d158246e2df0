// The element types and reduction operations: one row each, which all else reads. A type gets its
// name in the C ABI, in Python and in PyTorch, its size and its kernels from its row here; what
// cannot be made from it (the enumerators of fabricshm.h, what a kernel computes with) is held
// against it when it is compiled. docs/contributing.md has the steps for a new one.

#pragma once

#include <cstddef>
#include <cstdint>

namespace kernels {

/// What operations mean for a type, and how its bits are read.
enum class Class : std::uint8_t {
    kFloat,
    kSigned,
    kUnsigned,
    // A value and the index of where it is, as the C structs of fabricshm.h lay them out: for
    // kMinLoc and kMaxLoc. Those of 16 bytes end with 4 bytes of padding.
    kLocated,
};

// clang-format off
// The values are those of the C ABI (fabricshm.h) and of the wire; they never change, so a new type
// comes last. `name` is that of programs and reports, `python` that of NumPy, ml_dtypes and PyTorch's
// Python, `numpy` the NumPy type whose arrays hold it, and `torch` that of PyTorch's scalar type:
// "" has none, and a version of PyTorch that lacks the type never asks for it. `dlpack` is the code
// of DLPack's DLDataTypeCode. Floats have a sign, `exponent` and `mantissa` bits; where `infinity` is
// false, all of the largest exponent are numbers but the last code, which is NaN.
#define FABRIC_DTYPES(ROW)                                                                                       \
    /*  enumerator value  in fabricshm.h  bytes class     exponent mantissa infinity  name  python numpy torch dlpack */ \
    ROW(kF64,       0, FABRICSHM_F64,      8, kFloat,    11, 52, true,  "f64",     "float64",       "float64",  "Double",        2)  \
    ROW(kF32,       1, FABRICSHM_F32,      4, kFloat,     8, 23, true,  "f32",     "float32",       "float32",  "Float",         2)  \
    ROW(kF16,       2, FABRICSHM_F16,      2, kFloat,     5, 10, true,  "f16",     "float16",       "float16",  "Half",          2)  \
    ROW(kBF16,      3, FABRICSHM_BF16,     2, kFloat,     8,  7, true,  "bf16",    "bfloat16",      "uint16",   "BFloat16",      4)  \
    ROW(kI8,        4, FABRICSHM_I8,       1, kSigned,    0,  0, false, "i8",      "int8",          "int8",     "Char",          0)  \
    ROW(kU8,        5, FABRICSHM_U8,       1, kUnsigned,  0,  0, false, "u8",      "uint8",         "uint8",    "Byte",          1)  \
    ROW(kI32,       6, FABRICSHM_I32,      4, kSigned,    0,  0, false, "i32",     "int32",         "int32",    "Int",           0)  \
    ROW(kU32,       7, FABRICSHM_U32,      4, kUnsigned,  0,  0, false, "u32",     "uint32",        "uint32",   "",              1)  \
    ROW(kI64,       8, FABRICSHM_I64,      8, kSigned,    0,  0, false, "i64",     "int64",         "int64",    "Long",          0)  \
    ROW(kU64,       9, FABRICSHM_U64,      8, kUnsigned,  0,  0, false, "u64",     "uint64",        "uint64",   "",              1)  \
    ROW(kF64Loc,   10, FABRICSHM_F64_INT, 16, kLocated,   0,  0, false, "f64_int", "float64_int",   "float64",  "",              0)  \
    ROW(kF32Loc,   11, FABRICSHM_F32_INT,  8, kLocated,   0,  0, false, "f32_int", "float32_int",   "float32",  "",              0)  \
    ROW(kI32Loc,   12, FABRICSHM_I32_INT,  8, kLocated,   0,  0, false, "i32_int", "int32_int",     "int32",    "",              0)  \
    ROW(kI64Loc,   13, FABRICSHM_I64_INT, 16, kLocated,   0,  0, false, "i64_int", "int64_int",     "int64",    "",              0)  \
    ROW(kF8E4M3,   14, FABRICSHM_F8_E4M3,  1, kFloat,     4,  3, false, "f8_e4m3", "float8_e4m3fn", "uint8",    "Float8_e4m3fn", 10) \
    ROW(kF8E5M2,   15, FABRICSHM_F8_E5M2,  1, kFloat,     5,  2, true,  "f8_e5m2", "float8_e5m2",   "uint8",    "Float8_e5m2",   12)

/// Which types an operation has a meaning for.
enum class Takes : std::uint8_t { kNumbers, kIntegers, kLocated };

// kAvg is the sum divided by ReduceJob::divisor; integers truncate towards zero. The logical ones:
// 0 is false, all else true, and true is stored as 1. kMinLoc and kMaxLoc: of equal values that with
// the lowest index.
#define FABRIC_REDUCE_OPS(ROW)                                  \
    /*  enumerator value  in fabricshm.h   takes  name  */      \
    ROW(kSum,       0, FABRICSHM_SUM,    kNumbers,  "sum")      \
    ROW(kAvg,       1, FABRICSHM_AVG,    kNumbers,  "avg")      \
    ROW(kMin,       2, FABRICSHM_MIN,    kNumbers,  "min")      \
    ROW(kMax,       3, FABRICSHM_MAX,    kNumbers,  "max")      \
    ROW(kProd,      4, FABRICSHM_PROD,   kNumbers,  "prod")     \
    ROW(kBand,      5, FABRICSHM_BAND,   kIntegers, "band")     \
    ROW(kBor,       6, FABRICSHM_BOR,    kIntegers, "bor")      \
    ROW(kBxor,      7, FABRICSHM_BXOR,   kIntegers, "bxor")     \
    ROW(kLand,      8, FABRICSHM_LAND,   kIntegers, "land")     \
    ROW(kLor,       9, FABRICSHM_LOR,    kIntegers, "lor")      \
    ROW(kLxor,     10, FABRICSHM_LXOR,   kIntegers, "lxor")     \
    ROW(kMinLoc,   11, FABRICSHM_MINLOC, kLocated,  "minloc")   \
    ROW(kMaxLoc,   12, FABRICSHM_MAXLOC, kLocated,  "maxloc")

#define FABRIC_ENUMERATOR(name, value, ...) name = value,
enum class DType : std::uint8_t { FABRIC_DTYPES(FABRIC_ENUMERATOR) };
enum class ReduceOp : std::uint8_t { FABRIC_REDUCE_OPS(FABRIC_ENUMERATOR) };
#undef FABRIC_ENUMERATOR

struct DTypeRow {
    DType type;
    std::uint8_t size;
    Class kind;
    std::uint8_t exponent_bits, mantissa_bits;
    bool infinity;
    const char* name;
    const char* python;
    const char* numpy;
    const char* torch;
    std::uint8_t dlpack;
};

struct ReduceOpRow {
    ReduceOp op;
    Takes takes;
    const char* name;
};

#define FABRIC_ROW(type, value, c, size, kind, exponent, mantissa, infinity, ...) \
    {DType::type, size, Class::kind, exponent, mantissa, infinity, __VA_ARGS__},
inline constexpr DTypeRow kDTypeRows[] = {FABRIC_DTYPES(FABRIC_ROW)};
#undef FABRIC_ROW
#define FABRIC_ROW(op, value, c, takes, name) {ReduceOp::op, Takes::takes, name},
inline constexpr ReduceOpRow kReduceOpRows[] = {FABRIC_REDUCE_OPS(FABRIC_ROW)};
#undef FABRIC_ROW
// clang-format on

inline constexpr int kDTypeCount = sizeof kDTypeRows / sizeof kDTypeRows[0];
inline constexpr int kReduceOpCount = sizeof kReduceOpRows / sizeof kReduceOpRows[0];

/// Only of a type below kDTypeCount.
constexpr const DTypeRow& row_of(DType type) noexcept {
    return kDTypeRows[static_cast<std::size_t>(type)];
}
constexpr const ReduceOpRow& row_of(ReduceOp op) noexcept {
    return kReduceOpRows[static_cast<std::size_t>(op)];
}

constexpr std::size_t size_of(DType type) noexcept {
    return row_of(type).size;
}

constexpr bool is_float(DType type) noexcept {
    return row_of(type).kind == Class::kFloat;
}

/// A value with an index.
constexpr bool is_located(DType type) noexcept {
    return row_of(type).kind == Class::kLocated;
}

/// What tensors and shards are made of.
constexpr bool is_number(DType type) noexcept {
    return !is_located(type);
}

/// Floats that are added up in f32 and rounded once, at the end.
constexpr bool rounds_once(DType type) noexcept {
    return is_float(type) && size_of(type) < sizeof(float);
}

/// Bits and truth are those of integers, and places those of values with an index, for which
/// nothing else is defined.
constexpr bool is_supported(DType type, ReduceOp op) noexcept {
    const Takes takes = row_of(op).takes;
    if (is_located(type)) return takes == Takes::kLocated;
    return takes == Takes::kNumbers || (takes == Takes::kIntegers && !is_float(type));
}

namespace detail {

constexpr bool rows_are_in_order() noexcept {
    for (int i = 0; i < kDTypeCount; ++i) {
        const DTypeRow& row = kDTypeRows[i];
        if (static_cast<int>(row.type) != i) return false;
        const int bits = row.exponent_bits + row.mantissa_bits;
        if (bits != (row.kind == Class::kFloat ? row.size * 8 - 1 : 0)) return false;
    }
    for (int i = 0; i < kReduceOpCount; ++i) {
        if (static_cast<int>(kReduceOpRows[i].op) != i) return false;
    }
    return true;
}
static_assert(rows_are_in_order(), "a row is not at its value, or a float's bits do not add up");

}  // namespace detail

}  // namespace kernels
