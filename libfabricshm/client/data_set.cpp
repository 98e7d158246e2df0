#include "libfabricshm/client/data_set.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/sealed_file.hpp"

namespace fabricshm {

namespace {

constexpr Duration kRetryPause = std::chrono::milliseconds(2);

bool is_same(const DataEntry& one, const DataEntry& other) noexcept {
    return one.bytes == other.bytes && one.flags == other.flags &&
           std::equal(std::begin(one.version), std::end(one.version), std::begin(other.version));
}

bool is_same_order(const ListingView& one, const ListingView& other) noexcept {
    if (one.size() != other.size()) return false;
    for (std::uint64_t i = 0; i < one.size(); ++i) {
        if (one.name(i) != other.name(i) || !is_same(one.entry(i), other.entry(i))) return false;
    }
    return true;
}

Error changed() {
    return {Errc::kChanged, 0, "read"};
}

Error not_there() {
    return explain({Errc::kTimeout, 0, "read"}, "it is not in the pool");
}

Error all_slots_used(bool is_view) {
    if (!is_view) return {Errc::kTimeout, 0, "wait for a slot of the pin page"};
    return explain({Errc::kBusy, 0, "view"},
                   "this process holds %zu views, which is as many as it can: release some, or "
                   "read instead",
                   DataPins::kViews);
}

}  // namespace

DataSet::~DataSet() {
    client_->process().end_plan(this);
    const Places* places = places_.load(std::memory_order_acquire);
    while (places != nullptr) delete std::exchange(places, places->older);
}

Result<std::unique_ptr<DataSet>> DataSet::list(std::shared_ptr<DataClient> client, std::string path,
                                               std::uint32_t flags, TimePoint deadline) {
    FABRIC_TRY(Listing listing, ask(*client, path, flags, deadline));
    std::unique_ptr<DataSet> set(new DataSet(std::move(client), std::move(path), flags));
    set->listing_ = std::move(listing);
    return set;
}

// A listing that fits the way that this process has when it returns.
Result<DataSet::Listing> DataSet::ask(DataClient& client, const std::string& path,
                                      std::uint32_t flags, TimePoint deadline) {
    DataProcess& process = client.process();
    const bool is_file = (flags & kOneFile) != 0;
    const auto type = is_file ? proto::DataType::kStat : proto::DataType::kList;
    const std::string request =
        is_file ? path : proto::data_payload(proto::DataListRequest{flags, 0}, path);
    const DataWay* way = process.way();
    for (;;) {
        if (way == nullptr) {
            FABRIC_TRY(way, process.renew(nullptr, deadline));
        }
        const auto answer = process.channel().call(type, request, "list", deadline);
        const bool may_come = !answer.ok() && answer.error().code == Errc::kDaemon;
        if (!answer.ok() && !may_come) return answer.error();
        if (answer.ok()) {
            auto listing = is_file ? take_file(*answer, path, *way) : take(*answer, *way);
            const bool is_stale = !listing.ok() && listing.error().code == Errc::kBusy;
            if (!is_stale) return listing;
        }
        if (Clock::now() + kRetryPause >= deadline) {
            return may_come ? answer.error() : Error{Errc::kTimeout, 0, "list"};
        }
        // The service is away, or has other tables than this process knows of.
        FABRIC_TRY(const DataWay* const now, process.renew(way, deadline));
        if (now == way) std::this_thread::sleep_for(kRetryPause);
        way = now;
    }
}

// kBusy: of other tables than the way's.
Result<DataSet::Listing> DataSet::take(const DataChannel::Answer& answer, const DataWay& way) {
    const auto reply = proto::data_fixed<proto::DataListReply>(answer.payload);
    if (!reply || !answer.descriptor) return Error{Errc::kCorrupt, 0, "list"};
    Listing listing;
    // It can neither change nor shrink from now on: checked once.
    FABRIC_TRY(listing.mapping, map_sealed_file(answer.descriptor, kListingBytesMax));
    const std::span<const std::byte> content(listing.mapping.data(), listing.mapping.size());
    DataListing header{};
    if (content.size() < sizeof header) return Error{Errc::kCorrupt, 0, "list"};
    std::memcpy(&header, content.data(), sizeof header);
    if (header.magic == kListingMagic && header.generation != way.tables.generation) {
        return Error{Errc::kBusy, 0, "list"};
    }
    FABRIC_TRY(listing.view, ListingView::check(content, way.tables.lines));
    return listing;
}

// A listing as the service would have made it.
Result<DataSet::Listing> DataSet::take_file(const DataChannel::Answer& answer,
                                            const std::string& path, const DataWay& way) {
    const auto reply = proto::data_fixed<proto::DataStatReply>(answer.payload);
    if (!reply) return Error{Errc::kCorrupt, 0, "look at file"};
    if (reply->generation != way.tables.generation) return Error{Errc::kBusy, 0, "look at file"};
    if ((reply->flags & kEntryFolder) != 0) {
        return explain({Errc::kInvalid, 0, "look at file"}, "a folder");
    }
    ListedFile file;
    file.name = path.substr(path.rfind('/') + 1);
    file.bytes = reply->bytes;
    file.first_line = reply->first_line;
    std::copy(std::begin(reply->version), std::end(reply->version), file.version.begin());
    file.file = reply->file;
    file.mtime_ns = reply->mtime_ns;
    Listing listing;
    listing.own = build_listing({reply->generation, 1, 0}, std::span(&file, 1));
    FABRIC_TRY(listing.view, ListingView::check(listing.own, way.tables.lines));
    return listing;
}

Result<const DataEntry*> DataSet::file_at(std::uint64_t index) const {
    if (index >= listing_.view.size()) return Error{Errc::kNotFound, 0, "index"};
    const DataEntry& entry = listing_.view.entry(index);
    if ((entry.flags & kEntryFolder) != 0) return explain({Errc::kInvalid, 0, "read"}, "a folder");
    return &entry;
}

// Where the piece is in these tables; nothing when that has to be found out first.
std::optional<DataWant> DataSet::want_in(const DataWay& way, const Piece& piece) const noexcept {
    const DataEntry& entry = listing_.view.entry(piece.index);
    DataWant want;
    want.chunk = piece.chunk;
    want.used = piece.used;
    want.bytes = data_chunk_length(entry.bytes, piece.chunk);
    const std::uint64_t generation = way.tables.generation;
    if (generation == listing_.view.generation()) {
        want.file = entry.file;
        want.line = entry.first_line + piece.chunk;
        return want;
    }
    // Acquire: what the pointer leads to is as find_places() made it.
    const Places* places = places_.load(std::memory_order_acquire);
    if (places == nullptr || places->generation != generation) return std::nullopt;
    const Place& place = places->of[piece.index];
    want.file = place.file;
    want.line = place.first_line + piece.chunk;
    return want;
}

DataFinding DataSet::try_pin(DataProcess& process, const DataWay& way, const DataWant& want,
                             bool kept, DataHold& hold) const noexcept {
    if (want.file == 0) return DataFinding::kChanged;
    return way.page->pin(
        way.tables, want, this, kept, [&] { return process.way() == &way; }, hold);
}

Result<DataHold> DataSet::pin(const Piece& piece, Slots slots, Duration timeout) {
    DataProcess& process = client_->process();
    const DataWay* const way = process.way();
    if (__builtin_expect(way != nullptr, true)) {
        const auto want = want_in(*way, piece);
        DataHold hold;
        if (want && try_pin(process, *way, *want, false, hold) == DataFinding::kPinned) return hold;
    }
    return pin_slowly(piece, slots, timeout);
}

// With all that can come in between: until the deadline.
Result<DataHold> DataSet::pin_slowly(const Piece& piece, Slots slots, Duration timeout) {
    DataProcess& process = client_->process();
    const TimePoint begin = Clock::now();
    Wait wait{deadline_after(begin, timeout), timeout > Duration::zero(), false};
    for (;;) {
        FABRIC_TRY(Aim aim, find_aim(piece, wait));
        aim.want.is_fetched = wait.is_fetched;
        DataHold hold;
        DataFinding found = try_pin(process, *aim.way, aim.want, false, hold);
        if (found == DataFinding::kFull && slots == Slots::kAll) {
            found = try_kept(process, aim, wait.deadline, hold);
        }
        if (found == DataFinding::kPinned) {
            if (wait.is_fetched) aim.way->page->pins().count_miss(Clock::now() - begin);
            return hold;
        }
        if (found == DataFinding::kChanged) return changed();
        if (found == DataFinding::kCorrupt) return Error{Errc::kCorrupt, 0, "read table of data"};
        if (found == DataFinding::kFull) return all_slots_used(slots == Slots::kViews);
        if (process.way() == aim.way) FABRIC_TRY_VOID(make_ready(found, aim, wait));
    }
}

// Where the piece is now; asks for the way and the listing if they are not known.
Result<DataSet::Aim> DataSet::find_aim(const Piece& piece, const Wait& wait) {
    DataProcess& process = client_->process();
    for (;;) {
        const DataWay* way = process.way();
        const auto want = way != nullptr ? want_in(*way, piece) : std::nullopt;
        if (want) return Aim{way, *want};
        if (!wait.may_ask) return not_there();
        if (way == nullptr) {
            FABRIC_TRY(way, process.renew(nullptr, wait.deadline));
        } else {
            FABRIC_TRY_VOID(find_places(*way, wait.deadline));
        }
    }
}

// What was not there: asks for it. What was lost again before it was pinned is asked for again.
Result<void> DataSet::make_ready(DataFinding found, const Aim& aim, Wait& wait) {
    DataProcess& process = client_->process();
    if (!wait.may_ask) return not_there();
    const bool is_late = wait.is_fetched && Clock::now() >= wait.deadline;
    if (is_late) return Error{Errc::kTimeout, 0, "wait for the data"};
    wait.is_fetched = true;
    if (found == DataFinding::kMissing) return process.fetch(*aim.way, aim.want, wait.deadline);
    FABRIC_TRY(const DataWay* const now, process.renew(aim.way, wait.deadline));
    // Between two tables of the service.
    if (now == aim.way) std::this_thread::sleep_for(kRetryPause);
    return {};
}

// Reads hold such a slot for as long as a copy of a chunk takes.
DataFinding DataSet::try_kept(DataProcess& process, const Aim& aim, TimePoint deadline,
                              DataHold& hold) const noexcept {
    for (;;) {
        const DataFinding found = try_pin(process, *aim.way, aim.want, true, hold);
        if (found == DataFinding::kPinned) aim.way->page->pins().count_copy();
        if (found != DataFinding::kFull || Clock::now() >= deadline) return found;
        std::this_thread::yield();
    }
}

Result<DataView> DataSet::acquire(std::uint64_t index, Bytes offset, Duration timeout) {
    FABRIC_TRY(const DataEntry* const entry, file_at(index));
    if (offset > entry->bytes) return Error{Errc::kInvalid, 0, "offset beyond the file's end"};
    if (offset == entry->bytes) return DataView{};
    const auto chunk = static_cast<std::uint32_t>(offset / kDataChunkBytes);
    const Bytes skipped = offset % kDataChunkBytes;
    const Bytes length = data_chunk_length(entry->bytes, chunk) - skipped;
    const Piece piece{index, chunk, static_cast<std::uint32_t>(length)};
    FABRIC_TRY(const DataHold hold, pin(piece, Slots::kViews, timeout));
    return DataView{hold.bytes + skipped, length, hold.handle};
}

Result<Bytes> DataSet::read(std::uint64_t index, Bytes offset, std::span<std::byte> into,
                            Duration timeout) {
    FABRIC_TRY(const DataEntry* const entry, file_at(index));
    if (offset > entry->bytes) return Error{Errc::kInvalid, 0, "offset beyond the file's end"};
    const Bytes wanted = std::min<Bytes>(into.size(), entry->bytes - offset);
    const bool is_one_chunk = offset % kDataChunkBytes + wanted <= kDataChunkBytes;
    const TimePoint begin = is_one_chunk ? TimePoint{} : Clock::now();
    for (Bytes done = 0; done < wanted;) {
        const Bytes from = offset + done;
        const auto chunk = static_cast<std::uint32_t>(from / kDataChunkBytes);
        const Bytes skipped = from % kDataChunkBytes;
        const Bytes length =
            std::min<Bytes>(data_chunk_length(entry->bytes, chunk) - skipped, wanted - done);
        Duration left = timeout;
        // One deadline for all chunks.
        if (done > 0 && timeout > Duration::zero()) {
            left = std::max<Duration>(timeout - (Clock::now() - begin), Duration(1));
        }
        FABRIC_TRY(const DataHold hold,
                   pin({index, chunk, static_cast<std::uint32_t>(length)}, Slots::kAll, left));
        std::memcpy(into.data() + done, hold.bytes + skipped, length);
        release(hold.handle);
        done += length;
    }
    return wanted;
}

// The service has tables that the listing does not speak of: it lists the path once more, and the
// files that have the same version are found there by their names.
Result<void> DataSet::find_places(const DataWay& way, TimePoint deadline) {
    const Turnstile::Turn turn = client_->process().building().enter(deadline);
    if (!turn) return Error{Errc::kTimeout, 0, "wait for a listing"};
    const Places* const newest = places_.load(std::memory_order_acquire);
    if (newest != nullptr && newest->generation == way.tables.generation) return {};
    auto fresh = ask(*client_, path_, flags_, deadline);
    if (!fresh.ok() && fresh.error().code == Errc::kNotFound) return changed();
    if (!fresh.ok()) return fresh.error();
    // Release: as want_in() reads it.
    places_.store(places_of(*fresh), std::memory_order_release);
    return {};
}

const DataSet::Places* DataSet::places_of(const Listing& fresh) const {
    const ListingView& old = listing_.view;
    auto places = std::make_unique<Places>();
    places->generation = fresh.view.generation();
    places->listing = fresh.view.id();
    places->older = places_.load(std::memory_order_acquire);
    places->of.resize(old.size());
    std::uint64_t theirs = 0;
    // Both are sorted.
    for (std::uint64_t ours = 0; ours < old.size(); ++ours) {
        while (theirs < fresh.view.size() && fresh.view.name(theirs) < old.name(ours)) ++theirs;
        const bool is_there =
            theirs < fresh.view.size() && fresh.view.name(theirs) == old.name(ours);
        if (!is_there || !is_same(old.entry(ours), fresh.view.entry(theirs))) continue;
        const DataEntry& entry = fresh.view.entry(theirs);
        places->of[ours] = {entry.first_line, entry.file};
    }
    return places.release();
}

// By which number the service knows the set.
std::uint64_t DataSet::listing_in(const DataWay& way) const noexcept {
    if (way.tables.generation == listing_.view.generation()) return listing_.view.id();
    const Places* const places = places_.load(std::memory_order_acquire);
    return places != nullptr && places->generation == way.tables.generation ? places->listing : 0;
}

Result<void> DataSet::announce(proto::DataPlanRequest request, TimePoint deadline) {
    constexpr const char* kStep = "announce a plan";
    DataProcess& process = client_->process();
    const DataWay* way = process.way();
    if (way == nullptr) {
        FABRIC_TRY(way, process.renew(nullptr, deadline));
    }
    request.listing = listing_in(*way);
    if (request.listing == 0) {
        FABRIC_TRY_VOID(find_places(*way, deadline));
        way = process.way();
        request.listing = listing_in(*way);
        if (request.listing == 0) return Error{Errc::kBusy, 0, kStep};
    }
    auto sent = process.announce(this, proto::data_payload(request), kStep, deadline);
    if (sent.ok() || sent.error().code != Errc::kNotFound) return sent;
    // The service has forgotten the listing: after a restart, or since there were many. A number of
    // a plan has to mean the same file in the new one.
    FABRIC_TRY(const Listing fresh, ask(*client_, path_, flags_, deadline));
    if (!is_same_order(listing_.view, fresh.view)) {
        return explain({Errc::kChanged, 0, kStep}, "files were added, removed or replaced");
    }
    request.listing = fresh.view.id();
    return process.announce(this, proto::data_payload(request), kStep, deadline);
}

}  // namespace fabricshm
