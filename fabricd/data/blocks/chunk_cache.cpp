#include "fabricd/data/blocks/chunk_cache.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "libfabricshm/base/check.hpp"

namespace fabricd {

using fabricshm::data_generation;
using fabricshm::data_state;
using fabricshm::data_word;
using fabricshm::DataLine;
using fabricshm::kDataAlign;
using fabricshm::kDataChunkBytes;
using fabricshm::kPageBytes;
using fabricshm::round_up;

namespace {

// From here on a chunk begins on a page and has whole pages, so that a disk can write past the page
// cache; of less that would waste more than it saves.
constexpr Bytes kPagedChunk = 32 * fabricshm::kKiB;
// What leaves together: a search of the pins is as long for one line as for many.
constexpr Bytes kBatchPart = 64;

Bytes align_of(Bytes bytes) noexcept {
    return bytes >= kPagedChunk ? kPageBytes : kDataAlign;
}

Bytes room_of(Bytes bytes) noexcept {
    return round_up(bytes, align_of(bytes));
}

// While its fields still say how large it was.
void count_evicted(ChunkCache::Stats& stats, std::uint32_t& left_at, Bytes bytes) noexcept {
    ++stats.evicted;
    stats.evicted_bytes += bytes;
    left_at = static_cast<std::uint32_t>(stats.evicted_bytes >> 20U) + 1;
}

// What lies behind the end that the cache is to have is no place for anything again: else a busy
// cache would fill there what it has just emptied.
void give_room(FreeRanges& memory, FreeRanges& withheld, Bytes end, Bytes offset, Bytes bytes) {
    const Bytes before = std::min(std::max(offset, end) - offset, bytes);
    memory.give(offset, before);
    withheld.give(offset + before, bytes - before);
}

}  // namespace

Bytes chunk_room(Bytes bytes) noexcept {
    return room_of(bytes);
}

ChunkCache::ChunkCache(std::byte* arena, const DataTables& tables, PinPages& pins, ChunkTier* tier)
    : arena_(arena),
      tables_(tables),
      pins_(pins),
      tier_(tier),
      end_(tables.arena_bytes),
      wanted_end_(tables.arena_bytes),
      memory_(tables.chunks_offset, tables.arena_bytes),
      lines_(0, tables.lines),
      records_(tables.lines),
      order_(tables.lines) {
    stats_.free_lines = tables.lines;
}

DataLine& ChunkCache::at(std::uint64_t line) const noexcept {
    FABRIC_DCHECK(line < tables_.lines);
    return fabricshm::data_line(arena_, tables_, line);
}

DataLineState ChunkCache::state(std::uint64_t line) const noexcept {
    return data_state(at(line).word.load(std::memory_order_relaxed));  // this thread stores it
}

fabricshm::DataExtent ChunkCache::fields(std::uint64_t line) const noexcept {
    const DataLine& one = at(line);
    return {one.offset, one.bytes, one.checksum, one.file, one.chunk};
}

std::span<const std::byte> ChunkCache::bytes_of(std::uint64_t line) const noexcept {
    return {arena_ + at(line).offset, at(line).bytes};
}

void ChunkCache::set_word(std::uint64_t line, DataLineState state, bool is_next) noexcept {
    auto& word = at(line).word;
    const std::uint64_t generation =
        data_generation(word.load(std::memory_order_relaxed)) + (is_next ? 1 : 0);
    // Release: a reader that finds `ready` has the fields and the bytes.
    word.store(data_word(generation, state), std::memory_order_release);
}

void ChunkCache::format() {
    fabricshm::erase_data_header(arena_);
    for (std::uint64_t line = 0; line < tables_.lines; ++line) {
        DataLine& one = at(line);
        const std::uint64_t word = one.word.load(std::memory_order_relaxed);
        std::memset(reinterpret_cast<std::byte*>(&one) + sizeof one.word, 0,
                    sizeof one - sizeof one.word);
        // The generation rises over all tables that were ever here: a reader of the former ones
        // that pins a line finds another word.
        one.word.store(data_word(data_generation(word) + 1, DataLineState::kEmpty),
                       std::memory_order_release);
    }
    fabricshm::write_data_header(arena_, tables_);
}

void ChunkCache::take_up(const std::function<bool(std::uint64_t)>& is_known) {
    for (std::uint64_t line = 0; line < tables_.lines; ++line) {
        const bool known = is_known(line);
        if (known) {
            FABRIC_CHECK(lines_.take_at(line, 1));
            records_[line].is_used = true;
        }
        if (take_up_line(line, known)) continue;
        at(line).bytes = 0;
        if (state(line) != DataLineState::kEmpty) set_word(line, DataLineState::kEmpty, true);
    }
    stats_.free_lines = lines_.free();
}

// False: nothing of it goes on.
bool ChunkCache::take_up_line(std::uint64_t line, bool is_known) {
    const auto extent = fabricshm::read_data_line(at(line), tables_);
    if (!extent || extent->bytes == 0) return false;
    const DataLineState was = state(line);
    // Its bytes are given to others only once it is empty, so what was leaving is whole.
    const bool is_there = was == DataLineState::kReady || was == DataLineState::kLeaving;
    const bool is_gone = was == DataLineState::kGone || (is_there && !is_known);
    const bool was_filling = was == DataLineState::kFilling;
    if (!is_there && !is_gone && !was_filling) return false;
    if (extent->offset % align_of(extent->bytes) != 0 ||
        !memory_.take_at(extent->offset, room_of(extent->bytes))) {
        return false;
    }
    if (was_filling) {
        unsettled_.emplace_back(extent->offset, room_of(extent->bytes));
        return false;
    }
    by_offset_[extent->offset] = line;
    if (!is_gone) {
        if (was == DataLineState::kLeaving) set_word(line, DataLineState::kReady, false);
        enter(line, ChunkKind::kTried);
        return true;
    }
    // Readers may have it pinned.
    if (!is_known) {
        FABRIC_CHECK(lines_.take_at(line, 1));
        records_[line].is_used = true;
    }
    if (was != DataLineState::kGone) set_word(line, DataLineState::kGone, true);
    records_[line].is_retired = true;
    gone_.push_back(line);
    stats_.gone = gone_.size();
    return true;
}

void ChunkCache::settle() {
    for (const auto& [offset, bytes] : unsettled_) {
        give_room(memory_, withheld_, wanted_end_, offset, bytes);
    }
    unsettled_.clear();
}

std::optional<std::uint64_t> ChunkCache::add_file(std::uint64_t file, Bytes bytes) {
    const std::uint64_t count = fabricshm::data_chunks(bytes);
    FABRIC_CHECK(count > 0);
    auto first = lines_.take(count, 1, FreeRanges::End::kLow);
    if (!first) {
        sweep();
        first = lines_.take(count, 1, FreeRanges::End::kLow);
    }
    if (!first) return std::nullopt;
    stats_.free_lines = lines_.free();
    for (std::uint64_t chunk = 0; chunk < count; ++chunk) {
        const std::uint64_t line = *first + chunk;
        records_[line] = {};
        records_[line].is_used = true;
        set_word(line, DataLineState::kEmpty, true);
        at(line).file = file;
        at(line).chunk = static_cast<std::uint32_t>(chunk);
        at(line).bytes = 0;
    }
    return first;
}

// --- kinds ---

void ChunkCache::enter(std::uint64_t line, ChunkKind kind) {
    const Bytes bytes = room_of(at(line).bytes);
    order_.add(line, bytes, kind);
    stats_.bytes[static_cast<std::size_t>(kind)] += bytes;
    ++stats_.chunks[static_cast<std::size_t>(kind)];
}

void ChunkCache::leave_kind(std::uint64_t line) {
    const auto kind = static_cast<std::size_t>(order_.kind(line));
    order_.remove(line);
    stats_.bytes[kind] -= room_of(at(line).bytes);
    --stats_.chunks[kind];
}

void ChunkCache::set_kind(std::uint64_t line, ChunkKind kind) {
    Record& record = records_[line];
    const bool is_there = state(line) == DataLineState::kReady;
    if (record.is_filling) {
        record.kind = kind;
        return;
    }
    // What passes is to pass again, and unread.
    const bool has_changed = order_.kind(line) != kind || kind == ChunkKind::kPassing;
    if (!is_there || !has_changed) return;
    leave_kind(line);
    enter(line, kind);
}

void ChunkCache::touch(std::uint64_t line) {
    if (line < tables_.lines && state(line) == DataLineState::kReady) order_.touch(line);
}

// --- filling ---

std::optional<ChunkCache::Room> ChunkCache::begin(std::uint64_t line, std::uint32_t bytes,
                                                  ChunkKind kind, bool is_wanted) {
    FABRIC_CHECK(bytes > 0 && bytes <= kDataChunkBytes && kind != ChunkKind::kNone);
    Record& record = records_[line];
    FABRIC_CHECK(record.is_used && state(line) == DataLineState::kEmpty);
    auto offset = take_memory(bytes, kind);
    if (!offset) offset = make_room(bytes, kind, is_wanted);
    if (!offset) return std::nullopt;
    // The other half of CacheEnd::check_unused(): no line has bytes that are to be given back.
    FABRIC_CHECK(*offset + room_of(bytes) <= end_);
    if (record.left_at != 0) {
        stats_.refetched += bytes;
        const Bytes since = (stats_.evicted_bytes >> 20U) + 1 - record.left_at;
        if (since <= capacity() / 4 >> 20U) stats_.near += bytes;
    }
    set_word(line, DataLineState::kFilling, false);
    DataLine& one = at(line);
    one.offset = *offset;
    one.bytes = bytes;
    one.checksum = 0;
    by_offset_[*offset] = line;
    record.is_filling = true;
    record.kind = kind;
    const Bytes room = room_of(bytes);
    stats_.bytes[0] += room;
    ++stats_.chunks[0];
    return Room{arena_ + *offset, bytes, room};
}

void ChunkCache::finish(std::uint64_t line, std::uint32_t checksum) {
    Record& record = records_[line];
    FABRIC_CHECK(record.is_filling);
    if (record.is_retired) return fail(line);
    record.is_filling = false;
    stats_.bytes[0] -= room_of(at(line).bytes);
    --stats_.chunks[0];
    FABRIC_CHECK(at(line).offset + at(line).bytes <= end_);
    at(line).checksum = checksum;
    set_word(line, DataLineState::kReady, false);
    enter(line, record.kind);
}

void ChunkCache::fail(std::uint64_t line) {
    Record& record = records_[line];
    FABRIC_CHECK(record.is_filling);
    record.is_filling = false;
    stats_.bytes[0] -= room_of(at(line).bytes);
    --stats_.chunks[0];
    // No reader ever saw it ready: no pin to search for.
    if (record.is_retired) {
        release_memory(line);
        release_line(line);
        return;
    }
    set_word(line, DataLineState::kEmpty, true);
    release_memory(line);
}

// Behind the word that says so.
void ChunkCache::release_memory(std::uint64_t line) {
    DataLine& one = at(line);
    const Bytes room = room_of(one.bytes);
    // First: a line of no bytes has no memory, also for a cache that is started again.
    one.bytes = 0;
    by_offset_.erase(one.offset);
    give_room(memory_, withheld_, wanted_end_, one.offset, room);
}

void ChunkCache::release_line(std::uint64_t line) {
    records_[line] = {};
    lines_.give(line, 1);
    stats_.free_lines = lines_.free();
}

// --- leaving ---

std::vector<std::uint64_t> ChunkCache::without_pinned(std::vector<std::uint64_t> lines) {
    std::sort(lines.begin(), lines.end());
    std::vector<std::uint8_t> pinned(lines.size(), 0);
    // The other half of the reader's: its slot, a fence, the word again. Whichever fence is the
    // first, that side's store is seen by the other: we see the slot, or it sees the word.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!pins_.search(lines, pinned)) return {};
    std::vector<std::uint64_t> free;
    for (std::size_t i = 0; i < lines.size(); ++i) {
        if (pinned[i] == 0 && !held_.contains(lines[i])) free.push_back(lines[i]);
    }
    stats_.found_pinned += lines.size() - free.size();
    return free;
}

// How many bytes went.
Bytes ChunkCache::evict(const std::vector<std::uint64_t>& lines) {
    if (lines.empty()) return 0;
    FABRIC_DCHECK(std::all_of(lines.begin(), lines.end(),
                              [&](auto line) { return state(line) == DataLineState::kReady; }));
    for (const auto line : lines) set_word(line, DataLineState::kLeaving, false);
    const auto free = without_pinned(lines);
    Bytes bytes = 0;
    for (const auto line : free) {
        if (tier_ != nullptr) {
            const DataLine& one = at(line);
            tier_->store(one.file, one.chunk, bytes_of(line), one.checksum, kind(line));
        }
        bytes += room_of(at(line).bytes);
        leave_kind(line);
        set_word(line, DataLineState::kEmpty, true);
        count_evicted(stats_, records_[line].left_at, at(line).bytes);
        release_memory(line);
    }
    for (const auto line : lines) {
        if (state(line) == DataLineState::kLeaving) set_word(line, DataLineState::kReady, false);
        if (records_[line].is_used && state(line) == DataLineState::kReady) order_.stays(line);
    }
    return bytes;
}

void ChunkCache::hold(std::uint64_t line) {
    FABRIC_CHECK(state(line) == DataLineState::kReady);
    held_.insert(line);
}

void ChunkCache::let_go(std::uint64_t line) {
    held_.erase(line);
}

void ChunkCache::hand_over(std::uint64_t from, std::uint64_t to) {
    DataLine& old = at(from);
    DataLine& now = at(to);
    Record& record = records_[from];
    FABRIC_CHECK(state(from) == DataLineState::kReady && !record.is_retired);
    FABRIC_CHECK(state(to) == DataLineState::kEmpty && records_[to].is_used && now.bytes == 0);
    const ChunkKind kind = order_.kind(from);
    leave_kind(from);
    set_word(from, DataLineState::kEmpty, true);
    now.offset = old.offset;
    now.checksum = old.checksum;
    now.bytes = old.bytes;
    // First: two lines with the same memory would be a contradiction after a kill.
    old.bytes = 0;
    by_offset_[now.offset] = to;
    set_word(to, DataLineState::kReady, false);
    enter(to, kind);
    if (held_.erase(from) != 0) held_.insert(to);
    release_line(from);
}

std::size_t ChunkCache::drop(std::vector<std::uint64_t> lines) {
    lines.erase(std::remove_if(lines.begin(), lines.end(),
                               [&](auto line) { return state(line) != DataLineState::kReady; }),
                lines.end());
    const std::uint64_t before = stats_.evicted;
    evict(lines);
    return stats_.evicted - before;
}

void ChunkCache::retire(std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t line = first; line < first + count; ++line) {
        Record& record = records_[line];
        if (!record.is_used || record.is_retired) continue;
        record.is_retired = true;
        const bool is_there = state(line) == DataLineState::kReady;
        if (is_there) leave_kind(line);
        set_word(line, DataLineState::kGone, true);
        if (record.is_filling) continue;  // the silo writes there: fail() or finish() ends it
        if (is_there) {
            gone_.push_back(line);
        } else {
            release_line(line);
        }
    }
    stats_.gone = gone_.size();
}

