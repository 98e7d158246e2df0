#include "libfabricshm/shm/shard_header.hpp"
#include "libfabricshm/base/pause.hpp"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace fabricshm {

namespace {

// A read that has to wait for the owner: first by yielding, since a short write is over soon, then
// by naps, since a long one may take as long as a step of training.
constexpr int kYields = 64;

constexpr std::uint64_t pins_of(std::uint64_t session) {
    return session << 32;
}

// Marks a read of `place` as under way, and takes the mark back unless it was made in time.
struct Mark {
    ShardReader& reader;
    std::uint64_t session;
    int place;

    // Sequentially consistent, and before the second load of the word: the reader stores (mark)
    // then loads (word), the daemon stores (word) then loads (mark). One of the two sees the other:
    // either this read begins at the new place, or the daemon knows that the old one is in use.
    bool set() const noexcept { return change(+1, std::memory_order_seq_cst); }
    // Release: the daemon that sees it gone gives the bytes to others, after all loads from them.
    bool clear() const noexcept { return change(-1, std::memory_order_release); }

    // False when the line is no longer this session's, and nothing was changed.
    bool change(int by, std::memory_order order) const noexcept {
        std::uint64_t seen = reader.pins[place].load(std::memory_order_relaxed);
        std::uint64_t next = 0;
        do {
            const auto count = static_cast<std::uint32_t>(seen);
            if ((seen >> 32) != (pins_of(session) >> 32) || (by < 0 && count == 0)) return false;
            next = pins_of(session) | static_cast<std::uint32_t>(count + by);
        } while (!reader.pins[place].compare_exchange_weak(seen, next, order,
                                                           std::memory_order_relaxed));
        return true;
    }
};

ShardPin pin_of(const ShardHeader& header, ShardWord word) noexcept {
    const ShardPlace& place = header.places[word.place()];
    // Relaxed: written before the word that names this place, which was loaded with acquire.
    return {word, place.arena_id.load(std::memory_order_relaxed),
            place.offset.load(std::memory_order_relaxed)};
}

// One try: a pin, or kBusy when the reader has to wait.
Result<ShardPin> try_pin(ShardHeader& header, ShardReader& reader, std::uint64_t session,
                         std::uint64_t wanted, const Visibility& view) {
    const Error wait{Errc::kBusy, 0, "read shard"};
    const ShardWord first = word_of(header, view);
    if (first.writing() || first.version() < wanted) return wait;
    // Shards of memory that is not coherent do not move: there is nothing to be marked.
    if (!view.coherent()) return pin_of(header, first);
    const Mark mark{reader, session, first.place()};
    if (!mark.set()) return Error{Errc::kClosed, 0, "read shard"};
    // Not acquire alone: see Mark::set().
    const ShardWord second{header.word.load(std::memory_order_seq_cst)};
    const bool stayed = second.moves() == first.moves();
    // Likewise against retire_shard(): a read that begins too late must not begin.
    const bool gone = header.magic.load(std::memory_order_seq_cst) != kShardMagic;
    if (stayed && !second.writing() && !gone) return pin_of(header, second);
    mark.clear();
    if (gone) return Error{Errc::kNotFound, 0, "read shard"};
    // Also when it moved between the two loads: the caller, which knows the deadline, tries again.
    // A peer that scribbles over the word could make it move at each of them.
    return wait;
}

}  // namespace

void format_shard(ShardHeader& header, ShardKey key, Bytes bytes, std::uint64_t arena_id,
                  std::uint64_t offset) noexcept {
    // Relaxed: nothing is read here before the magic says so.
    header.magic.store(0, std::memory_order_relaxed);
    header.region_id = key.region_id;
    header.generation = key.generation;
    header.bytes = bytes;
    set_place(header, 0, arena_id, offset);
    set_place(header, 1, 0, 0);
    header.word.store(0, std::memory_order_relaxed);
    for (int slot = 0; slot < kShardReadersMax; ++slot) assign_reader(header, slot, 0);
    // Release: a reader that sees the magic sees all of the above.
    header.magic.store(kShardMagic, std::memory_order_release);
}

void retire_shard(ShardHeader& header) noexcept {
    // Sequentially consistent, and before the daemon checks the pins: as in Mark::set(), a reader
    // either sees this or is seen. What it is reading stays readable until it is done.
    header.magic.store(0, std::memory_order_seq_cst);
}

void assign_reader(ShardHeader& header, int slot, std::uint64_t session) noexcept {
    ShardReader& reader = header.readers[slot];
    // No session's first: one that was given up but lives on begins nothing more. What it has begun
    // it can't end either, since the pins carry its successor's number.
    reader.session.store(0, std::memory_order_seq_cst);
    for (auto& pins : reader.pins) pins.store(pins_of(session), std::memory_order_relaxed);
    // Release: the new holder begins with empty pins.
    reader.session.store(session, std::memory_order_release);
}

void set_place(ShardHeader& header, int place, std::uint64_t arena_id,
               std::uint64_t offset) noexcept {
    // Relaxed: readers come to it through a later store of the word.
    header.places[place].arena_id.store(arena_id, std::memory_order_relaxed);
    header.places[place].offset.store(offset, std::memory_order_relaxed);
}

