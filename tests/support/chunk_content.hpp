// What a file of a test holds: bytes that follow from its path, its version and their offset alone,
// so that a byte of another file, version or place is noticed.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "fabricd/data/silo/silo.hpp"

namespace test_support {

inline std::uint64_t content_word(std::uint64_t seed, std::uint64_t index) {
    // splitmix64
    std::uint64_t word = seed + (index + 1) * 0x9e3779b97f4a7c15U;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9U;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebU;
    return word ^ (word >> 31);
}

inline std::uint64_t content_seed(const std::string& path, const fabricd::FileVersion& version) {
    std::uint64_t seed = 0xcbf29ce484222325U;
    for (const char letter : path)
        seed = (seed ^ static_cast<unsigned char>(letter)) * 0x100000001b3U;
    for (const std::uint64_t word : version.words) seed = content_word(seed ^ word, 0);
    return seed;
}

/// The bytes from `offset` (a multiple of 8) on.
inline std::vector<std::byte> content_of(const std::string& path,
                                         const fabricd::FileVersion& version, std::uint64_t offset,
                                         std::size_t bytes) {
    const std::uint64_t seed = content_seed(path, version);
    std::vector<std::byte> content((bytes + 7) / 8 * 8);
    for (std::size_t at = 0; at < content.size(); at += 8) {
        const std::uint64_t word = content_word(seed, (offset + at) / 8);
        std::memcpy(content.data() + at, &word, sizeof word);
    }
    content.resize(bytes);
    return content;
}

}  // namespace test_support