void ChunkCache::sweep() {
    if (gone_.empty()) return;
    for (const auto line : without_pinned(gone_)) {
        release_memory(line);
        release_line(line);
    }
    gone_.erase(std::remove_if(gone_.begin(), gone_.end(),
                               [&](auto line) { return !records_[line].is_used; }),
                gone_.end());
    stats_.gone = gone_.size();
}

// --- room ---

std::optional<std::uint64_t> ChunkCache::take_memory(Bytes bytes, ChunkKind kind) {
    // What passes is at one end, so that its holes are not between what stays.
    const auto end = kind == ChunkKind::kPassing ? FreeRanges::End::kHigh : FreeRanges::End::kLow;
    return memory_.take(room_of(bytes), align_of(bytes), end);
}

std::optional<std::uint64_t> ChunkCache::make_room(Bytes bytes, ChunkKind kind, bool is_wanted) {
    // Each round evicts a batch, or makes one hole of several. Where all of a batch is pinned the
    // next one is twice as large, until all that may go has been tried.
    sweep();
    // Of what plans keep no more goes than a reader waits for.
    std::size_t tried = 0;
    Bytes wanted = is_wanted ? room_of(bytes) : 0;
    for (Bytes batch = std::max(room_of(bytes), capacity() / kBatchPart);;
         batch *= 2, wanted *= 2) {
        const bool is_only_scattered = memory_.free() >= 2 * kDataChunkBytes;
        bool has_changed = is_only_scattered && open_window(bytes);
        if (!has_changed) {
            const auto lines = order_.next(batch, wanted);
            const bool is_new = lines.size() > tried;
            tried = lines.size();
            has_changed = evict(lines) > 0 || open_window(bytes);
            if (!has_changed && !is_new) return std::nullopt;
        }
        if (const auto offset = take_memory(bytes, kind)) return offset;
    }
}

