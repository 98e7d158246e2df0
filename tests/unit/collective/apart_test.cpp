#include "libfabricshm/collective/apart.hpp"

#include <doctest/doctest.h>

#include <random>
#include <vector>

using namespace fabricshm;

namespace {

bool overlap(Bytes a, Bytes a_bytes, Bytes b, Bytes b_bytes) {
    for (Bytes byte = a; byte < a + a_bytes; ++byte) {
        if (byte >= b && byte < b + b_bytes) return true;
    }
    return false;
}

// The rule, byte by byte.
bool apart_by_bytes(const std::vector<BufferPlace>& ranks) {
    for (std::size_t a = 0; a < ranks.size(); ++a) {
        for (std::size_t b = 0; b < ranks.size(); ++b) {
            if (a == b) continue;
            const BufferPlace& one = ranks[a];
            const BufferPlace& other = ranks[b];
            if (overlap(one.output, one.output_bytes, other.output, other.output_bytes) ||
                overlap(one.output, one.output_bytes, other.input, other.input_bytes)) {
                return false;
            }
        }
    }
    return true;
}

}  // namespace

TEST_SUITE("collective.apart") {
    TEST_CASE("random places get the verdict of comparing them byte by byte") {
        std::mt19937 random(7);
        const auto below = [&](Bytes end) { return static_cast<Bytes>(random()) % end; };
        int apart = 0;
        for (int round = 0; round < 4000; ++round) {
            std::vector<BufferPlace> ranks(2 + below(6));
            for (BufferPlace& rank : ranks) {
                rank = {below(200), below(12), below(200), below(12)};
                if (below(3) == 0) rank.input = rank.output;  // in place
            }
            const bool expected = apart_by_bytes(ranks);
            apart += expected ? 1 : 0;
            CAPTURE(round);
            CHECK(check_apart(ranks).ok() == expected);
        }
        CHECK(apart > 400);  // both verdicts were asked for
        CHECK(apart < 3600);
    }

    TEST_CASE("a rank's own buffers, and inputs among themselves, may overlap") {
        CHECK(check_apart(std::vector<BufferPlace>{{0, 64, 0, 64}, {100, 64, 200, 64}}).ok());
        CHECK(check_apart(std::vector<BufferPlace>{{0, 64, 100, 64}, {0, 64, 200, 64}}).ok());
    }

    TEST_CASE("buffers without bytes are never in the way") {
        CHECK(check_apart(std::vector<BufferPlace>{{10, 0, 10, 64}, {10, 0, 10, 0}}).ok());
    }

    TEST_CASE("a shared output is the same on all ranks, in place and in size") {
        CHECK(check_shared(std::vector<BufferPlace>{{0, 8, 64, 8}, {8, 8, 64, 8}}).ok());
        CHECK_FALSE(check_shared(std::vector<BufferPlace>{{0, 8, 64, 8}, {8, 8, 72, 8}}).ok());
        CHECK_FALSE(check_shared(std::vector<BufferPlace>{{0, 8, 64, 8}, {8, 8, 64, 16}}).ok());
    }
}
