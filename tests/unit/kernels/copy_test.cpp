#include "kernels/copy.hpp"

#include "tests/unit/kernels/reduce_compare.hpp"

using namespace kernels_test;

namespace {

using Copy = void (*)(void* const*, int, const void*, std::size_t, bool);

struct CopyCase {
    std::size_t bytes, source_misalignment, destination_misalignment;
    int destinations;
    bool streaming;
};

// Destinations lie at growing misalignments, so that some can be streamed to and some can't.
template <class Function>
bool copies_right(const CopyCase& what, const Function& copy) {
    Random random(what.bytes);
    Buffer source(what.bytes, what.source_misalignment);
    fill(source, kernels::DType::kU8, Content::kRandomBits, 1, random);
    const std::vector<unsigned char> before(source.data(), source.data() + what.bytes);
    std::vector<Buffer> destinations;
    std::vector<void*> pointers;
    for (int d = 0; d < what.destinations; ++d) {
        destinations.emplace_back(what.bytes, what.destination_misalignment * (d + 1) % 64);
    }
    for (Buffer& destination : destinations) pointers.push_back(destination.data());
    copy(pointers.data(), what.destinations, source.data(), what.bytes, what.streaming);
    if (!source.guards_intact()) return false;
    for (const Buffer& destination : destinations) {
        if (!destination.guards_intact()) return false;
        if (!std::equal(before.begin(), before.end(), destination.data())) return false;
    }
    return std::equal(before.begin(), before.end(), source.data());
}

template <class Function>
int count_failures(const Function& copy) {
    int failures = 0;
    for (bool streaming : {false, true}) {
        for (int destinations : {1, 2, 5}) {
            for (std::size_t bytes = 0; bytes <= 700; ++bytes) {
                failures +=
                    !copies_right({bytes, bytes % 7, bytes % 5, destinations, streaming}, copy);
            }
            for (std::size_t source : {0, 1, 3, 32, 63}) {
                for (std::size_t destination : {0, 1, 4, 31, 32, 33, 63}) {
                    failures +=
                        !copies_right({10007, source, destination, destinations, streaming}, copy);
                }
            }
        }
    }
    return failures;
}

}  // namespace

TEST_SUITE("kernels.copy") {
    TEST_CASE("every instruction set copies all bytes to all destinations and nothing else") {
        for (int i = 0; kernels::kernel_set(i) != nullptr; ++i) {
            const kernels::KernelSet& set = *kernels::kernel_set(i);
            if (!set.available()) continue;
            CAPTURE(set.name);
            CHECK(count_failures([&set](void* const* to, int count, const void* from,
                                        std::size_t bytes, bool streaming) {
                      if (bytes == 0) return;  // the entry points drop empty copies
                      (streaming ? set.copy_streaming : set.copy_cached)(to, count, from, bytes);
                  }) == 0);
        }
    }

    TEST_CASE("copy and copy_to_all reach the chosen set") {
        CHECK(count_failures(kernels::copy_to_all) == 0);
        CHECK(count_failures([](void* const* to, int count, const void* from, std::size_t bytes,
                                bool streaming) {
                  for (int d = 0; d < count; ++d) kernels::copy(to[d], from, bytes, streaming);
              }) == 0);
    }
}