// The 4 MiB with the fewest taken bytes, of those in which no line is filling or gone.
std::optional<std::uint64_t> ChunkCache::cheapest_window() const {
    std::optional<std::uint64_t> best;
    Bytes most_free = 0;
    for (std::uint64_t begin = round_up(tables_.chunks_offset, kDataChunkBytes);
         begin + kDataChunkBytes <= wanted_end_; begin += kDataChunkBytes) {
        const Bytes free = memory_.free_in(begin, begin + kDataChunkBytes);
        if (free <= most_free || free == kDataChunkBytes) continue;
        auto chunk = by_offset_.upper_bound(begin);
        if (chunk != by_offset_.begin()) --chunk;
        bool is_movable = true;
        for (; chunk != by_offset_.end() && chunk->first < begin + kDataChunkBytes; ++chunk) {
            const DataLine& one = at(chunk->second);
            const bool is_inside = chunk->first + room_of(one.bytes) > begin;
            is_movable &= !is_inside || state(chunk->second) == DataLineState::kReady;
        }
        if (!is_movable) continue;
        most_free = free;
        best = begin;
    }
    return best;
}

// Makes one hole of several: moves what is in the emptiest 4 MiB elsewhere. False: it could not.
bool ChunkCache::open_window(Bytes bytes) {
    const auto window = cheapest_window();
    if (!window || memory_.free() < room_of(bytes)) return false;
    const std::uint64_t end = *window + kDataChunkBytes;
    std::vector<std::uint64_t> lines;
    auto chunk = by_offset_.upper_bound(*window);
    if (chunk != by_offset_.begin()) --chunk;
    for (; chunk != by_offset_.end() && chunk->first < end; ++chunk) {
        if (chunk->first + room_of(at(chunk->second).bytes) > *window) {
            lines.push_back(chunk->second);
        }
    }
    // Its holes are no place to move to.
    const auto holes = memory_.holes_in(*window, end);
    for (const auto& [begin, count] : holes) FABRIC_CHECK(memory_.take_at(begin, count));
    for (const auto line : lines) set_word(line, DataLineState::kLeaving, false);
    for (const auto line : without_pinned(lines)) move_or_evict(line);
    for (const auto& [begin, count] : holes) memory_.give(begin, count);
    bool is_open = true;
    for (const auto line : lines) {
        if (state(line) != DataLineState::kLeaving) continue;
        set_word(line, DataLineState::kReady, false);
        is_open = false;
    }
    return is_open;
}

