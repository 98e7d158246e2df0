#include "tests/fuzz/fuzz.hpp"

#include <cstdio>
#include <cstdlib>

namespace fuzz {

namespace {

// Made by the first Registered, whichever file's that is.
std::vector<Target>& registered() {
    static std::vector<Target> targets;
    return targets;
}

}  // namespace

const std::vector<Target>& targets() {
    return registered();
}

Registered::Registered(const Target& target) {
    auto& all = registered();
    const auto at = std::find_if(all.begin(), all.end(), [&](const Target& other) {
        return std::string_view(target.name) < other.name;
    });
    all.insert(at, target);
}

void append_bytes(Buffer& buffer, Data bytes) {
    buffer.insert(buffer.end(), bytes.begin(), bytes.end());
}

void rule_broken(const char* condition, const char* file, int line) noexcept {
    std::fprintf(stderr, "fuzz: rule broken: %s at %s:%d\n", condition, file, line);
    std::abort();
}

}  // namespace fuzz
