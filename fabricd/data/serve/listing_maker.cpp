#include "fabricd/data/serve/listing_maker.hpp"

#include <algorithm>
#include <chrono>
#include <unordered_set>
#include <utility>

#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/os/sealed_file.hpp"

namespace fabricd {

using namespace std::chrono_literals;
using fabricshm::Clock;
using fabricshm::Errc;
using fabricshm::ListedFile;

namespace {

// Of the control thread's time at once, and how many files it takes between two looks at the clock.
constexpr auto kSliceTime = 3ms;
constexpr std::size_t kFilesALook = 64;
// Up to here the thread that seals is further away than the work takes.
constexpr std::size_t kSmallListing = 1000;

std::string parent_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    return slash == path.npos ? "" : path.substr(0, slash);
}

// What its names are relative to: the folder that was listed, or that of the file that was.
std::string base_of(const Listing& listing) {
    return listing.is_file ? parent_of(listing.path) : listing.path;
}

}  // namespace

Result<void> seal_listing(Listing& listing, std::uint64_t generation,
                          std::vector<ListedFile> listed) {
    std::sort(listed.begin(), listed.end(),
              [](const auto& one, const auto& other) { return one.name < other.name; });
    // A silo whose pages overlap, since it changed between them, names a file twice.
    listed.erase(
        std::unique(listed.begin(), listed.end(),
                    [](const auto& one, const auto& other) { return one.name == other.name; }),
        listed.end());
    listing.files.reserve(listed.size());
    for (const ListedFile& one : listed) {
        listing.files.push_back(one.file);
        listing.names = fabricshm::crc32c(one.name.c_str(), one.name.size() + 1, listing.names);
    }
    const std::uint64_t flags = listing.is_recursive ? fabricshm::kListingRecursive : 0;
    const auto bytes = build_listing({generation, listing.id, flags}, listed);
    FABRIC_TRY(listing.descriptor, fabricshm::make_sealed_file("fabric-listing", bytes));
    return {};
}

ListingMaker::ListingMaker(Parts parts) : parts_(std::move(parts)), sealer_([this] { run(); }) {}

ListingMaker::~ListingMaker() {
    {
        const std::lock_guard lock(mutex_);
        ends_ = true;
    }
    has_task_.notify_one();
    sealer_.join();
}

void ListingMaker::make(std::shared_ptr<Listing> listing, std::vector<ListedPath> entries,
                        std::shared_ptr<const Listing> before, Done done) {
    listing->is_file = entries.size() == 1 && entries[0].path == listing->path;
    auto making = std::make_shared<Making>();
    making->listing = std::move(listing);
    making->entries = std::move(entries);
    making->before = std::move(before);
    making->done = std::move(done);
    making->listed.reserve(making->entries.size());
    // Not behind a large one.
    if (making->entries.size() <= kSmallListing) {
        static_cast<void>(see_some(*making, TimePoint::max()));
        if (making->outcome.code == Errc::kOk) seal(*making);
        return end(making);
    }
    parts_.files.expect(making->listing->silo, making->entries.size());
    makings_.push_back(making);
}

Result<void> ListingMaker::see(Making& making, const ListedPath& entry, std::size_t prefix) {
    ListedFile one;
    one.name = entry.path.substr(prefix);
    one.is_folder = entry.is_folder;
    if (!entry.is_folder) {
        const Listing& listing = *making.listing;
        FABRIC_TRY(const KnownFile* file,
                   parts_.files.see(listing.silo, entry.path, entry.facts, listing.made));
        one.bytes = file->facts.bytes;
        one.first_line = file->first_line;
        one.version = file->facts.version.words;
        one.file = file->id;
        one.mtime_ns = parts_.files.mtime_of(*file);
    }
    making.listed.push_back(std::move(one));
    return {};
}

// False: there is more to see.
bool ListingMaker::see_some(Making& making, TimePoint until) {
    const std::string base = base_of(*making.listing);
    const std::size_t prefix = base.empty() ? 0 : base.size() + 1;
    do {
        const std::size_t end = std::min(making.next + kFilesALook, making.entries.size());
        for (; making.next < end && making.outcome.code == Errc::kOk; ++making.next) {
            const auto seen = see(making, making.entries[making.next], prefix);
            if (!seen.ok()) making.outcome = outcome_of(seen.error());
        }
    } while (making.next < making.entries.size() && making.outcome.code == Errc::kOk &&
             Clock::now() < until);
    parts_.files.flush();
    return making.next == making.entries.size() || making.outcome.code != Errc::kOk;
}

// On the thread of its own, or here.
void ListingMaker::seal(Making& making) const {
    making.entries = {};
    const auto sealed = seal_listing(*making.listing, parts_.generation, std::move(making.listed));
    if (!sealed.ok()) making.outcome = outcome_of(sealed.error());
    if (!sealed.ok() || making.before == nullptr) return;
    // What the silo no longer names is no more.
    const std::unordered_set<std::uint64_t> there(making.listing->files.begin(),
                                                  making.listing->files.end());
    for (const auto id : making.before->files) {
        if (id != 0 && there.count(id) == 0) making.gone.push_back(id);
    }
}

void ListingMaker::end(const std::shared_ptr<Making>& making) {
    if (making->outcome.code != Errc::kOk) return making->done(making->outcome, nullptr);
    for (const auto id : making->gone) gone_.push_back({id, making->listing->made});
    forget_some(Clock::now() + kSliceTime);
    making->done({}, making->listing);
}

void ListingMaker::forget(const Listing& before) {
    for (const auto id : before.files) {
        if (id != 0) gone_.push_back({id, Clock::now()});
    }
    forget_some(Clock::now() + kSliceTime);
}

void ListingMaker::forget_some(TimePoint until) {
    if (gone_.empty()) return;
    for (std::size_t count = 1; !gone_.empty(); ++count) {
        const Gone gone = gone_.front();
        gone_.pop_front();
        const KnownFile* file = parts_.files.find(gone.file);
        // One that is there again meanwhile stays.
        if (file != nullptr && file->seen < gone.at) parts_.files.forget(gone.file);
        if (count % kFilesALook == 0 && Clock::now() >= until) break;
    }
    parts_.files.flush();
}

void ListingMaker::tick() {
    const TimePoint until = Clock::now() + kSliceTime;
    forget_some(until);
    while (!makings_.empty() && see_some(*makings_.front(), until)) {
        const auto making = makings_.front();
        makings_.pop_front();
        if (making->outcome.code != Errc::kOk) {
            end(making);
        } else {
            const std::lock_guard lock(mutex_);
            to_seal_.push_back(making);
            has_task_.notify_one();
        }
        if (Clock::now() >= until) return;
    }
}

void ListingMaker::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        has_task_.wait(lock, [&] { return ends_ || !to_seal_.empty(); });
        if (ends_) return;
        const auto making = std::move(to_seal_.front());
        to_seal_.pop_front();
        lock.unlock();
        seal(*making);
        parts_.post([this, making] { end(making); });
        lock.lock();
    }
}

}  // namespace fabricd
