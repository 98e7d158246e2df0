#include "libfabricshm/shm/seqlock.hpp"

#include <doctest/doctest.h>

#include <array>
#include <thread>

using namespace fabricshm;

TEST_SUITE("shm.seqlock") {
    TEST_CASE("what is copied during a write is never half old and half new") {
        constexpr std::size_t kWords = 16;
        constexpr std::uint64_t kWrites = 20'000;
        SharedWord sequence{0};
        std::array<SharedWord, kWords> words{};
        std::thread writer([&] {
            for (std::uint64_t i = 1; i <= kWrites; ++i) {
                std::array<std::uint64_t, kWords> all;
                all.fill(i);
                seqlock_begin(sequence);
                seqlock_store(words.data(), all.data(), kWords);
                seqlock_end(sequence);
                if (i % 64 == 0) std::this_thread::yield();
            }
        });
        int torn = 0, backwards = 0;
        std::uint64_t last = 0;
        while (last < kWrites) {
            const std::uint64_t seen = seqlock_peek(sequence);
            std::array<std::uint64_t, kWords> copy;
            seqlock_load(words.data(), copy.data(), kWords);
            if (!seqlock_check(sequence, seen)) {
                std::this_thread::yield();
                continue;
            }
            for (const std::uint64_t word : copy) torn += word != copy[0];
            backwards += copy[0] < last;
            last = copy[0];
        }
        writer.join();
        CHECK(torn == 0);
        CHECK(backwards == 0);
        CHECK(seqlock_peek(sequence) == 2 * kWrites);
    }

    TEST_CASE("a write that was never finished is not copied, and the next writer mends it") {
        SharedWord sequence{0};
        SharedWord word{0};
        seqlock_begin(sequence);
        CHECK_FALSE(seqlock_check(sequence, seqlock_peek(sequence)));
        const std::uint64_t value = 7;
        seqlock_begin(sequence);
        seqlock_store(&word, &value, 1);
        CHECK(seqlock_end(sequence) == 2);
        CHECK(seqlock_check(sequence, 2));
        CHECK_FALSE(seqlock_check(sequence, 0));
    }
}
