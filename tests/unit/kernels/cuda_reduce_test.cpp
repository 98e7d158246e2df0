// The body of the CUDA reduction, run on the CPU, through the cases that every version has to pass.

#include "kernels/cuda/reduce_body.hpp"

#include "tests/support/cpu_grid.hpp"
#include "tests/unit/kernels/reduce_cases.hpp"

namespace {

using kernels::cuda::Address;
using kernels::cuda::worker_of_grid;
using test_support::address_of;

void reduce_as_grid(const kernels::ReduceJob& job) noexcept {
    std::vector<Address> sources, destinations;
    for (int s = 0; s < job.source_count; ++s) sources.push_back(address_of(job.sources[s]));
    for (int d = 0; d < job.destination_count; ++d) {
        destinations.push_back(address_of(job.destinations[d]));
    }
    const kernels::cuda::Operands operands = {
        job.type,    job.op,    job.source_count, job.destination_count,
        job.divisor, job.count, sources.data(),   destinations.data()};
    test_support::run_serial([&](test_support::SerialGrid& grid) {
        kernels::cuda::reduce_span(grid, operands, worker_of_grid(grid));
    });
}

void copy_as_grid(void* const* destinations, int count, const void* source,
                  std::size_t bytes) noexcept {
    for (int d = 0; d < count; ++d) {
        const kernels::cuda::CopyArgs args = {
            address_of(source), address_of(destinations[d]), bytes, {}};
        test_support::run_serial(
            [&](test_support::SerialGrid& grid) { kernels::cuda::copy_body(grid, args); });
    }
}

kernels::ReduceTable table() {
    kernels::ReduceTable table = {};
    for (int type = 0; type < kernels::kDTypeCount; ++type) {
        for (int op = 0; op < kernels::kReduceOpCount; ++op) {
            const bool has =
                is_supported(static_cast<kernels::DType>(type), static_cast<kernels::ReduceOp>(op));
            table.function[type][op] = has ? reduce_as_grid : nullptr;
        }
    }
    return table;
}

}  // namespace

namespace kernels_test {

const kernels::KernelSet* tested_set() {
    static const kernels::ReduceTable kTable = table();
    static const kernels::KernelSet kCuda = {"cuda",       nullptr,      &kTable,
                                             copy_as_grid, copy_as_grid, nullptr};
    return &kCuda;
}

}  // namespace kernels_test

TEST_SUITE("kernels.cuda_reduce") {
    TEST_CASE("a single source is copied bit by bit, at any alignment of both") {
        for (std::size_t from : {0, 1, 2, 4, 8, 15, 16}) {
            for (std::size_t to : {0, 1, 2, 4, 8, 15, 16}) {
                for (std::size_t bytes : {0, 1, 3, 15, 16, 17, 31, 100, 1021}) {
                    kernels_test::Buffer source(bytes, from), destination(bytes, to);
                    for (std::size_t i = 0; i < bytes; ++i) {
                        source.data()[i] = static_cast<unsigned char>(i * 7 + from);
                    }
                    void* const where = destination.data();
                    copy_as_grid(&where, 1, source.data(), bytes);
                    CHECK((bytes == 0 || std::memcmp(where, source.data(), bytes) == 0));
                    CHECK(destination.guards_intact());
                }
            }
        }
    }

    TEST_CASE("sizes and alignments of elements are those of the table of types") {
        for (const kernels::DTypeRow& row : kernels::kDTypeRows) {
            CHECK(kernels::cuda::bytes_of(row.type) == row.size);
            const bool pair = row.kind == kernels::Class::kLocated;
            CHECK(kernels::cuda::alignment_of(row.type) == (pair ? row.size / 2 : row.size));
        }
    }
}
