#include "libfabricshm/vgpu/share.hpp"

#include <algorithm>
#include <cmath>

namespace fabricshm::cuda {

namespace {

// All words stand for themselves: a process that sees an old one lets a launch more or less
// through, and the next window corrects it. So every access is relaxed.
constexpr auto kRelaxed = std::memory_order_relaxed;

// Tokens that can be saved up: enough for a program that prepares a while and then launches many,
// and a tenth of a window, so that what was saved is no large part of what is measured.
constexpr std::int64_t kBurstMs = 20;
// Nothing wakes a thread that naps: a raised rate, or tokens that a refused launch gave back, are
// seen after it.
constexpr std::int64_t kNapMostNs = 10'000'000;
constexpr std::int64_t kSkewNs = 50'000'000;  // between the clock readings of two processes
// In one window the rate is at most halved, and raised by at most half: a sample that is wrong
// (NVML's intervals are not ours) takes two or three windows to make up for, not ten. The least
// raise is there because NVML's whole per cent hide small gaps.
constexpr double kMaxCut = 0.5;
constexpr double kMaxRaise = 0.5;
constexpr double kMinRaise = 0.01;
constexpr double kMaxRate = 1e15;  // a corrupt word must not overflow the rest

// Words of the ledger have no sign; tokens are two's complement in them.
std::int64_t signed_of(std::uint64_t word) noexcept {
    return static_cast<std::int64_t>(word);
}

std::uint64_t sane(double rate) noexcept {
    return static_cast<std::uint64_t>(std::clamp(rate, 1.0, kMaxRate));
}

void refill(ShareBucket& bucket, std::int64_t rate, std::int64_t now_ns) noexcept {
    std::uint64_t last = bucket.refilled_ns.load(kRelaxed);
    // Unsigned, since the word may be corrupt and a signed difference overflow.
    const std::int64_t since = signed_of(static_cast<std::uint64_t>(now_ns) - last);
    // In steps of 50 us: shorter ones would be rounded away, and cost every launch an exchange. A
    // time far ahead was never one of ours; waiting for it would stop the bucket for ever.
    if (since < 50'000 && since > -kSkewNs) return;
    const std::int64_t passed = std::clamp<std::int64_t>(since, 0, kBurstMs * 1'000'000);
    // One caller takes the time that has passed; a caller that dies before it adds the tokens loses
    // them.
    if (!bucket.refilled_ns.compare_exchange_strong(last, static_cast<std::uint64_t>(now_ns),
                                                    kRelaxed)) {
        return;
    }
    const auto more =
        static_cast<std::int64_t>(static_cast<double>(rate) * static_cast<double>(passed) / 1e6);
    const std::int64_t most = rate * kBurstMs;
    std::uint64_t tokens = bucket.tokens.load(kRelaxed);
    std::uint64_t next = 0;
    do {
        next = static_cast<std::uint64_t>(std::min(most, std::min(most, signed_of(tokens)) + more));
    } while (!bucket.tokens.compare_exchange_weak(tokens, next, kRelaxed));
}

}  // namespace

std::uint64_t next_rate(std::uint64_t rate, const ShareWindow& window) noexcept {
    const bool is_sane = std::isfinite(window.busy) && window.busy >= 0.0 && window.wanted > 0.0;
    if (!is_sane) return rate;
    const auto spent = static_cast<double>(window.spent_per_ms);
    if (rate == 0) {
        // Let run freely so far: what was done in that time is the first measure.
        const bool is_known = window.busy > 0.0 && window.spent_per_ms > 0;
        return is_known ? sane(spent * window.wanted / window.busy) : 0;
    }
    const auto now = static_cast<double>(rate);
    if (window.busy > window.wanted) {
        return sane(now * std::max(kMaxCut, window.wanted / window.busy));
    }
    // Below its share for want of work, not of tokens: nothing to learn.
    if (!window.held_up) return rate;
    const double gap = (window.wanted - window.busy) / window.wanted;
    return sane(now + now * std::clamp(gap / 2, kMinRaise, kMaxRaise));
}

std::optional<std::int64_t> try_spend(ShareBucket& bucket, std::uint64_t work,
                                      std::int64_t now_ns) noexcept {
    const std::uint64_t word = bucket.rate.load(kRelaxed);
    if (word == 0) {
        spend_anyway(bucket, work);
        return std::nullopt;
    }
    const std::int64_t rate = signed_of(sane(static_cast<double>(word)));
    refill(bucket, rate, now_ns);
    // One token lets any launch through, which then overdraws the bucket: a kernel larger than the
    // bucket could never start otherwise, and pays by the wait of the next.
    std::uint64_t tokens = bucket.tokens.load(kRelaxed);
    while (signed_of(tokens) > 0) {
        if (bucket.tokens.compare_exchange_weak(tokens, tokens - work, kRelaxed)) {
            bucket.spent.fetch_add(work, kRelaxed);
            return std::nullopt;
        }
    }
    bucket.held_up.fetch_add(1, kRelaxed);
    // Until the first token: others that wait for it get there at about the same time, one of them
    // first. There is no queue, which a process could die in.
    const double missing = 1.0 - static_cast<double>(signed_of(tokens));
    const double nap = missing / static_cast<double>(rate) * 1e6;
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::min(nap, 1e9)), 50'000,
                                    kNapMostNs);
}