// Of a line that is leaving and not pinned.
void ChunkCache::move_or_evict(std::uint64_t line) {
    DataLine& one = at(line);
    const Bytes room = room_of(one.bytes);
    if (const auto place = memory_.take(room, align_of(one.bytes), FreeRanges::End::kLow)) {
        std::memcpy(arena_ + *place, arena_ + one.offset, one.bytes);
        by_offset_.erase(one.offset);
        give_room(memory_, withheld_, wanted_end_, one.offset, room);
        one.offset = *place;
        by_offset_[*place] = line;
        // Another generation: a reader that pins by the word of before looks again.
        set_word(line, DataLineState::kReady, true);
        ++stats_.moved;
        return;
    }
    if (tier_ != nullptr) {
        tier_->store(one.file, one.chunk, bytes_of(line), one.checksum, kind(line));
    }
    leave_kind(line);
    set_word(line, DataLineState::kEmpty, true);
    count_evicted(stats_, records_[line].left_at, at(line).bytes);
    release_memory(line);
}

std::string ChunkCache::problems() const {
    Bytes taken = 0;
    std::uint64_t end = tables_.chunks_offset;
    for (const auto& [offset, line] : by_offset_) {
        if (offset < end) return "two chunks overlap at " + std::to_string(offset);
        if (at(line).offset != offset) return "a line is elsewhere: " + std::to_string(line);
        end = offset + room_of(at(line).bytes);
        taken += room_of(at(line).bytes);
        if (memory_.free_in(offset, end) != 0) return "taken memory is free";
    }
    if (end > end_) return "a chunk lies outside";
    for (const auto& [offset, bytes] : withheld_.holes_in(0, tables_.arena_bytes)) {
        if (memory_.free_in(offset, offset + bytes) != 0) return "withheld memory is free";
        if (offset + bytes > end_) return "withheld memory that was given back";
        if (offset < wanted_end_) return "withheld memory in front of the end";
    }
    Bytes unsettled = 0;
    for (const auto& [offset, bytes] : unsettled_) unsettled += bytes;
    if (taken + unsettled != used()) return "used bytes do not add up";
    std::uint64_t used_lines = 0;
    for (std::uint64_t line = 0; line < tables_.lines; ++line) {
        used_lines += records_[line].is_used ? 1 : 0;
        const bool has_memory = at(line).bytes != 0;
        const DataLineState now = state(line);
        const bool needs = now == DataLineState::kReady || now == DataLineState::kFilling;
        if (needs && !has_memory) return "a line has no memory: " + std::to_string(line);
        if (now == DataLineState::kLeaving) return "a line was left leaving";
        if (has_memory && by_offset_.count(at(line).offset) == 0) return "memory without a chunk";
    }
    if (used_lines != tables_.lines - lines_.free()) return "lines do not add up";
    Bytes by_kind = 0;
    for (const Bytes bytes : stats_.bytes) by_kind += bytes;
    Bytes gone = 0;
    for (const auto line : gone_) gone += room_of(at(line).bytes);
    // What is retired while it is filled counts as being filled.
    return by_kind + gone == taken ? "" : "bytes by kind do not add up";
}

}  // namespace fabricd
