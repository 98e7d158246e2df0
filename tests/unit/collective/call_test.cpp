#include "libfabricshm/collective/call.hpp"

#include <doctest/doctest.h>

using namespace fabricshm;

namespace {

Call allreduce(std::byte* input, std::byte* output, std::uint64_t count) {
    Call call;
    call.kind = Kind::kAllreduce;
    call.dtype = kernels::DType::kF32;
    call.input = input;
    call.output = output;
    call.count = count;
    return call;
}

Errc refusal(const Call& call) {
    return check_call(call, 0, 4).ok() ? Errc::kOk : check_call(call, 0, 4).error().code;
}

}  // namespace

TEST_SUITE("collective.call") {
    TEST_CASE("parts follow each other, equal or not") {
        const Parts equal = Parts::equal(12, 4);
        CHECK(equal.offset(3) == 36);
        CHECK(equal.total() == 48);
        const Parts parts = Parts::of({2, 0, 5}, 4);
        CHECK(parts.bytes(1) == 0);
        CHECK(parts.offset(2) == 8);
        CHECK(parts.total() == 28);
        CHECK(parts.largest() == 20);
    }

    TEST_CASE("what is out of range is refused by name") {
        std::byte memory[256];
        Call call = allreduce(memory, memory + 128, 8);
        CHECK(refusal(call) == Errc::kOk);
        call.output = memory + 16;
        CHECK(refusal(call) == Errc::kInvalid);  // overlaps
        call.output = nullptr;
        CHECK(refusal(call) == Errc::kInvalid);
        call = allreduce(memory, memory, ~std::uint64_t{0});
        CHECK(refusal(call) == Errc::kInvalid);
        call = allreduce(memory, memory, 8);
        call.op = kernels::ReduceOp::kBxor;
        CHECK(refusal(call) == Errc::kUnsupported);
        call.op = kernels::ReduceOp::kLand;
        CHECK(refusal(call) == Errc::kUnsupported);
        call.op = kernels::ReduceOp::kMinLoc;
        CHECK(refusal(call) == Errc::kUnsupported);
        call.dtype = kernels::DType::kF32Loc;
        CHECK(refusal(call) == Errc::kOk);
        call.op = kernels::ReduceOp::kSum;
        CHECK(refusal(call) == Errc::kUnsupported);
        call.kind = Kind::kBroadcast;  // moves bytes, whatever they are
        CHECK(refusal(call) == Errc::kOk);
        call = allreduce(memory, memory, 8);
        call.kind = Kind::kScan;
        CHECK(refusal(call) == Errc::kOk);
        call.op = kernels::ReduceOp::kAvg;
        CHECK(refusal(call) == Errc::kInvalid);  // of how many?
        call.op = kernels::ReduceOp::kSum;
        call.counts = {1, 1, 1, 1};
        CHECK(refusal(call) == Errc::kInvalid);
        call = allreduce(memory, memory, 8);
        call.kind = Kind::kGather;
        call.algorithm = Algorithm::kRing;
        CHECK(refusal(call) == Errc::kUnsupported);
        call = Call{};
        call.kind = Kind::kSend;
        call.peer = 0;
        CHECK(refusal(call) == Errc::kInvalid);  // to itself
        call.kind = static_cast<Kind>(77);
        CHECK(refusal(call) == Errc::kInvalid);
    }

    TEST_CASE("with counts the count is ignored, whatever it is") {
        std::byte memory[256];
        Call call = allreduce(memory, memory + 128, 8);
        call.kind = Kind::kGather;
        call.counts = {1, 1, 1, 1};
        CHECK(refusal(call) == Errc::kOk);
        call.count = ~std::uint64_t{0};
        CHECK(refusal(call) == Errc::kOk);
        call.counts.clear();
        CHECK(refusal(call) == Errc::kInvalid);
    }

    TEST_CASE("counts have to fit the kind and the world") {
        std::byte memory[256];
        Call call = allreduce(memory, memory, 2);
        call.counts = {1, 1, 1, 1};
        CHECK(refusal(call) == Errc::kInvalid);
        call.kind = Kind::kAllGather;
        call.output = memory + 128;
        CHECK(refusal(call) == Errc::kOk);
        call.counts.pop_back();
        CHECK(refusal(call) == Errc::kInvalid);
        call.kind = Kind::kAllToAll;
        call.counts = {1, 1, 1, 1};
        CHECK(refusal(call) == Errc::kInvalid);  // without recv_counts
    }

    TEST_CASE("signatures distinguish different operations and ignore what may differ") {
        std::byte memory[256];
        const Call one = allreduce(memory, memory, 8);
        Call other = allreduce(memory + 64, memory + 128, 8);
        CHECK(signature_of(one) == signature_of(other));
        other.count = 9;
        CHECK(signature_of(one) != signature_of(other));
        other = one;
        other.op = kernels::ReduceOp::kMax;
        CHECK(signature_of(one) != signature_of(other));
        other = one;
        other.trigger = Trigger::kSync;
        CHECK(signature_of(one) != signature_of(other));
        other = one;
        other.flags = kSharedOutput;
        CHECK(signature_of(one) != signature_of(other));
    }

    TEST_CASE(
        "a shared output is for kinds with one result, and for algorithms that store it once") {
        std::byte memory[256];
        Call call = allreduce(memory, memory, 2);
        call.flags = kSharedOutput;
        CHECK(refusal(call) == Errc::kOk);
        call.algorithm = Algorithm::kDirect;
        CHECK(refusal(call) == Errc::kOk);
        for (const Algorithm other :
             {Algorithm::kFlat, Algorithm::kRing, Algorithm::kStaged, Algorithm::kHost}) {
            call.algorithm = other;
            CHECK(refusal(call) == Errc::kUnsupported);
        }
        call.algorithm = Algorithm::kAuto;
        call.kind = Kind::kReduce;
        CHECK(refusal(call) == Errc::kInvalid);
        call.kind = Kind::kBroadcast;
        CHECK(refusal(call) == Errc::kOk);
        call.flags = kSharedOutput | 2;
        CHECK(refusal(call) == Errc::kInvalid);
    }
}
