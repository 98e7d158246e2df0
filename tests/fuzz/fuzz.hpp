// What a fuzz target is made of. Each NAME_fuzz.cpp registers one, entry.cpp makes a libFuzzer
// program of it, and tests/unit/fuzz/corpus_test.cpp runs the kept inputs of all of them without
// libFuzzer. docs/testing.md.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace fuzz {

using Data = std::span<const std::byte>;
using Buffer = std::vector<std::byte>;

/// Changes some bytes, as libFuzzer would; the buffer may grow to `most`.
using MutateBytes = std::function<void(Buffer& bytes, std::size_t most)>;

struct Target {
    const char* name;
    /// Takes an input; aborts when what comes of it breaks a rule.
    void (*run)(Data input);
    /// Inputs to begin with, made of valid objects.
    std::vector<Buffer> (*seeds)();
    /// Where plain changes of bytes would not get past a checksum; nullptr: they do. `random` is
    /// different in each call.
    void (*mutate)(Buffer& bytes, std::size_t most, std::uint32_t random,
                   const MutateBytes& change) = nullptr;
};

/// All targets of this program, by name.
const std::vector<Target>& targets();

/// `const fuzz::Registered kTarget({"name", run, seeds});` at file scope.
class Registered {
  public:
    explicit Registered(const Target& target);
};

/// Prints the condition and aborts: libFuzzer keeps the input, and a debugger has the stack.
[[noreturn]] void rule_broken(const char* condition, const char* file, int line) noexcept;

#define FUZZ_REQUIRE(condition)                                                \
    do {                                                                       \
        if (!(condition)) ::fuzz::rule_broken(#condition, __FILE__, __LINE__); \
    } while (false)

/// Takes an input apart. At its end everything is 0 or empty, so that an input may be cut anywhere.
class Input {
  public:
    explicit Input(Data left) : left_(left) {}

    bool empty() const noexcept { return left_.empty(); }

    template <typename T>
    T number() {
        static_assert(std::is_arithmetic_v<T>);
        T value{};
        const std::size_t taken = std::min(sizeof value, left_.size());
        if (taken != 0) std::memcpy(&value, left_.data(), taken);
        left_ = left_.subspan(taken);
        return value;
    }
    /// 0 to count - 1, of one byte.
    unsigned below(unsigned count) { return number<std::uint8_t>() % count; }

    Data bytes(std::size_t most) {
        const Data taken = left_.first(std::min(most, left_.size()));
        left_ = left_.subspan(taken.size());
        return taken;
    }
    std::string text(std::size_t most) { return text_of(bytes(most)); }
    Data rest() { return bytes(left_.size()); }

    static std::string text_of(Data bytes) {
        return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }

  private:
    Data left_;
};

inline Buffer buffer_of(std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
}

/// Behind what is there. Not inline: g++ 12 sees overflows in a vector's growth that are not there.
void append_bytes(Buffer& buffer, Data bytes);

/// The same of an object as it lies in memory.
template <typename T>
void append(Buffer& buffer, const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    append_bytes(buffer, std::as_bytes(std::span(&value, 1)));
}

}  // namespace fuzz