void spend_anyway(ShareBucket& bucket, std::uint64_t work) noexcept {
    // Without a rate there is no bucket yet, but the work counts: it is what the first rate is made
    // of.
    if (bucket.rate.load(kRelaxed) != 0) bucket.tokens.fetch_sub(work, kRelaxed);
    bucket.spent.fetch_add(work, kRelaxed);
}

void unspend(ShareBucket& bucket, std::uint64_t work) noexcept {
    if (bucket.rate.load(kRelaxed) != 0) bucket.tokens.fetch_add(work, kRelaxed);
    // Not below 0: a window that ended meanwhile has counted it, and began with nothing.
    std::uint64_t spent = bucket.spent.load(kRelaxed);
    while (spent >= work && !bucket.spent.compare_exchange_weak(spent, spent - work, kRelaxed)) {
    }
}

bool take_window(ShareBucket& bucket, std::int64_t now_ns, std::int64_t length_ns) noexcept {
    std::uint64_t end = bucket.window_ns.load(kRelaxed);
    // Also when it ends further ahead than a window: one of another length began while nothing was
    // held back, or the word is corrupt.
    const bool is_over = now_ns >= signed_of(end) || signed_of(end) > now_ns + length_ns + kSkewNs;
    return is_over && bucket.window_ns.compare_exchange_strong(
                          end, static_cast<std::uint64_t>(now_ns + length_ns), kRelaxed);
}

void end_window(ShareBucket& bucket, double wanted, double busy, std::int64_t length_ns) noexcept {
    ShareWindow window;
    window.wanted = wanted;
    window.busy = busy;
    const double spent = static_cast<double>(bucket.spent.exchange(0, kRelaxed));
    window.spent_per_ms = static_cast<std::uint64_t>(std::min(
        kMaxRate, spent * 1e6 / static_cast<double>(std::max<std::int64_t>(1, length_ns))));
    window.held_up = bucket.held_up.exchange(0, kRelaxed) > 0;
    const std::uint64_t before = bucket.rate.load(kRelaxed);
    const std::uint64_t rate = next_rate(before, window);
    // The first rate begins with an empty bucket, whatever the word held before. Before the rate,
    // for order's sake only: relaxed, and a process that sees the rate first spends at most one old
    // bucket.
    if (before == 0 && rate != 0) bucket.tokens.store(0, kRelaxed);
    bucket.rate.store(rate, kRelaxed);
}

}  // namespace fabricshm::cuda
