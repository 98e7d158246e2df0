#include "fabricd/telemetry/session_pages.hpp"

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

void fetch_head(const std::byte* page) {
    for (int line = 0; line < 3; ++line) __builtin_prefetch(page + line * fabricshm::kCacheLine);
}

void fetch_entry(const SessionSample& entry) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&entry);
    const auto* head = reinterpret_cast<const std::byte*>(&entry.image);
    __builtin_prefetch(bytes, 1);
    for (int line = 0; line < 3; ++line) __builtin_prefetch(head + line * fabricshm::kCacheLine, 1);
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
}

}  // namespace

Result<Fd> SessionPages::open_telemetry(const PageOwner& owner) {
    FABRIC_TRY(auto file,
               fabricshm::make_page_file("fabric-telemetry", kPageFileBytes, PageAccess::kReadWrite,
                                         fabricshm::format_telemetry));
    const std::lock_guard lock(mutex_);
    Pages& pages = pages_[owner.session_id];
    pages.owner = owner;
    pages.telemetry = std::move(file.mapping);
    pages.made = ++made_;
    list_slots();
    return std::move(file.descriptor);
}

Result<Fd> SessionPages::open_directives(const PageOwner& owner) {
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
    if (pages_.erase(session_id) != 0) list_slots();
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

// Sessions look at the serial: it rises when there is something to do, and not with every byte that
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

// The list is short of what changes rarely: made anew when a session comes or goes.
void SessionPages::list_slots() {
    slots_.clear();
    for (const auto& [id, pages] : pages_) {
        if (pages.telemetry) slots_.push_back({id, pages.made, pages.telemetry.data()});
    }
}

void SessionPages::sample(std::vector<SessionSample>& sessions, std::int64_t now_ns,
                          std::int64_t stale_ns, unsigned turn, unsigned peers_every) const {
    const std::lock_guard lock(mutex_);
    if (sessions.capacity() < slots_.size()) sessions.reserve(slots_.size());
    std::size_t at = 0;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        const Slot& slot = slots_[i];
        if (i + kAhead < slots_.size()) fetch_head(slots_[i + kAhead].page);
        if (at + kAhead < sessions.size()) fetch_entry(sessions[at + kAhead]);
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
        // Of its memory a session could say anything; the books know.
        entry.image.memory_used = entry.memory_used;
        entry.image.memory_denied = entry.memory_denied;
        if ((at + turn) % peers_every == 0) {
            fabricshm::read_telemetry_peers(slot.page, entry.image, entry.seen);
            fabricshm::read_telemetry_shards(slot.page, entry.image, entry.seen);
        }
        const std::int64_t written = entry.image.written_ns;
        // From the future: a session that wants to look alive for ever.
        entry.stale = written == 0 || written > now_ns || now_ns - written > stale_ns;
        ++at;
    }
    sessions.resize(at);
}

}  // namespace fabricd
