#include "tests/support/collective_cases.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "bench/element.hpp"

namespace test_support {

using namespace fabricshm;
using kernels::DType;
using kernels::ReduceOp;

namespace {

template <typename T>
void put(std::byte* to, T value) {
    std::memcpy(to, &value, sizeof value);
}

// Values with an index are given by one number here: the value times this, and the index.
constexpr int kIndices = 1000;

template <typename T>
void put_located(std::byte* to, int coded) {
    struct Pair {
        T value;
        std::int32_t index;
    };
    std::memset(to, 0, sizeof(Pair));
    put(to, static_cast<T>(coded / kIndices));
    put(to + offsetof(Pair, index), static_cast<std::int32_t>(coded % kIndices));
}

void store(std::byte* to, DType type, double exact) {
    const int value = static_cast<int>(exact);
    switch (type) {
        case DType::kF64Loc:
            return put_located<double>(to, value);
        case DType::kF32Loc:
            return put_located<float>(to, value);
        case DType::kI32Loc:
            return put_located<std::int32_t>(to, value);
        case DType::kI64Loc:
            return put_located<std::int64_t>(to, value);
        default:
            return bench::store_element(to, type, exact);
    }
}

// What rank `rank` puts at element `index` of its input, salt and all: 1 to 3.
int value_at(int rank, std::uint64_t index) {
    return 1 +
           static_cast<int>((static_cast<std::uint64_t>(rank) * 7 + index * 5 + index / 64) % 3);
}

// What it stores there: truths need zeros, too, and of equal values not always the first rank has
// the lowest index.
int element_at(const CollectiveCase& wanted, int rank, std::uint64_t index) {
    const int value = value_at(rank, index);
    const bool truth =
        wanted.op == ReduceOp::kLand || wanted.op == ReduceOp::kLor || wanted.op == ReduceOp::kLxor;
    if (truth) return value - 1;
    if (!kernels::is_located(wanted.dtype)) return value;
    return value * kIndices + (rank * 5 + static_cast<int>(index % 3)) % 7;
}

// Of ranks 0 to `ranks` - 1; `index` has the salt of the case in it.
int reduced(const CollectiveCase& wanted, int ranks, std::uint64_t index) {
    int result = element_at(wanted, 0, index);
    for (int rank = 1; rank < ranks; ++rank) {
        const int value = element_at(wanted, rank, index);
        switch (wanted.op) {
            case ReduceOp::kSum:
            case ReduceOp::kAvg:
                result += value;
                break;
            case ReduceOp::kMin:
                result = std::min(result, value);
                break;
            case ReduceOp::kMax:
                result = std::max(result, value);
                break;
            case ReduceOp::kProd:
                result *= value;
                break;
            case ReduceOp::kBand:
                result &= value;
                break;
            case ReduceOp::kBor:
                result |= value;
                break;
            case ReduceOp::kBxor:
                result ^= value;
                break;
            case ReduceOp::kLand:
                result = result != 0 && value != 0;
                break;
            case ReduceOp::kLor:
                result = result != 0 || value != 0;
                break;
            case ReduceOp::kLxor:
                result = (result != 0) != (value != 0);
                break;
            case ReduceOp::kMinLoc:
                result = std::min(result, value);
                break;
            case ReduceOp::kMaxLoc:
                if (value / kIndices > result / kIndices ||
                    (value / kIndices == result / kIndices && value < result)) {
                    result = value;
                }
                break;
        }
    }
    return result;
}

struct Shape {
    std::vector<std::uint64_t> counts;
    std::uint64_t start(int part) const {
        std::uint64_t sum = 0;
        for (int i = 0; i < part; ++i) sum += counts[static_cast<std::size_t>(i)];
        return sum;
    }
};

Shape shape_of(const RankContext& context, const CollectiveCase& wanted) {
    Shape shape;
    for (int part = 0; part < context.world; ++part) {
        const auto step = static_cast<std::uint64_t>(part);
        shape.counts.push_back(wanted.uneven ? wanted.count * (step % 3) / 2 : wanted.count);
    }
    return shape;
}

// The expected value of element `index` of this rank's output.
int expected(const RankContext& context, const CollectiveCase& wanted, const Shape& shape,
             std::uint64_t index) {
    switch (wanted.kind) {
        case Kind::kAllreduce:
        case Kind::kReduce:
            return reduced(wanted, context.world, index + wanted.salt);
        case Kind::kScan:
            return reduced(wanted, context.rank + 1, index + wanted.salt);
        case Kind::kExscan:
            return reduced(wanted, context.rank, index + wanted.salt);
        case Kind::kReduceScatter:
            return reduced(wanted, context.world, shape.start(context.rank) + index + wanted.salt);
        case Kind::kBroadcast:
            return element_at(wanted, wanted.root, index + wanted.salt);
        case Kind::kScatter:
            return element_at(wanted, wanted.root, shape.start(context.rank) + index + wanted.salt);
        default:
            break;
    }
    int part = 0;
    while (index >= shape.counts[static_cast<std::size_t>(part)]) {
        index -= shape.counts[static_cast<std::size_t>(part++)];
    }
    const bool all_to_all = wanted.kind == Kind::kAllToAll;
    return element_at(wanted, part,
                      index + (all_to_all ? shape.start(context.rank) : 0) + wanted.salt);
}

bool private_here(const RankContext& context, Placement placement) {
    return placement == Placement::kPrivate || placement == Placement::kPrivateInPlace ||
           (placement == Placement::kMixed && context.rank % 2 == 1);
}

// Where input and output lie; `own` keeps what is not in the arena.
struct Buffers {
    std::vector<std::byte> own_input;
    std::vector<std::byte> own_output;
    std::byte* input = nullptr;
    std::byte* output = nullptr;
};

bool in_place(const RankContext& context, Placement placement) {
    return placement == Placement::kInPlace || placement == Placement::kPrivateInPlace ||
           (placement == Placement::kSharedInPlace && context.rank == context.world - 1);
}

// In place: the smaller buffer is a part of the larger one where the kind has parts.
void overlay(const RankContext& context, const Call& call, const Shape& shape, Buffers& buffers) {
    if (call.shares_output() && call.kind != Kind::kAllGather) {
        buffers.input = buffers.output;  // the one that all ranks have stays where it is
        return;
    }
    const Bytes element = kernels::size_of(call.dtype);
    const Bytes offset = shape.start(context.rank) * element;
    switch (call.kind) {
        case Kind::kAllGather:
            buffers.input = buffers.output + offset;
            break;
        case Kind::kGather:
            if (context.rank == call.root) buffers.input = buffers.output + offset;
            break;
        case Kind::kReduceScatter:
            buffers.output = buffers.input + offset;
            break;
        case Kind::kScatter:
            if (context.rank == call.root) buffers.output = buffers.input + offset;
            break;
        default:
            buffers.output = buffers.input;
            break;
    }
}

void make_buffers(RankContext& context, const CollectiveCase& wanted, const Shape& shape,
                  const Call& call, Buffers& buffers) {
    // Odd offsets on purpose: an element's alignment is all that is promised.
    const Bytes element = kernels::size_of(call.dtype);
    const Bytes in = input_bytes(call, context.rank, context.world) + element;
    const Bytes out = std::max(output_bytes(call, context.rank, context.world), in) + 2 * element;
    if (private_here(context, wanted.placement)) {
        buffers.own_input.resize(in + out);
        buffers.own_output.resize(out);
        buffers.input = buffers.own_input.data() + element;
        buffers.output = buffers.own_output.data() + element;
    } else {
        buffers.input = context.place(context.rank, in + out) + element;
        buffers.output = context.place(context.rank, out) + element;
        const bool shared = shares_output(wanted.placement);
        if (shared) buffers.output = context.place(context.world, out) + element;
    }
    if (in_place(context, wanted.placement)) overlay(context, call, shape, buffers);
}

Call make_call(const RankContext& context, const CollectiveCase& wanted, const Shape& shape) {
    Call call;
    call.kind = wanted.kind;
    call.dtype = wanted.dtype;
    call.op = wanted.op;
    call.algorithm = wanted.algorithm;
    call.trigger = wanted.trigger;
    call.root = wanted.root;
    call.count = wanted.count;
    call.flags = shares_output(wanted.placement) ? kSharedOutput : 0;
    call.deadline = Clock::now() + wanted.timeout;
    if (wanted.uneven) {
        call.counts = shape.counts;
        if (wanted.kind == Kind::kAllToAll) {
            const auto mine = shape.counts[static_cast<std::size_t>(context.rank)];
            call.recv_counts.assign(static_cast<std::size_t>(context.world), mine);
        }
    }
    return call;
}

// With counts, all_to_all gives part r to rank r, so a rank receives its own size from all ranks.
int expected_exchange(const RankContext& context, const CollectiveCase& wanted, const Shape& shape,
                      std::uint64_t index) {
    const auto mine = shape.counts[static_cast<std::size_t>(context.rank)];
    return element_at(wanted, static_cast<int>(index / mine),
                      shape.start(context.rank) + index % mine + wanted.salt);
}

bool verify(const RankContext& context, const CollectiveCase& wanted, const Shape& shape,
            const Call& call) {
    const Bytes element = kernels::size_of(call.dtype);
    const std::uint64_t elements = output_bytes(call, context.rank, context.world) / element;
    for (std::uint64_t index = 0; index < elements; ++index) {
        const bool exchange = wanted.kind == Kind::kAllToAll;
        double value = exchange ? expected_exchange(context, wanted, shape, index)
                                : expected(context, wanted, shape, index);
        // kAvg is tried with f32, f64 and integers only: small floats would round the quotient.
        if (wanted.op == ReduceOp::kAvg) value /= context.world;
        std::byte right[16];
        store(right, call.dtype, value);
        if (std::memcmp(right, call.output + index * element, element) != 0) {
            return report(context, "kind %d algorithm %d placement %d count %lu: element %lu",
                          static_cast<int>(call.kind), static_cast<int>(wanted.algorithm),
                          static_cast<int>(wanted.placement),
                          static_cast<unsigned long>(wanted.count),
                          static_cast<unsigned long>(index));
        }
    }
    return true;
}

Result<void> perform(RankContext& context, const CollectiveCase& wanted, const Call& call) {
    if (!wanted.started) return context.group.run(call);
    FABRIC_TRY(const auto request, context.group.start(call));
    return request->wait();
}

}  // namespace

bool run_case(RankContext& context, const CollectiveCase& wanted) {
    const Shape shape = shape_of(context, wanted);
    Call call = make_call(context, wanted, shape);
    Buffers buffers;
    context.place(-1, 0);
    make_buffers(context, wanted, shape, call, buffers);
    const Bytes element = kernels::size_of(call.dtype);
    const std::uint64_t elements = input_bytes(call, context.rank, context.world) / element;
    for (std::uint64_t index = 0; index < elements; ++index) {
        store(buffers.input + index * element, call.dtype,
              element_at(wanted, context.rank, index + wanted.salt));
    }
    call.input = buffers.input;
    call.output = buffers.output;
    // Before the operation every rank may have written to the place of a shared result, here each
    // to a part of it; no rank stores there before all have arrived.
    if (wanted.placement == Placement::kSharedResult) {
        const auto part = [&](int rank) {
            const auto ranks = static_cast<std::uint64_t>(context.world);
            return elements * static_cast<std::uint64_t>(rank) / ranks * element;
        };
        const Bytes from = part(context.rank);
        std::memset(buffers.output + from, 0x55 + context.rank, part(context.rank + 1) - from);
    }
    const auto result = perform(context, wanted, call);
    if (!result.ok()) return report(context, "%s", describe(result.error()).c_str());
    const bool right = verify(context, wanted, shape, call);
    // A shared result must not be overwritten by the next case while others still read it.
    Call barrier;
    barrier.deadline = call.deadline;
    const auto met = context.group.run(barrier);
    if (!met.ok()) return report(context, "barrier: %s", describe(met.error()).c_str());
    return right;
}

}  // namespace test_support
