// The test cases every vector version of the reduction has to pass. Included by one test program
// per version, which says which one by defining tested_set().

#pragma once

#include "kernels/cpu/half.hpp"
#include "tests/unit/kernels/reduce_compare.hpp"

namespace kernels_test {

/// The version under test, or nullptr (and the program skipped) when it can't run here.
const kernels::KernelSet* tested_set();

}  // namespace kernels_test

TEST_SUITE("kernels.reduce_vector") {
    using kernels::DType;
    using kernels::ReduceOp;
    using kernels_test::Case;
    using kernels_test::Checker;
    using kernels_test::Content;

    TEST_CASE("any number of elements gives the bits of the reference") {
        Checker check(kernels_test::tested_set());
        kernels_test::for_each_operation([&](DType type, ReduceOp op) {
            for (std::size_t count = 0; count <= 300; ++count) {
                Case what{.type = type, .op = op, .count = count};
                what.sources = 1 + static_cast<int>(count % 4);
                what.divisor = what.sources;
                what.destinations = 1 + static_cast<int>(count % 3);
                what.streaming = count % 2 != 0;
                what.seed = count;
                check(what);
            }
            for (std::size_t count : {1021, 4099, 9001}) {
                Case what{.type = type, .op = op, .count = count, .sources = 3, .divisor = 3};
                what.streaming = count != 1021;
                what.source_misalignment = what.destination_misalignment = 1;
                check(what);
            }
        });
    }

    TEST_CASE("any alignment gives the bits of the reference and leaves the neighbours alone") {
        Checker check(kernels_test::tested_set());
        kernels_test::for_each_operation([&](DType type, ReduceOp op) {
            for (std::size_t source : {0, 1, 2, 5}) {
                for (std::size_t destination : {0, 1, 2, 3, 4, 7, 8, 15, 16, 31}) {
                    Case what{.type = type, .op = op, .sources = 2, .destinations = 2};
                    what.divisor = 2;
                    what.source_misalignment = source;
                    what.destination_misalignment = destination;
                    for (bool streaming : {false, true}) {
                        what.streaming = streaming;
                        what.count = (streaming ? 1000 : 4500) / kernels::size_of(type) + 3;
                        check(what);
                    }
                }
            }
        });
    }

    TEST_CASE("1 to 256 sources give the bits of the reference") {
        Checker check(kernels_test::tested_set());
        kernels_test::for_each_operation([&](DType type, ReduceOp op) {
            int turn = 0;
            for (int sources : {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 64, 255, 256}) {
                Case what{.type = type, .op = op, .sources = sources};
                what.count = (sources < 20 ? 5000 : 600) / kernels::size_of(type) + 1;
                what.divisor = sources;
                what.streaming = ++turn % 2 == 0;
                what.content = turn % 3 == 0 ? Content::kSpecial : Content::kOrdinary;
                what.seed = static_cast<std::uint64_t>(sources);
                check(what);
            }
        });
    }

    TEST_CASE("more sources than fit a cache set, over more than a block, lose nothing") {
        Checker check(kernels_test::tested_set());
        for (DType type : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI8}) {
            for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
                for (int sources : {5, 8, 9, 16, 19}) {
                    Case what{.type = type, .op = op, .count = 20011, .sources = sources};
                    what.divisor = sources;
                    what.in_place = sources / 2;
                    what.content = Content::kOrdinary;
                    check(what);
                }
            }
        }
    }

    TEST_CASE("a destination may be any of the sources, and all of them") {
        Checker check(kernels_test::tested_set());
        kernels_test::for_each_operation([&](DType type, ReduceOp op) {
            for (int sources : {1, 2, 3, 4, 8, 11}) {
                for (int in_place = 0; in_place < sources; in_place += 1 + in_place / 3) {
                    Case what{.type = type, .op = op, .count = 1501, .sources = sources};
                    what.destinations = 1 + in_place % 3;
                    what.divisor = sources;
                    what.in_place = in_place;
                    what.streaming = in_place % 2 == 0;
                    what.source_misalignment = static_cast<std::size_t>(in_place % 3);
                    check(what);
                }
                Case all{.type = type, .op = op, .count = 1501, .sources = sources};
                all.destinations = all.divisor = sources;
                all.all_in_place = true;
                all.streaming = sources % 2 == 0;
                check(all);
            }
        });
    }

    TEST_CASE("every destination receives the whole result") {
        Checker check(kernels_test::tested_set());
        kernels_test::for_each_operation([&](DType type, ReduceOp op) {
            for (int destinations : {2, 4, 5, 8, 65}) {
                Case what{.type = type, .op = op, .count = 777, .sources = 2};
                what.destinations = destinations;
                what.divisor = 2;
                what.streaming = true;
                check(what);
                for (int cached : {1, destinations - 1, destinations}) {
                    what.cached_destinations = cached;
                    check(what);
                }
                what.cached_destinations = 0;
                what.destination_misalignment = 1;  // all of them different
                check(what);
            }
        });
        Case beyond_the_streamed{.count = 500, .sources = 2, .destinations = 300};
        beyond_the_streamed.streaming = true;
        check(beyond_the_streamed);
    }

    TEST_CASE("an average divides as the reference does") {
        Checker check(kernels_test::tested_set());
        for (int type = 0; type < kernels::kDTypeCount; ++type) {
            if (!kernels::is_supported(static_cast<DType>(type), ReduceOp::kAvg)) continue;
            for (int divisor : {1, 2, 3, 5, 7, 8, 10, 64, 100, 128, 255, 256, 300, 1 << 30}) {
                for (Content content : {Content::kOrdinary, Content::kSpecial}) {
                    Case what{.type = static_cast<DType>(type), .op = ReduceOp::kAvg};
                    what.count = 1003;
                    what.divisor = divisor;
                    what.content = content;
                    check(what);
                }
            }
        }
    }

    TEST_CASE("random bits of every type agree") {
        Checker check(kernels_test::tested_set());
        kernels_test::for_each_operation([&](DType type, ReduceOp op) {
            for (int sources : {2, 3}) {
                Case what{.type = type, .op = op, .count = 6001, .sources = sources};
                what.divisor = sources;
                what.content = Content::kRandomBits;
                check(what);
            }
        });
    }

    TEST_CASE("values with an index agree, which every version takes one by one") {
        Checker check(kernels_test::tested_set());
        for (int type = 0; type < kernels::kDTypeCount; ++type) {
            if (!kernels::is_located(static_cast<DType>(type))) continue;
            for (ReduceOp op : {ReduceOp::kMinLoc, ReduceOp::kMaxLoc}) {
                for (int sources : {1, 2, 9}) {
                    Case what{.type = static_cast<DType>(type), .op = op, .count = 301};
                    what.sources = sources;
                    what.destinations = 2;
                    what.streaming = sources == 2;
                    what.content = sources == 9 ? Content::kRandomBits : Content::kSpecial;
                    check(what);
                }
            }
        }
    }

    TEST_CASE("every 16-bit float is read and rounded like the reference") {
        const kernels::KernelSet* set = kernels_test::tested_set();
        if (set == nullptr) return;
        std::vector<std::uint16_t> every(65536), expected(65536), actual(65536);
        for (std::size_t i = 0; i < every.size(); ++i) every[i] = static_cast<std::uint16_t>(i);
        for (DType type : {DType::kF16, DType::kBF16}) {
            for (int divisor : {1, 2, 3, 7, 10, 1000, 1 << 20}) {
                const void* source = every.data();
                void* destination = expected.data();
                kernels::ReduceJob job{type, ReduceOp::kAvg, &source, 1, &destination, 1, 65536};
                job.divisor = divisor;
                kernels::reduce_with(*kernels::kernel_set(0), job);
                destination = actual.data();
                kernels::reduce_with(*set, job);
                CHECK(expected == actual);
            }
        }
    }
}
