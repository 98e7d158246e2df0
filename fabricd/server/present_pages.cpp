#include "fabricd/server/present_pages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <vector>

namespace fabricd {

namespace {

// Whether the file has all pages of the range. Those that a client has punched out would be a
// signal when memory is out.
bool is_resident(const std::byte* data, Bytes bytes) {
    const auto begin =
        reinterpret_cast<std::uintptr_t>(data) / fabricshm::kPageBytes * fabricshm::kPageBytes;
    const auto end =
        fabricshm::round_up(reinterpret_cast<std::uintptr_t>(data) + bytes, fabricshm::kPageBytes);
    std::vector<unsigned char> there((end - begin) / fabricshm::kPageBytes);
    if (::mincore(reinterpret_cast<void*>(begin), end - begin, there.data()) != 0) return false;
    return std::all_of(there.begin(), there.end(), [](unsigned char page) { return page & 1; });
}

}  // namespace

Result<void> PresentPages::ensure(const ArenaSpan& span, Bytes offset, Bytes bytes) {
    const std::byte* const begin = span.data + offset;
    Pieces& pieces = pieces_of(span);
    Bytes& known = pieces[begin];
    if (known >= bytes && is_resident(begin, bytes)) return {};
    known = 0;
    const auto present = span.make_present(offset, bytes);
    if (present.ok()) known = bytes;
    const bool untouchable =
        !present.ok() && present.error().code == Errc::kSystem &&
        (present.error().detail == EFAULT || present.error().detail == EHWPOISON);
    if (untouchable) return Error{Errc::kPoisoned, 0, "copy shard"};
    return present;
}

PresentPages::Pieces& PresentPages::pieces_of(const ArenaSpan& span) {
    const auto found = known_.find(span.keep);
    if (found != known_.end()) return found->second;
    // A new mapping comes rarely: time to forget those that are gone.
    std::erase_if(known_, [](const auto& entry) { return entry.first.expired(); });
    return known_[span.keep];
}

}  // namespace fabricd
