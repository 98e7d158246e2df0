#include "libfabricshm/base/crc32c.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <string>

using fabricshm::crc32c;
using fabricshm::crc32c_joined;

namespace {

// Bit by bit, from the definition.
std::uint32_t slowly(const std::string& text) {
    std::uint32_t value = ~0U;
    for (const char c : text) {
        value ^= static_cast<unsigned char>(c);
        for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) * 0x82f63b78U);
    }
    return ~value;
}

}  // namespace

TEST_SUITE("base.crc32c") {
    TEST_CASE("the published check values come out") {
        CHECK(crc32c("123456789", 9) == 0xe3069283U);
        const std::string zeros(32, '\0');
        CHECK(crc32c(zeros.data(), zeros.size()) == 0x8a9136aaU);  // RFC 3720, B.4
        CHECK(crc32c("", 0) == 0);
    }

    TEST_CASE("pieces continue each other") {
        CHECK(crc32c("6789", 4, crc32c("12345", 5)) == crc32c("123456789", 9));
    }

    TEST_CASE("every length and every place of a cut gives what the definition gives") {
        std::string text;
        for (int i = 0; i < 300; ++i) text.push_back(static_cast<char>(i * i * 31 + i));
        for (std::size_t length = 0; length <= text.size(); length += 7) {
            const std::string whole = text.substr(0, length);
            CHECK(crc32c(whole.data(), length) == slowly(whole));
            for (std::size_t cut = 0; cut <= length; cut += 5) {
                const std::uint32_t first = crc32c(whole.data(), cut);
                const std::uint32_t second = crc32c(whole.data() + cut, length - cut);
                CHECK(crc32c_joined(first, second, length - cut) == slowly(whole));
            }
        }
    }

    TEST_CASE("pieces of gigabytes are joined, too") {
        // Zeros after zeros: what lies before decides.
        const std::string block(1 << 20, '\0');
        std::uint32_t direct = crc32c("x", 1);
        for (int i = 0; i < 64; ++i) direct = crc32c(block.data(), block.size(), direct);
        std::uint32_t zeros = crc32c(block.data(), block.size());
        for (std::uint64_t bytes = 1 << 20; bytes < 64 << 20; bytes *= 2) {
            zeros = crc32c_joined(zeros, zeros, bytes);
        }
        CHECK(crc32c_joined(crc32c("x", 1), zeros, 64 << 20) == direct);
    }
}
