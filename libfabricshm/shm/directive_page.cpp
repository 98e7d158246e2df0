#include "libfabricshm/shm/directive_page.hpp"

#include <cmath>
#include <cstring>
#include <new>

namespace fabricshm {

namespace {

// Shares are sums of quotients: this much they may miss 1 by.
constexpr double kShareSlack = 1e-6;

DirectivePage& directives_in(std::byte* page) noexcept {
    return *reinterpret_cast<DirectivePage*>(page);
}

const DirectivePage& directives_in(const std::byte* page) noexcept {
    return *reinterpret_cast<const DirectivePage*>(page);
}

}  // namespace

Result<void> check_directives(const DirectiveImage& image) noexcept {
    const Error bad{Errc::kInvalid, 0, "directives"};
    if (image.world < 0 || image.world > kPeersMax) return bad;
    double sum = 0;
    for (int rank = 0; rank < kPeersMax; ++rank) {
        const double share = image.batch_share[rank];
        // Written so that NaN is refused, too.
        if (!(share >= 0 && share <= 1)) return bad;
        const bool outside = rank >= image.world;
        if (outside && (share > 0 || image.work_units[rank] != 0)) return bad;
        sum += share;
    }
    const bool adds_up = sum == 0 || std::abs(sum - 1) <= kShareSlack;
    return adds_up ? Result<void>() : bad;
}

void format_directives(std::byte* page) noexcept {
    auto* fresh = ::new (static_cast<void*>(page)) DirectivePage{};
    fresh->version = kDirectiveVersion;
    fresh->magic = kDirectiveMagic;
}

void write_directives(std::byte* page, const DirectiveImage& image) noexcept {
    DirectivePage& shared = directives_in(page);
    seqlock_begin(shared.sequence);
    seqlock_store(shared.image, &image, kDirectiveWords);
    seqlock_end(shared.sequence);
}

Result<void> check_directive_page(const std::byte* page) noexcept {
    if (directives_in(page).magic != kDirectiveMagic)
        return Error{Errc::kCorrupt, 0, "directive page"};
    if (directives_in(page).version != kDirectiveVersion) {
        return Error{Errc::kVersion, 0, "directive page"};
    }
    return {};
}

PageRead read_directives(const std::byte* page, DirectiveImage& image,
                         std::uint64_t& seen) noexcept {
    const DirectivePage& shared = directives_in(page);
    DirectiveImage copy;
    std::uint64_t sequence = 0;
    const PageRead read = seqlock_read(shared.sequence, seen, sequence,
                                       [&] { seqlock_load(shared.image, &copy, kDirectiveWords); });
    if (read != PageRead::kFresh) return read;
    if (!check_directives(copy).ok()) return PageRead::kTorn;
    image = copy;
    seen = sequence;
    return read;
}

void write_quotas(std::byte* page, const QuotaImage& image) noexcept {
    DirectivePage& shared = directives_in(page);
    seqlock_begin(shared.quota_sequence);
    seqlock_store(shared.quota, &image, kQuotaWords);
    seqlock_end(shared.quota_sequence);
}

PageRead read_quotas(const std::byte* page, QuotaImage& image, std::uint64_t& seen) noexcept {
    const DirectivePage& shared = directives_in(page);
    QuotaImage copy;
    std::uint64_t sequence = 0;
    const PageRead read = seqlock_read(shared.quota_sequence, seen, sequence,
                                       [&] { seqlock_load(shared.quota, &copy, kQuotaWords); });
    if (read != PageRead::kFresh) return read;
    for (const LimitImage* limit : {&copy.device, &copy.user}) {
        if (limit->target_bytes > limit->limit_bytes) return PageRead::kTorn;
    }
    image = copy;
    seen = sequence;
    return read;
}

}  // namespace fabricshm
