#include "libfabricshm/os/poison.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/os/fork_lock.hpp"

namespace fabricshm {

namespace detail {
__thread std::uint32_t t_lost_pages __attribute__((tls_model("initial-exec"))) = 0;
__thread std::uint32_t t_guards __attribute__((tls_model("initial-exec"))) = 0;
std::atomic<std::uint32_t> g_losses{0};
}  // namespace detail

using detail::g_losses;
using detail::t_guards;
using detail::t_lost_pages;

namespace {

constexpr std::size_t kSlots = 256;
constexpr std::uint32_t kRanges = 32;

__thread std::uintptr_t t_place __attribute__((tls_model("initial-exec"))) = 0;

// A watched mapping. Atomics throughout: the handler reads it on any thread, at any moment, and may
// not lock. `end` is 0 while the slot is free or being changed.
struct Slot {
    std::atomic<std::uintptr_t> begin;
    std::atomic<std::uintptr_t> end;
    std::atomic<Bytes> page_bytes;
    std::atomic<int> protection;
    std::atomic<std::uint32_t> ranges;  // ever noted; above kRanges: all of it counts as lost
    struct Range {
        std::atomic<Bytes> offset;
        std::atomic<Bytes> bytes;  // written last; 0: not there yet
    } range[kRanges];
};

// Zero at the start of the process, and never destroyed: signals come at any time.
Slot g_slots[kSlots];

// What the handler has no use for, under the mutex.
std::mutex g_mutex;
std::array<PoisonWatch::Source, kSlots>& sources() {
    static auto* const all = new std::array<PoisonWatch::Source, kSlots>;
    return *all;
}

struct sigaction g_before;  // written before ours is installed, read by the handler alone
bool g_installed = false;

Slot* slot_of(std::uintptr_t place) noexcept {
    for (Slot& slot : g_slots) {
        // Acquire pairs with the release in the constructor: the rest of the slot is complete.
        const std::uintptr_t end = slot.end.load(std::memory_order_acquire);
        if (place < end && place >= slot.begin.load(std::memory_order_relaxed)) return &slot;
    }
    return nullptr;
}

bool covers(const Slot& slot, Bytes offset, Bytes bytes) noexcept {
    const std::uint32_t count = slot.ranges.load(std::memory_order_acquire);
    if (count > kRanges) return true;
    for (std::uint32_t i = 0; i < count; ++i) {
        // Acquire pairs with note(): an entry without bytes is not written yet.
        const Bytes length = slot.range[i].bytes.load(std::memory_order_acquire);
        const Bytes start = slot.range[i].offset.load(std::memory_order_relaxed);
        if (length != 0 && start < offset + bytes && offset < start + length) return true;
    }
    return false;
}

void note(Slot& slot, Bytes offset, Bytes bytes) noexcept {
    if (covers(slot, offset, bytes)) return;
    // Acquire-release: counts that are taken are taken once.
    const std::uint32_t at = slot.ranges.fetch_add(1, std::memory_order_acq_rel);
    if (at < kRanges) {
        slot.range[at].offset.store(offset, std::memory_order_relaxed);
        slot.range[at].bytes.store(bytes, std::memory_order_release);
    }
    // Relaxed: see any_lost().
    g_losses.fetch_add(1, std::memory_order_relaxed);
}

// The pages that a signal speaks of, within the slot.
LostRange extent_of(const Slot& slot, const siginfo_t& info) noexcept {
    const std::uintptr_t begin = slot.begin.load(std::memory_order_relaxed);
    const auto place = reinterpret_cast<std::uintptr_t>(info.si_addr);
    Bytes extent = slot.page_bytes.load(std::memory_order_relaxed);
    const bool has_extent = info.si_code == BUS_MCEERR_AR || info.si_code == BUS_MCEERR_AO;
    // The hardware may have lost more than a page: 2 MiB or 1 GiB of a DAX device.
    if (has_extent && info.si_addr_lsb > 0 && info.si_addr_lsb < 48) {
        extent = std::max<Bytes>(extent, Bytes{1} << info.si_addr_lsb);
    }
    const std::uintptr_t first = std::max(place / extent * extent, begin);
    const std::uintptr_t last = std::min<std::uintptr_t>(place / extent * extent + extent,
                                                         slot.end.load(std::memory_order_relaxed));
    return {first - begin, last - first};
}

// Only system calls and atomics from here on: this runs inside a signal handler.
bool absorb(const siginfo_t& info) noexcept {
    const auto place = reinterpret_cast<std::uintptr_t>(info.si_addr);
    Slot* slot = slot_of(place);
    if (slot == nullptr) return false;
    const LostRange range = extent_of(*slot, info);
    note(*slot, range.offset, range.bytes);
    // Optional action: the page has not been touched yet. A thread that touches it is notified
    // then.
    if (info.si_code == BUS_MCEERR_AO) return true;
    if (t_guards == 0) return false;
    const std::uintptr_t first = slot->begin.load(std::memory_order_relaxed) + range.offset;
    void* const empty = ::mmap(reinterpret_cast<void*>(first), range.bytes,
                               slot->protection.load(std::memory_order_relaxed),
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (empty == MAP_FAILED) return false;
    ++t_lost_pages;
    t_place = place;
    return true;
}

void pass_on(int signal, siginfo_t* info, void* context) noexcept {
    if ((g_before.sa_flags & SA_SIGINFO) != 0) return g_before.sa_sigaction(signal, info, context);
    if (g_before.sa_handler != SIG_DFL && g_before.sa_handler != SIG_IGN) {
        return g_before.sa_handler(signal);
    }
    // Returning repeats the access, which then ends the process as if we had never been here.
    struct sigaction fallback {};
    fallback.sa_handler = SIG_DFL;
    ::sigaction(signal, &fallback, nullptr);
}

void on_sigbus(int signal, siginfo_t* info, void* context) {
    const int saved = errno;
    // Sent by a process instead of the kernel: not about memory.
    const bool of_memory = info->si_code > 0;
    if (!of_memory || !absorb(*info)) pass_on(signal, info, context);
    errno = saved;
}

// Under g_mutex.
void install() {
    if (g_installed) return;
    const char* wanted = std::getenv("FABRIC_SIGBUS");
    if (wanted != nullptr && std::strcmp(wanted, "off") == 0) return;
    struct sigaction ours {};
    ours.sa_sigaction = on_sigbus;
    // On the alternate stack where a thread has one: the fault may be on its last page.
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    if (::sigaction(SIGBUS, nullptr, &g_before) != 0) return;
    g_installed = ::sigaction(SIGBUS, &ours, nullptr) == 0;
}

// The action `poison` of a fault plan: byte `offset` of the first watched mapping.
void lose_byte(long offset) {
    for (const Slot& slot : g_slots) {
        // Acquire, as in slot_of().
        const std::uintptr_t end = slot.end.load(std::memory_order_acquire);
        const std::uintptr_t begin = slot.begin.load(std::memory_order_relaxed);
        if (end == 0 || offset < 0 || static_cast<Bytes>(offset) >= end - begin) continue;
        lose_page(reinterpret_cast<std::byte*>(begin) + offset);
        return;
    }
}

// Under g_mutex. In as many pieces as there are stripes.
void show(std::uintptr_t begin, int protection, const PoisonWatch::Source& source,
          LostRange range) noexcept {
    for (Bytes done = 0; done < range.bytes;) {
        const auto part =
            source.stripes.first(source.offset + range.offset + done, range.bytes - done);
        const Fd& file = part.file == 0 ? *source.file : (*source.others)[part.file - 1];
        // As in Mapping::map().
        std::unique_lock from_forks(fork_lock(), std::defer_lock);
        if (!source.is_inherited) from_forks.lock();
        void* const shown =
            ::mmap(reinterpret_cast<void*>(begin + range.offset + done), part.bytes, protection,
                   MAP_SHARED | MAP_FIXED, file.get(), static_cast<off_t>(part.offset));
        if (!source.is_inherited && shown != MAP_FAILED) {
            ::madvise(shown, part.bytes, MADV_DONTFORK);
        }
        done += part.bytes;
    }
}

}  // namespace

// Shows again what the file has, wherever empty pages were put in its place.
void detail::put_back() noexcept {
    const std::lock_guard lock(g_mutex);
    for (std::size_t i = 0; i < kSlots; ++i) {
        const Slot& slot = g_slots[i];
        const PoisonWatch::Source& source = sources()[i];
        // Relaxed: slots change under the mutex only. The ranges don't: those are the handler's,
        // read as in covers().
        const std::uintptr_t begin = slot.begin.load(std::memory_order_relaxed);
        if (slot.end.load(std::memory_order_relaxed) == 0 || source.file == nullptr) continue;
        const std::uint32_t count = std::min(slot.ranges.load(std::memory_order_acquire), kRanges);
        for (std::uint32_t at = 0; at < count; ++at) {
            const Bytes bytes = slot.range[at].bytes.load(std::memory_order_acquire);
            const Bytes offset = slot.range[at].offset.load(std::memory_order_relaxed);
            if (bytes == 0) continue;
            show(begin, slot.protection.load(std::memory_order_relaxed), source, {offset, bytes});
        }
    }
}

PoisonWatch::PoisonWatch(std::byte* data, Bytes bytes, Source source) {
    std::unique_lock lock(g_mutex);
    install();
    fault::g_poison = lose_byte;
    for (std::size_t i = 0; i < kSlots && slot_ < 0; ++i) {
        if (g_slots[i].end.load(std::memory_order_relaxed) == 0) slot_ = static_cast<int>(i);
    }
    if (slot_ < 0) {
        lock.unlock();  // fork() does not wait for a log that is full
        log(LogLevel::kWarning, "too many mappings: a memory error in this one ends the process");
        return;
    }
    Slot& slot = g_slots[slot_];
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    slot.begin.store(begin, std::memory_order_relaxed);
    slot.page_bytes.store(source.page_bytes, std::memory_order_relaxed);
    slot.protection.store(PROT_READ | (source.writable ? PROT_WRITE : 0),
                          std::memory_order_relaxed);
    for (auto& range : slot.range) range.bytes.store(0, std::memory_order_relaxed);
    slot.ranges.store(0, std::memory_order_relaxed);
    sources()[static_cast<std::size_t>(slot_)] = std::move(source);
    // Release: a handler that sees the end sees all of the above.
    slot.end.store(begin + bytes, std::memory_order_release);
}

PoisonWatch::~PoisonWatch() {
    if (slot_ < 0) return;
    const std::lock_guard lock(g_mutex);
    // Release: a handler that still sees the end sees the slot as it was. That the mapping goes
    // next is the owner's word that no thread touches it any more.
    g_slots[slot_].end.store(0, std::memory_order_release);
    sources()[static_cast<std::size_t>(slot_)] = {};
}

// Else a child could inherit a mutex that is held by a thread which it does not have.
void PoisonWatch::lock_for_fork() noexcept {
    g_mutex.lock();
}

void PoisonWatch::unlock_after_fork() noexcept {
    g_mutex.unlock();
}

// Under g_mutex, from lock_for_fork() on.
void PoisonWatch::forget_in_child(const std::byte* data) noexcept {
    for (Slot& slot : g_slots) {
        // Relaxed: the child has one thread.
        if (slot.begin.load(std::memory_order_relaxed) == reinterpret_cast<std::uintptr_t>(data)) {
            slot.end.store(0, std::memory_order_relaxed);
        }
    }
}

void PoisonWatch::learn(LostRange range) noexcept {
    if (slot_ >= 0) note(g_slots[slot_], range.offset, range.bytes);
}

std::vector<LostRange> PoisonWatch::lost() const {
    std::vector<LostRange> found;
    if (slot_ < 0) return found;
    const Slot& slot = g_slots[slot_];
    // Acquire, as in covers(), here and in find_lost(): an entry without bytes is not written yet.
    const std::uint32_t count = slot.ranges.load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < std::min(count, kRanges); ++i) {
        const Bytes bytes = slot.range[i].bytes.load(std::memory_order_acquire);
        if (bytes != 0) found.push_back({slot.range[i].offset.load(), bytes});
    }
    return found;
}

const std::byte* PoisonGuard::place() noexcept {
    return reinterpret_cast<const std::byte*>(t_place);
}

const std::byte* find_lost(const void* data, Bytes bytes) noexcept {
    if (!any_lost() || bytes == 0) return nullptr;
    const auto place = reinterpret_cast<std::uintptr_t>(data);
    const Slot* slot = slot_of(place);
    if (slot == nullptr) return nullptr;
    const std::uintptr_t begin = slot->begin.load(std::memory_order_relaxed);
    const std::uint32_t count = slot->ranges.load(std::memory_order_acquire);
    if (count > kRanges) return static_cast<const std::byte*>(data);
    for (std::uint32_t i = 0; i < count; ++i) {
        const Bytes length = slot->range[i].bytes.load(std::memory_order_acquire);
        const std::uintptr_t start = begin + slot->range[i].offset.load(std::memory_order_relaxed);
        if (length == 0 || start >= place + bytes || place >= start + length) continue;
        return reinterpret_cast<const std::byte*>(std::max(start, place));
    }
    return nullptr;
}

bool lose_page(std::byte* place) noexcept {
    constexpr int kHwPoison = 100;  // MADV_HWPOISON
    const auto at = reinterpret_cast<std::uintptr_t>(place);
    const Slot* slot = slot_of(at);
    const Bytes page = slot == nullptr ? 4096 : slot->page_bytes.load(std::memory_order_relaxed);
    void* const first = reinterpret_cast<void*>(at / page * page);
    if (::madvise(first, page, kHwPoison) == 0) return true;
    // A file without bytes: there is no page behind the mapping, and touching it is a SIGBUS.
    const Fd nothing(::memfd_create("fabric-poison", MFD_CLOEXEC));
    const int protection = PROT_READ | PROT_WRITE;
    ::mmap(first, page, protection, MAP_SHARED | MAP_FIXED, nothing.get(), 0);
    return false;
}

}  // namespace fabricshm
