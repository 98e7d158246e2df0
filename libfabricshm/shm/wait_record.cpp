#include "libfabricshm/shm/wait_record.hpp"

#include <algorithm>
#include <cstring>

namespace fabricshm {

namespace {

// What is shown to people and to programs: never more than a word.
void tame_kind(char (&kind)[16]) noexcept {
    kind[sizeof kind - 1] = '\0';
    const char* end = std::find(kind, kind + sizeof kind, '\0');
    const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; };
    const bool good = end != kind && std::all_of(static_cast<const char*>(kind), end, is_letter);
    const std::size_t length = good ? static_cast<std::size_t>(end - kind) : 0;
    std::memset(kind + length, 0, sizeof kind - length);
    if (!good) std::memcpy(kind, "operation", 9);
}

// Only ranks of the world, and not the one that waits.
bool tame_late(WaitRecord& record) noexcept {
    std::uint64_t any = 0;
    for (std::size_t word = 0; word < kLateWords; ++word) {
        const int below = record.world - static_cast<int>(64 * word);
        if (below <= 0) record.late[word] = 0;
        if (below > 0 && below < 64) record.late[word] &= (std::uint64_t{1} << below) - 1;
        if (record.rank / 64 == static_cast<int>(word)) {
            record.late[word] &= ~(std::uint64_t{1} << (record.rank % 64));
        }
        any |= record.late[word];
    }
    return any != 0;
}

}  // namespace

void set_kind(WaitRecord& record, const char* kind) noexcept {
    const std::size_t length = std::min(std::strlen(kind), sizeof record.kind - 1);
    std::memset(record.kind, 0, sizeof record.kind);
    std::memcpy(record.kind, kind, length);
}

void tame(WaitRecord& record) noexcept {
    const bool good = record.arena_id != 0 && record.group_id != 0 && record.world >= 2 &&
                      record.world <= kWorldMax && record.rank >= 0 && record.rank < record.world &&
                      tame_late(record);
    if (!good) {
        record = WaitRecord{};
        return;
    }
    record.began_ns = std::clamp<std::int64_t>(record.began_ns, 0, kBelievedNs);
    record.bytes = std::min(record.bytes, kBelievedCount);
    tame_kind(record.kind);
}

}  // namespace fabricshm
