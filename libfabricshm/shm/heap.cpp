#include "libfabricshm/shm/heap.hpp"

#include <boost/interprocess/mem_algo/rbtree_best_fit.hpp>
#include <boost/interprocess/sync/mutex_family.hpp>
#include <new>

#include "libfabricshm/base/check.hpp"

namespace fabricshm {

namespace {

// Plain pointers, since only this process walks the blocks; without Boost's lock, since ours also
// covers the count. The alignment of blocks is that of the whole algorithm then, which makes
// allocate() as cheap as it can be.
using BestFit = boost::interprocess::rbtree_best_fit<boost::interprocess::null_mutex_family, void*,
                                                     Heap::kAlign>;

// More would make Boost's sums wrap around.
constexpr Bytes kBlockMax = Bytes{1} << 47;

}  // namespace

struct Heap::Administration : BestFit {
    using BestFit::BestFit;
};

Heap::Heap(std::byte* piece, Bytes bytes) : piece_(piece), bytes_(bytes / kAlign * kAlign) {
    static_assert(sizeof(Administration) <= kHeapOverhead);
    FABRIC_CHECK(reinterpret_cast<std::uintptr_t>(piece) % kAlign == 0);
    FABRIC_CHECK(bytes_ >= 2 * kHeapOverhead);
    administration_ = new (piece) Administration(bytes_, 0);
}

// The administration is not destroyed: it owns nothing, and its memory may be gone already.
Heap::~Heap() = default;

std::byte* Heap::allocate(Bytes bytes) noexcept {
    if (bytes > kBlockMax) return nullptr;
    const std::lock_guard lock(mutex_);
    // Boost gives a zero-sized block no address of its own.
    void* block = administration_->allocate(bytes == 0 ? 1 : bytes);
    blocks_ += block != nullptr ? 1 : 0;
    return static_cast<std::byte*>(block);
}

void Heap::release(std::byte* block) noexcept {
    const std::lock_guard lock(mutex_);
    administration_->deallocate(block);
    --blocks_;
}

bool Heap::holds(const std::byte* block) const noexcept {
    const auto offset =
        reinterpret_cast<std::uintptr_t>(block) - reinterpret_cast<std::uintptr_t>(piece_);
    return block >= piece_ && offset < bytes_ && offset % kAlign == 0;
}

bool Heap::empty() const noexcept {
    const std::lock_guard lock(mutex_);
    return blocks_ == 0;
}

}  // namespace fabricshm
