#include "fabricd/telemetry/session_pages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "libfabricshm/os/page_file.hpp"

namespace fabricd {

using fabricshm::DirectiveImage;
using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::Fd;
using fabricshm::kPageFileBytes;
using fabricshm::LimitImage;
using fabricshm::PageAccess;
using fabricshm::QuotaImage;
using fabricshm::Result;
using fabricshm::TelemetrySeen;

namespace {

// How far ahead of the loop memory is asked for. Each page is a miss of the cache and of the
// address translation; a dozen under way at once hide all but the bandwidth.
constexpr std::size_t kAhead = 12;

// Where the sequence is, and where what was seen of it is.
void fetch_first(const std::byte* page, const SessionSample& entry) {
    __builtin_prefetch(page);
    __builtin_prefetch(&entry, 1);
}

// The rest of the head, of a page that has changed. Both first lines are here by now.
void fetch_rest(const std::byte* page, const SessionSample& entry) {
    const auto& shared = *reinterpret_cast<const fabricshm::TelemetryPage*>(page);
    if (shared.head_sequence.load(std::memory_order_relaxed) == entry.seen.head) return;
    const auto* bytes = reinterpret_cast<const std::byte*>(&entry);
    for (int line = 1; line < 3; ++line) {
        __builtin_prefetch(page + line * fabricshm::kCacheLine);
        __builtin_prefetch(bytes + line * fabricshm::kCacheLine, 1);
    }
    __builtin_prefetch(bytes + 3 * fabricshm::kCacheLine, 1);
}

// The rows of a group of eight ranks.
void fetch_peers(const std::byte* page) {
    const auto& shared = *reinterpret_cast<const fabricshm::TelemetryPage*>(page);
    const auto* bytes = reinterpret_cast<const std::byte*>(&shared.peers_sequence);
    for (int line = 0; line <= 5; ++line) __builtin_prefetch(bytes + line * fabricshm::kCacheLine);
}

// Room for so many entries, in huge pages where the system has them: an entry is most of a small
// page, so that each would be a miss of the address translation.
void make_room(std::vector<SessionSample>& sessions, std::size_t count) {
    if (sessions.capacity() >= count) return;
    // With room for some more, or each that comes would move all that are there.
    sessions.reserve(count + count / 8);
    constexpr std::uintptr_t kHugePage = 2 * fabricshm::kMiB;
    const auto begin = reinterpret_cast<std::uintptr_t>(sessions.data());
    const auto end = begin + sessions.capacity() * sizeof(SessionSample);
    const std::uintptr_t first = fabricshm::round_up(begin, kHugePage);
    const std::uintptr_t last = end / kHugePage * kHugePage;
    // A hint; without it everything works with small pages.
    if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

// The entry of one page, of a session that an earlier sample may have known.
void begin(SessionSample& entry, const PageOwner& owner) {
    entry.session_id = owner.session_id;
    entry.pid = owner.pid;
    entry.uid = owner.uid;
    entry.label = owner.label;
    entry.device = owner.device;
    entry.image = fabricshm::empty_telemetry();
    entry.seen = {};
    entry.before = {};
    entry.rates = {};
    entry.member = false;
    entry.shards.clear();
    entry.confirmed = {};
}

// Gives a page's memory back although its session may keep the file: what is stored there from now
// on is the session's own. Without effect where the kernel does not let it; then the count bounds
// it.
void empty(const fabricshm::Mapping& page) {
    if (!page) return;
    if (::mprotect(page.data(), page.size(), PROT_READ | PROT_WRITE) != 0) return;
    ::madvise(page.data(), page.size(), MADV_REMOVE);
}

}  // namespace

// A session that never had a page has no entry, and gets one with its first.
Result<void> SessionPages::count_page(const PageOwner& owner, int Pages::*kind) {
    const std::lock_guard lock(mutex_);
    Pages& session = pages_[owner.session_id];
    session.owner.uid = owner.uid;
    int& pages = session.*kind;
    if (pages >= kPagesOfSession) return Error{Errc::kNoMemory, 0, "pages of this session"};
    if (pages > 0) {
        const auto more = more_.find(owner.uid);
        if (more != more_.end() && more->second >= kMorePagesOfUser) {
            return Error{Errc::kNoMemory, 0, "pages of this user"};
        }
        ++more_[owner.uid];
    }
    ++pages;
    return {};
}

Result<Fd> SessionPages::open_telemetry(const PageOwner& owner) {
    FABRIC_TRY_VOID(count_page(owner, &Pages::telemetry_pages));
    FABRIC_TRY(auto file,
               fabricshm::make_page_file("fabric-telemetry", fabricshm::kTelemetryFileBytes,
                                         PageAccess::kReadWrite, fabricshm::format_telemetry));
    const std::lock_guard lock(mutex_);
    Pages& pages = pages_[owner.session_id];
    pages.owner = owner;
    read_latencies_to_the_end(pages);
    empty(pages.telemetry);
    pages.telemetry = std::move(file.mapping);
    pages.latencies = std::make_unique<LatencyReader>();
    pages.made = ++made_;
    slots_listed_ = false;
    return std::move(file.descriptor);
}

Result<Fd> SessionPages::open_directives(const PageOwner& owner) {
    FABRIC_TRY_VOID(count_page(owner, &Pages::directive_pages));
    FABRIC_TRY(auto file,
               fabricshm::make_page_file("fabric-directives", kPageFileBytes, PageAccess::kReadOnly,
                                         fabricshm::format_directives));
    const std::lock_guard lock(mutex_);
    Pages& pages = pages_[owner.session_id];
    pages.owner = owner;
    if (pages.last.serial != 0) fabricshm::write_directives(file.mapping.data(), pages.last);
    pages.directives = std::move(file.mapping);
    return std::move(file.descriptor);
}

void SessionPages::end(std::uint64_t session_id) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = pages_.find(session_id);
    if (found == pages_.end()) return;
    const Pages& pages = found->second;
    read_latencies_to_the_end(pages);
    empty(pages.telemetry);
    const auto more = more_.find(pages.owner.uid);
    if (more != more_.end()) {
        more->second -=
            std::max(0, pages.telemetry_pages - 1) + std::max(0, pages.directive_pages - 1);
        if (more->second <= 0) more_.erase(more);
    }
    pages_.erase(found);
    slots_listed_ = false;
}

Result<void> SessionPages::direct(std::uint64_t session_id, const DirectiveImage& image) {
    FABRIC_TRY_VOID(fabricshm::check_directives(image));
    const std::lock_guard lock(mutex_);
    const auto found = pages_.find(session_id);
    if (found == pages_.end() || !found->second.directives) {
        return Error{Errc::kNotFound, 0, "directive page"};
    }
    Pages& pages = found->second;
    // A serial that does not rise would be taken for what is in force already.
    if (image.serial <= pages.last.serial) return Error{Errc::kInvalid, 0, "directive serial"};
    fabricshm::write_directives(pages.directives.data(), image);
    pages.last = image;
    return {};
}

// Sessions poll the serial: it rises when there is something to do, and not with every byte that
// is used or given back.
void SessionPages::tell(Pages& pages, QuotaImage quota) {
    if (!pages.directives) return;
    const auto same = [](const LimitImage& a, const LimitImage& b) {
        return a.limit_bytes == b.limit_bytes && a.target_bytes == b.target_bytes;
    };
    const bool news = pages.quota.serial == 0 || !same(quota.device, pages.quota.device) ||
                      !same(quota.user, pages.quota.user);
    quota.serial = pages.quota.serial + (news ? 1 : 0);
    pages.quota = quota;
    fabricshm::write_quotas(pages.directives.data(), quota);
}

void SessionPages::tell_quota(std::uint64_t session_id, const QuotaImage& quota) {
    const std::lock_guard lock(mutex_);
    const auto found = pages_.find(session_id);
    if (found != pages_.end()) tell(found->second, quota);
}

void SessionPages::tell_quotas(const std::function<QuotaImage(const PageOwner&)>& quota_of) {
    const std::lock_guard lock(mutex_);
    for (auto& [id, pages] : pages_) tell(pages, quota_of(pages.owner));
}

std::vector<std::uint64_t> SessionPages::directed() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint64_t> ids;
    for (const auto& [id, pages] : pages_) {
        if (pages.directives) ids.push_back(id);
    }
    return ids;
}

