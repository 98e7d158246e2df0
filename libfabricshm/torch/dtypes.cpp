#include "libfabricshm/torch/dtypes.hpp"

#include <torch/version.h>

#include <string_view>

#include "kernels/dtype.hpp"

namespace fabricshm::torch_backend {
namespace {

fabricshm_op plain_op(const c10d::ReduceOp& op) {
    switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
        case c10d::ReduceOp::SUM:
            return FABRICSHM_SUM;
        case c10d::ReduceOp::AVG:
            return FABRICSHM_AVG;
        case c10d::ReduceOp::PRODUCT:
            return FABRICSHM_PROD;
        case c10d::ReduceOp::MIN:
            return FABRICSHM_MIN;
        case c10d::ReduceOp::MAX:
            return FABRICSHM_MAX;
        case c10d::ReduceOp::BAND:
            return FABRICSHM_BAND;
        case c10d::ReduceOp::BOR:
            return FABRICSHM_BOR;
        case c10d::ReduceOp::BXOR:
            return FABRICSHM_BXOR;
        default:
            break;
    }
    TORCH_CHECK(false,
                "Only all_reduce takes ReduceOp.PREMUL_SUM with fabricshm; scale the tensor first");
}

// Named as torch names them: the error message is about the caller's own words.
const char* bit_op_name(fabricshm_op op) {
    switch (op) {
        case FABRICSHM_BAND:
            return "ReduceOp.BAND";
        case FABRICSHM_BOR:
            return "ReduceOp.BOR";
        case FABRICSHM_BXOR:
            return "ReduceOp.BXOR";
        default:
            return nullptr;
    }
}

// On 0 and 1 these give 0 and 1 again, where a sum of bytes would leave a 2 in a bool tensor.
fabricshm_op bool_op(fabricshm_op op) {
    TORCH_CHECK(op != FABRICSHM_AVG, "Cannot use ReduceOp.AVG with a bool tensor");
    if (op == FABRICSHM_SUM) return FABRICSHM_MAX;
    if (op == FABRICSHM_PROD) return FABRICSHM_MIN;
    return op;
}

// A closed list, the table's: a type that torch adds is refused until it has a row.
bool find_dtype(at::ScalarType type, fabricshm_dtype& dtype) {
    // Bytes of 0 and 1, see bool_op().
    if (type == at::kBool) type = at::kByte;
    const std::string_view name = c10::toString(type);
    for (const auto& row : kernels::kDTypeRows) {
        if (name != row.torch) continue;
        dtype = static_cast<fabricshm_dtype>(row.type);
        return true;
    }
    return false;
}

// Torch knows it as NCCL's, and has it carried by a number or by a tensor of one element.
// Of the sum of weighted gradients (b_i g_i), in which every rank brings its own weight.
double factor_of(const c10d::ReduceOp& op) {
    const auto* premul = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
    TORCH_CHECK(premul != nullptr, "ReduceOp.PREMUL_SUM comes without its factor");
#if TORCH_VERSION_MAJOR >= 2
    if (premul->tensor_factor.defined()) return premul->tensor_factor.item<double>();
#else
    if (!premul->tensor_factors.empty()) return premul->tensor_factors[0].item<double>();
#endif
    return premul->double_factor;
}

}  // namespace

Reduction all_reduction_of(at::ScalarType type, const c10d::ReduceOp& op) {
    // All other operations have no factor.
    if (static_cast<c10d::ReduceOp::RedOpType>(op) != c10d::ReduceOp::PREMUL_SUM) {
        return reduction_of(type, op);
    }
    TORCH_CHECK(c10::isFloatingType(type), "Cannot use ReduceOp.PREMUL_SUM with dtype ", type);
    Reduction reduction = reduction_of(type, c10d::ReduceOp::SUM);
    reduction.factor = factor_of(op);
    return reduction;
}

Reduction reduction_of(at::ScalarType type, const c10d::ReduceOp& reduce_op) {
    const fabricshm_op op = plain_op(reduce_op);
    const char* bit_op = bit_op_name(op);
    TORCH_CHECK(bit_op == nullptr || c10::isIntegralType(type, /*includeBool=*/true), "Cannot use ",
                bit_op, " with non-integral dtype");
    TORCH_CHECK(op != FABRICSHM_AVG || c10::isFloatingType(type),
                "Cannot use ReduceOp.AVG with dtype ", type,
                "; the mean of integers is no integer");
    // 32 bits hold every 16-bit sum that does not wrap, and wrap alike modulo 2^16.
    if (type == at::kShort) return {FABRICSHM_I32, op, at::kInt};

    fabricshm_dtype dtype = FABRICSHM_U8;
    TORCH_CHECK(find_dtype(type, dtype), "Invalid scalar type: fabricshm cannot reduce ", type);
    return {dtype, type == at::kBool ? bool_op(op) : op, type};
}

}  // namespace fabricshm::torch_backend