bool swap_places(ShardHeader& header, ShardWord seen) noexcept {
    if (seen.writing()) return false;
    // Sequentially consistent on success: as a release it shows the new copy and its place, as an
    // acquire it keeps the copy's loads before it, and its order against the load of the pins that
    // follows is the other half of Mark::set().
    std::uint64_t expected = seen.bits;
    return header.word.compare_exchange_strong(
        expected, seen.moved().bits, std::memory_order_seq_cst, std::memory_order_relaxed);
}

bool is_pinned(const ShardHeader& header, int slot, int place) noexcept {
    // Sequentially consistent, after the store of swap_places() or retire_shard(): either this sees
    // a reader's pin, or that reader sees the store. docs/migration.md has the argument.
    const auto pins = header.readers[slot].pins[place].load(std::memory_order_seq_cst);
    return static_cast<std::uint32_t>(pins) != 0;
}

bool is_shard(const ShardHeader& header, ShardKey key, const Visibility& view) noexcept {
    view.acquire(TouchPoint::kTensorHeaderRead, &header, kCacheLine);
    // Acquire pairs with the release in format_shard().
    return header.magic.load(std::memory_order_acquire) == kShardMagic &&
           header.region_id == key.region_id && header.generation == key.generation;
}

ShardWord word_of(const ShardHeader& header, const Visibility& view) noexcept {
    view.acquire(TouchPoint::kVersionRead, &header.word, kCacheLine);
    // Acquire pairs with the release in publish_shard() and in swap_places().
    return {header.word.load(std::memory_order_acquire)};
}

Result<ShardPin> pin_shard(ShardHeader& header, ShardKey key, int slot, std::uint64_t session,
                           std::uint64_t wanted, TimePoint deadline, const Visibility& view) {
    ShardReader& reader = header.readers[slot];
    for (int look = 0;; ++look) {
        if (!is_shard(header, key, view)) return Error{Errc::kNotFound, 0, "read shard"};
        // Relaxed: a session that loses its line was given up many seconds ago.
        const bool own = reader.session.load(std::memory_order_relaxed) == session;
        if (view.coherent() && !own) return Error{Errc::kClosed, 0, "read shard"};
        auto pin = try_pin(header, reader, session, wanted, view);
        if (pin.ok() || pin.error().code != Errc::kBusy) return pin;
        if (look < kYields) {
            ::sched_yield();
            continue;
        }
        if (Clock::now() >= deadline) return Error{Errc::kTimeout, 0, "read shard"};
        std::this_thread::sleep_for(kNap);
    }
}

bool unpin_shard(ShardHeader& header, int slot, std::uint64_t session, const ShardPin& pin,
                 const Visibility& view) noexcept {
    // The loads of the elements come before the load of the word that judges them: a fence, since
    // they are ordinary loads (the reader's half of a seqlock).
    std::atomic_thread_fence(std::memory_order_acquire);
    view.acquire(TouchPoint::kVersionRead, &header.word, kCacheLine);
    const ShardWord now{header.word.load(std::memory_order_relaxed)};
    const bool unwritten = now.version() == pin.word.version() && !now.writing();
    if (!view.coherent()) {
        // There is no mark that would keep the bytes from the next one when the shard is freed. The
        // header stays while the session has it open, so its magic says it.
        view.acquire(TouchPoint::kTensorHeaderRead, &header, kCacheLine);
        return unwritten && header.magic.load(std::memory_order_acquire) == kShardMagic;
    }
    ShardReader& reader = header.readers[slot];
    if (reader.session.load(std::memory_order_acquire) != session) return false;
    // The line may become another session's between that check and this step.
    return Mark{reader, session, pin.word.place()}.clear() && unwritten;
}

Result<ShardPin> begin_write(ShardHeader& header, ShardKey key, const Visibility& view) {
    if (!is_shard(header, key, view)) return Error{Errc::kNotFound, 0, "write shard"};
    std::uint64_t seen = word_of(header, view).bits;
    do {
        if (ShardWord{seen}.writing()) return Error{Errc::kBusy, 0, "write shard"};
        // Acquire: should a move have come first, its place is seen; the loop then takes it. The
        // fence below keeps the owner's stores to the elements behind the mark.
    } while (!header.word.compare_exchange_weak(
        seen, seen | ShardWord::kWriting, std::memory_order_seq_cst, std::memory_order_acquire));
    view.publish(TouchPoint::kVersion, &header.word, kCacheLine);
    // The writer's half of a seqlock: readers that see any of the new elements see the mark, too.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return pin_of(header, ShardWord{seen | ShardWord::kWriting});
}

std::uint64_t publish_shard(ShardHeader& header, const Visibility& view) noexcept {
    // While the mark is set no other process changes the word.
    const ShardWord word{header.word.load(std::memory_order_relaxed)};
    if (!word.writing()) return 0;
    // Release: a reader that sees the version sees the elements.
    header.word.store(word.published().bits, std::memory_order_release);
    view.publish(TouchPoint::kVersion, &header.word, kCacheLine);
    return word.published().version();
}

}  // namespace fabricshm
