#include "kernels/scan.hpp"

#include "kernels/reduce.hpp"
#include "tests/unit/kernels/reduce_compare.hpp"

using kernels::DType;
using kernels::ReduceOp;
using kernels_test::Buffer;
using kernels_test::Content;

namespace {

struct ScanCase {
    DType type;
    ReduceOp op;
    int ranks;
    std::size_t count;
    bool exclusive;
    bool in_place;
    bool streaming;
    std::size_t misalignment;
};

std::vector<Buffer> inputs_of(const ScanCase& what) {
    kernels_test::Random random(what.count + static_cast<std::size_t>(what.ranks));
    std::vector<Buffer> inputs;
    const std::size_t bytes = what.count * kernels::size_of(what.type);
    for (int rank = 0; rank < what.ranks; ++rank) {
        inputs.emplace_back(bytes, what.misalignment * static_cast<std::size_t>(rank + 1) % 64);
        kernels_test::fill(inputs.back(), what.type, Content::kSpecial, 9, random);
    }
    return inputs;
}

// What destination `rank` has to be: what reduce() gives of the sources that belong to it.
std::vector<unsigned char> expected(const ScanCase& what, const std::vector<Buffer>& inputs,
                                    int rank) {
    std::vector<unsigned char> result(what.count * kernels::size_of(what.type), 0x5a);
    const int sources = what.exclusive ? rank : rank + 1;
    if (sources == 0) return result;  // left alone
    std::vector<const void*> from;
    for (const Buffer& input : inputs) from.push_back(input.data());
    void* to = result.data();
    kernels::ReduceJob job{what.type, what.op, from.data(), sources, &to, 1, what.count};
    kernels::reduce(job);
    return result;
}

int wrong(const ScanCase& what) {
    const std::vector<Buffer> inputs = inputs_of(what);
    std::vector<Buffer> sources = inputs, results;
    std::vector<const void*> from;
    std::vector<void*> to;
    for (int rank = 0; rank < what.ranks; ++rank) {
        const std::size_t bytes = what.count * kernels::size_of(what.type);
        results.emplace_back(bytes, what.misalignment * static_cast<std::size_t>(rank + 2) % 64);
        std::memset(results.back().data(), 0x5a, bytes);
    }
    for (int rank = 0; rank < what.ranks; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        from.push_back(sources[at].data());
        to.push_back(what.in_place ? sources[at].data() : results[at].data());
    }
    kernels::ScanJob job{what.type, what.op, from.data(), to.data(), what.ranks, what.count};
    job.exclusive = what.exclusive;
    job.streaming = what.streaming;
    kernels::scan(job);
    int bad = 0;
    for (int rank = 0; rank < what.ranks; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        const Buffer& result = what.in_place ? sources[at] : results[at];
        bad += result.guards_intact() ? 0 : 1;
        if (what.exclusive && what.in_place && rank == 0) continue;
        const auto right = expected(what, inputs, rank);
        bad += right.empty() || std::memcmp(right.data(), result.data(), right.size()) == 0 ? 0 : 1;
    }
    return bad;
}

}  // namespace

TEST_SUITE("kernels.scan") {
    TEST_CASE("every destination has the bits of reducing its sources at once") {
        int bad = 0;
        kernels_test::for_each_operation(
            [&](DType type, ReduceOp op) {
                if (op == ReduceOp::kAvg) return;
                for (const int ranks : {1, 2, 3, 8}) {
                    for (const std::size_t count : {0, 1, 17, 1100}) {
                        for (int form = 0; form < 8; ++form) {
                            bad += wrong({type, op, ranks, count, (form & 1) != 0, (form & 2) != 0,
                                          (form & 4) != 0, form == 5 ? std::size_t{1} : 0});
                        }
                    }
                }
            },
            false);
        CHECK(bad == 0);
    }

    TEST_CASE("as many ranks as a group may have") {
        for (const DType type : {DType::kBF16, DType::kF32}) {
            for (const bool exclusive : {false, true}) {
                CHECK(wrong({type, ReduceOp::kSum, 256, 100, exclusive, true, false, 0}) == 0);
            }
        }
    }
}
