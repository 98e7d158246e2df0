#include "libfabricshm/shm/limits_page.hpp"

#include <array>
#include <iterator>

#include "libfabricshm/shm/seqlock.hpp"

namespace fabricshm {

namespace {

// What an image holds, word by word.
constexpr std::uint64_t Limits::*kLimitFields[] = {
    &Limits::quota_bytes,   &Limits::target_bytes,     &Limits::context_bytes,
    &Limits::share_percent, &Limits::configured_bytes, &Limits::configured_percent,
    &Limits::wait_ms,       &Limits::most_bytes,
};
constexpr std::size_t kLimitCount = std::size(kLimitFields);
static_assert(kLimitCount <= LimitsPage::kWords);
using LimitsImage = std::array<std::uint64_t, kLimitCount>;

// A change takes a microsecond and there are a few per second: more tries are never needed.
constexpr int kTries = 64;

}  // namespace

void format_limits(LimitsPage& page) noexcept {
    page.serial.store(0, std::memory_order_relaxed);
    page.version = LimitsPage::kVersion;
    page.magic = LimitsPage::kMagic;
}

bool is_limits_page(const LimitsPage& page) noexcept {
    return page.magic == LimitsPage::kMagic && page.version == LimitsPage::kVersion;
}

void write_limits(LimitsPage& page, const Limits& limits) noexcept {
    const std::uint64_t next = page.serial.load(std::memory_order_relaxed) + 1;
    LimitsImage image;
    for (std::size_t i = 0; i < kLimitCount; ++i) image[i] = limits.*kLimitFields[i];
    // These stores are behind that of the serial before: a reader that finds one of them in the
    // image that it copies (that of two changes ago) also finds that serial, and copies again.
    seqlock_store(page.image[next & 1], image.data(), kLimitCount);
    // Release: a reader of the new serial finds the whole image behind it.
    page.serial.store(next, std::memory_order_release);
}

std::optional<Limits> read_limits(const LimitsPage& page) noexcept {
    for (int i = 0; i < kTries; ++i) {
        Limits limits;
        // Acquire, against the release of the writer: the image of this serial is complete.
        limits.serial = page.serial.load(std::memory_order_acquire);
        if (limits.serial == 0) return std::nullopt;
        LimitsImage image;
        // Acquires: had a word been overwritten, the serial that is read next would be a later one.
        seqlock_load(page.image[limits.serial & 1], image.data(), kLimitCount);
        for (std::size_t i = 0; i < kLimitCount; ++i) limits.*kLimitFields[i] = image[i];
        if (page.serial.load(std::memory_order_relaxed) == limits.serial) return limits;
    }
    return std::nullopt;
}

}  // namespace fabricshm
