#include "emu/hosts/incoherent_host.hpp"

#include <algorithm>

namespace emu {

namespace {

using fabricshm::Access;
using fabricshm::kCacheLine;

// One touch in so many is followed by something unasked, and how much happens to a strict host.
constexpr std::uint64_t kRarely = 8;
constexpr int kStrictLines = 6;

}  // namespace

IncoherentHost::IncoherentHost(HostCache& cache, const HostBehaviour& behaviour) noexcept
    : cache_(cache), behaviour_(behaviour), dice_(behaviour.seed) {}

void IncoherentHost::publish(const Access& access) noexcept {
    if (enter(access)) cache_.publish(access.offset, access.bytes);
}

void IncoherentHost::acquire(const Access& access) noexcept {
    if (enter(access)) cache_.acquire(access.offset, access.bytes);
}

std::uint64_t IncoherentHost::passed(fabricshm::TouchPoint touch) const noexcept {
    // Relaxed here and below: statistics and dice order nothing.
    return passed_[static_cast<std::size_t>(touch)].load(std::memory_order_relaxed);
}

// Before the touch does its work, so that what happens unasked can come between a store and its
// publication, and between a flag and its data. False: this touch is left out.
bool IncoherentHost::enter(const Access& access) noexcept {
    passed_[static_cast<std::size_t>(access.touch)].fetch_add(1, std::memory_order_relaxed);
    if (behaviour_.temper != Temper::kEager) {
        recent_[random() % kRecent].store(access.offset, std::memory_order_relaxed);
        const bool strict = behaviour_.temper == Temper::kStrict;
        const int lines = strict ? kStrictLines : random() % kRarely == 0 ? 1 : 0;
        for (int i = 0; i < lines; ++i) {
            misbehave(recent_[random() % kRecent].load(std::memory_order_relaxed));
        }
    }
    return behaviour_.omitted != access.touch;
}

void IncoherentHost::misbehave(Bytes near) noexcept {
    // The line itself or one of its neighbours, where false sharing would be.
    const Bytes shift = random() % 3 * kCacheLine;
    const Bytes offset = std::min(near + shift, cache_.bytes() - 1);
    const Bytes victim = offset >= kCacheLine ? offset - kCacheLine : offset;
    if (random() % 2 == 0) {
        cache_.write_back_if_dirty(victim);
    } else {
        cache_.fetch_if_clean(victim);
    }
}

// SplitMix64 over a counter: any number of threads can draw, and none waits.
std::uint64_t IncoherentHost::random() noexcept {
    std::uint64_t mixed = dice_.fetch_add(0x9e3779b97f4a7c15, std::memory_order_relaxed);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return mixed ^ (mixed >> 31);
}

}  // namespace emu
