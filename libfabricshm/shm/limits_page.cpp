#include "libfabricshm/shm/limits_page.hpp"

namespace fabricshm {

namespace {

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
    // A reader that sees one of the stores below also sees the serial of before, and so knows that
    // the image which it is reading (that of two changes ago) is being overwritten.
    std::atomic_thread_fence(std::memory_order_release);
    auto& image = page.image[next & 1];
    image[0].store(limits.quota_bytes, std::memory_order_relaxed);
    image[1].store(limits.target_bytes, std::memory_order_relaxed);
    image[2].store(limits.context_bytes, std::memory_order_relaxed);
    image[3].store(limits.share_percent, std::memory_order_relaxed);
    image[4].store(limits.configured_bytes, std::memory_order_relaxed);
    image[5].store(limits.configured_percent, std::memory_order_relaxed);
    image[6].store(limits.wait_ms, std::memory_order_relaxed);
    image[7].store(limits.most_bytes, std::memory_order_relaxed);
    // Release: a reader of the new serial finds the whole image behind it.
    page.serial.store(next, std::memory_order_release);
}

std::optional<Limits> read_limits(const LimitsPage& page) noexcept {
    for (int i = 0; i < kTries; ++i) {
        Limits limits;
        // Acquire, against the release of the writer: the image of this serial is complete.
        limits.serial = page.serial.load(std::memory_order_acquire);
        if (limits.serial == 0) return std::nullopt;
        const auto& image = page.image[limits.serial & 1];
        limits.quota_bytes = image[0].load(std::memory_order_relaxed);
        limits.target_bytes = image[1].load(std::memory_order_relaxed);
        limits.context_bytes = image[2].load(std::memory_order_relaxed);
        limits.share_percent = image[3].load(std::memory_order_relaxed);
        limits.configured_bytes = image[4].load(std::memory_order_relaxed);
        limits.configured_percent = image[5].load(std::memory_order_relaxed);
        limits.wait_ms = image[6].load(std::memory_order_relaxed);
        limits.most_bytes = image[7].load(std::memory_order_relaxed);
        // Acquire fence, against the writer's release fence: had a word been overwritten, the
        // serial read next would be a later one.
        std::atomic_thread_fence(std::memory_order_acquire);
        if (page.serial.load(std::memory_order_relaxed) == limits.serial) return limits;
    }
    return std::nullopt;
}

}  // namespace fabricshm
