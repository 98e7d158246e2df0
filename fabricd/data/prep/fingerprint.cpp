#include "fabricd/data/prep/fingerprint.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace fabricd {

namespace {

// The finaliser of splitmix64: each bit of the result depends on each bit of the number.
std::uint64_t mixed(std::uint64_t number) noexcept {
    number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9U;
    number = (number ^ (number >> 27)) * 0x94d049bb133111ebU;
    return number ^ (number >> 31);
}

}  // namespace

// Four chains over the same words, each with a start of its own. The length is the last word, so
// that a text and the same text with zeros behind it differ.
Fingerprint fingerprint_of(std::string_view text) noexcept {
    Fingerprint chains = {1, 2, 3, 4};
    for (auto& chain : chains) chain = mixed(chain * 0x9e3779b97f4a7c15U);
    const auto add = [&chains](std::uint64_t word) {
        for (auto& chain : chains) chain = mixed((chain ^ word) + 0x9e3779b97f4a7c15U * chain);
    };
    for (std::size_t at = 0; at < text.size(); at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, text.data() + at, std::min<std::size_t>(8, text.size() - at));
        add(word);
    }
    add(text.size());
    return chains;
}

std::string text_of(const Fingerprint& fingerprint) {
    char text[65];
    std::snprintf(text, sizeof text, "%016llx%016llx%016llx%016llx",
                  static_cast<unsigned long long>(fingerprint[0]),
                  static_cast<unsigned long long>(fingerprint[1]),
                  static_cast<unsigned long long>(fingerprint[2]),
                  static_cast<unsigned long long>(fingerprint[3]));
    return text;
}

}  // namespace fabricd
