#include "libfabricshm/shm/link_policy.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace fabricshm {

namespace {

// What a touch is to the model.
enum class Weight : std::uint8_t {
    kNothing,  // rare, or a word whose way was waited for before it was stored (PoolStep::kSignal)
    kWord,     // a load of a word of a peer
    kData,     // bytes that are charged to the links
    kMessage,  // the same, and the next store announces them: the wait is now
};

Weight weight_of(TouchPoint touch) noexcept {
    switch (touch) {
        case TouchPoint::kClockRead:
        case TouchPoint::kCommandRead:
        case TouchPoint::kBellRead:
        case TouchPoint::kTinyRead:
        case TouchPoint::kSentRead:
        case TouchPoint::kPieceRead:
        case TouchPoint::kTakenRead:
        case TouchPoint::kVersionRead:
            return Weight::kWord;
        case TouchPoint::kSlot:
        case TouchPoint::kSlotRead:
        case TouchPoint::kInput:
        case TouchPoint::kInputRead:
        case TouchPoint::kResultClean:
        case TouchPoint::kShare:
        case TouchPoint::kShareRead:
        case TouchPoint::kDirectRead:
        case TouchPoint::kDirectWrite:
        case TouchPoint::kRingInputRead:
        case TouchPoint::kRingSum:
        case TouchPoint::kRingSumRead:
        case TouchPoint::kRingResult:
        case TouchPoint::kRingResultRead:
        case TouchPoint::kHostInputRead:
        case TouchPoint::kHostResult:
        case TouchPoint::kHostResultRead:
        case TouchPoint::kStagedPost:
        case TouchPoint::kStagedRead:
        case TouchPoint::kStagedResult:
        case TouchPoint::kStagedResultRead:
            return Weight::kData;
        case TouchPoint::kMessage:
        case TouchPoint::kMessageRead:
        case TouchPoint::kElements:
        case TouchPoint::kElementsRead:
            return Weight::kMessage;
        default:
            return Weight::kNothing;
    }
}

std::uint64_t next_serial() noexcept {
    static std::atomic<std::uint64_t> last{0};
    // Relaxed: only the number itself matters.
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

constexpr std::uint64_t pack(int rank, int world) noexcept {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(rank)) << 32 |
           static_cast<std::uint32_t>(world);
}

// The meter of this thread, for the policy and the place that it was made for.
struct Seat {
    std::uint64_t serial = 0;
    std::uint64_t place = 0;
    std::unique_ptr<LinkMeter> meter;
};

}  // namespace

Result<std::shared_ptr<LinkPolicy>> LinkPolicy::open(Mapping page,
                                                     std::shared_ptr<VisibilityPolicy> inner,
                                                     Mapping pool, std::uint32_t salt) {
    if (!page.holds(0, kLinkPageBytes)) return Error{Errc::kCorrupt, 0, "link page"};
    FABRIC_TRY(const LinkImage image, read_links(page.data()));
    std::shared_ptr<LinkPolicy> policy(
        new LinkPolicy(page.data(), image, LinkClock::real(), std::move(inner)));
    policy->mapping_ = std::move(page);
    policy->pool_mapping_ = std::move(pool);
    if (policy->pool_mapping_.holds(0, kLinkPageBytes)) {
        policy->share(policy->pool_mapping_.data(), salt);
    }
    return policy;
}

Result<std::shared_ptr<LinkPolicy>> LinkPolicy::open(std::byte* page, LinkClock& clock,
                                                     std::byte* pool, std::uint32_t salt) {
    FABRIC_TRY(const LinkImage image, read_links(page));
    std::shared_ptr<LinkPolicy> policy(new LinkPolicy(page, image, clock, nullptr));
    if (pool != nullptr) policy->share(pool, salt);
    return policy;
}

// An arena keeps its machine for life, also when its daemon is started again with another one: the
// channels of the two pages mean different links then.
void LinkPolicy::share(std::byte* pool, std::uint32_t salt) noexcept {
    const auto image = read_links(pool);
    if (!image.ok() || std::memcmp(&*image, &image_, sizeof image_) != 0) return;
    pool_ = pool;
    salt_ = salt;
}

LinkPolicy::LinkPolicy(std::byte* page, const LinkImage& image, LinkClock& clock,
                       std::shared_ptr<VisibilityPolicy> inner) noexcept
    : page_(page),
      image_(image),
      clock_(clock),
      inner_(std::move(inner)),
      coherent_(image.incoherent == 0 && (inner_ == nullptr || inner_->coherent())),
      serial_(next_serial()) {
    take_place(0, 1);
}

LinkMeter& LinkPolicy::meter() noexcept {
    thread_local Seat seat;
    // Relaxed: a thread that still sees the place of before charges that one's links for once.
    const std::uint64_t place = place_.load(std::memory_order_relaxed);
    if (seat.serial != serial_ || seat.place != place) {
        seat.meter = std::make_unique<LinkMeter>(
            page_, image_, static_cast<int>(place >> 32),
            static_cast<int>(static_cast<std::uint32_t>(place)), clock_, pool_, salt_);
        seat.serial = serial_;
        seat.place = place;
    }
    return *seat.meter;
}

void LinkPolicy::publish(const Access& access) noexcept {
    if (inner_ != nullptr) inner_->publish(access);
    const Weight weight = weight_of(access.touch);
    if (weight == Weight::kNothing || weight == Weight::kWord) return;
    meter().wrote(access.bytes);
    if (weight == Weight::kMessage) meter().finish();
}

void LinkPolicy::acquire(const Access& access) noexcept {
    const Weight weight = weight_of(access.touch);
    if (weight == Weight::kWord) meter().look(std::min(access.bytes, kCacheLine));
    if (weight == Weight::kData || weight == Weight::kMessage) meter().read(access.bytes);
    if (weight == Weight::kMessage) meter().finish();
    if (inner_ != nullptr) inner_->acquire(access);
}

void LinkPolicy::use(Bytes read, Bytes written) noexcept {
    if (inner_ != nullptr) inner_->use(read, written);
    if (read != 0) meter().read(read);
    if (written != 0) meter().wrote(written);
}

void LinkPolicy::step(PoolStep step) noexcept {
    if (inner_ != nullptr) inner_->step(step);
    switch (step) {
        case PoolStep::kBegin:
            return meter().begin();
        case PoolStep::kSignal:
            return meter().signal();
        case PoolStep::kEnd:
            return meter().finish();
    }
}

void LinkPolicy::take_place(int rank, int world) noexcept {
    if (inner_ != nullptr) inner_->take_place(rank, world);
    place_.store(pack(rank, world), std::memory_order_relaxed);
}

}  // namespace fabricshm