std::vector<fabricshm::SessionWait> SessionPages::waits() const {
    const std::lock_guard lock(mutex_);
    std::vector<fabricshm::SessionWait> all;
    fabricshm::WaitRecord records[fabricshm::kWaitsShown];
    for (const auto& [id, pages] : pages_) {
        const std::byte* page = pages.telemetry.data();
        if (page == nullptr) continue;
        if (fabricshm::read_telemetry_waits(page, records) != fabricshm::PageRead::kFresh) continue;
        for (const auto& record : records) {
            if (record.group_id != 0) all.push_back({id, record});
        }
    }
    return all;
}

LatencySums SessionPages::latencies() const {
    const std::lock_guard lock(mutex_);
    return latencies_;
}

// Before a page goes: the last ones of a session are those that say why it ended.
void SessionPages::read_latencies_to_the_end(const Pages& pages) const {
    if (!pages.telemetry) return;
    pages.latencies->read(pages.telemetry.data(), fabricshm::monotonic_ns(), latencies_);
}

// The list is short of what changes rarely: rebuilt when a session comes or goes.
bool SessionPages::list_slots() const {
    if (slots_listed_) return false;
    slots_listed_ = true;
    slots_.clear();
    for (const auto& [id, pages] : pages_) {
        if (pages.telemetry) {
            slots_.push_back({id, pages.made, pages.telemetry.data(), pages.latencies.get()});
        }
    }
    return true;
}

// The entries of old sessions are in step with the slots, but for the moments at which one comes or
// goes; then the wrong lines are fetched, which only costs their time.
void SessionPages::fetch_ahead(std::size_t slot, const std::vector<SessionSample>& sessions,
                               std::size_t entry, bool peers) const {
    if (slot + 2 * kAhead < slots_.size() && entry + 2 * kAhead < sessions.size()) {
        fetch_first(slots_[slot + 2 * kAhead].page, sessions[entry + 2 * kAhead]);
    }
    if (slot + kAhead >= slots_.size() || entry + kAhead >= sessions.size()) return;
    fetch_rest(slots_[slot + kAhead].page, sessions[entry + kAhead]);
    if (peers) fetch_peers(slots_[slot + kAhead].page);
}

void SessionPages::sample(std::vector<SessionSample>& sessions, std::int64_t now_ns,
                          std::int64_t stale_ns, unsigned turn, unsigned peers_every) const {
    const std::lock_guard lock(mutex_);
    if (list_slots()) {
        // All that have gone in one pass: a job of many ranks ends at once.
        std::erase_if(sessions, [&](const SessionSample& entry) {
            return !std::ranges::binary_search(slots_, entry.session_id, {}, &Slot::session_id);
        });
    }
    make_room(sessions, slots_.size());
    std::size_t at = 0;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        const Slot& slot = slots_[i];
        fetch_ahead(i, sessions, at, (at + kAhead + turn) % peers_every == 0);
        // Both are by id, and ids are never used twice: what is smaller here is of a session that
        // has ended.
        while (at < sessions.size() && sessions[at].session_id < slot.session_id) {
            sessions.erase(sessions.begin() + static_cast<std::ptrdiff_t>(at));
        }
        const bool known = at < sessions.size() && sessions[at].session_id == slot.session_id;
        if (!known) sessions.emplace(sessions.begin() + static_cast<std::ptrdiff_t>(at));
        SessionSample& entry = sessions[at];
        if (!known || entry.page_number != slot.number) {
            begin(entry, pages_.at(slot.session_id).owner);
            entry.page_number = slot.number;
        }
        fabricshm::read_telemetry_head(slot.page, entry.image, entry.seen);
        // Of its memory a session could say anything; the daemon's accounting knows.
        entry.image.memory_used = entry.memory_used;
        entry.image.memory_denied = entry.memory_denied;
        if ((at + turn) % peers_every == 0) {
            fabricshm::read_telemetry_peers(slot.page, entry.image, entry.seen);
            fabricshm::read_telemetry_shards(slot.page, entry.image, entry.seen);
            slot.latencies->read(slot.page, now_ns, latencies_);
        }
        const std::int64_t written = entry.image.written_ns;
        // `now_ns` was read before the page: one that is written all the time is younger. From
        // further in the future: a session that wants to appear alive for ever.
        entry.stale = written == 0 || written - now_ns > stale_ns || now_ns - written > stale_ns;
        // The daemon's records are asked once in a while, the page names its rank in every sample:
        // what they confirmed holds for that claim alone.
        const auto& image = entry.image;
        const Membership claim{image.arena_id, image.group_id, image.rank};
        entry.member = entry.member && claim == entry.confirmed;
        ++at;
    }
    sessions.resize(at);
}

}  // namespace fabricd
