#include "fabricd/data/spill/spill.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>
#include <utility>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/disk_reader.hpp"

namespace fabricd {

using namespace std::chrono_literals;
using fabricshm::Errc;
using fabricshm::kDiskBlock;

namespace {

// By which the disk may be behind: what comes then is not stored.
constexpr std::uint32_t kMaxStaged = 12;
constexpr std::uint32_t kMinStaged = 4;
// A pack to which nothing more comes is written as it is.
constexpr auto kIdlePack = 1s;
constexpr auto kCatalogueWait = 5s;
constexpr unsigned kRestoreDepth = 16;

enum PackKind : std::size_t { kOther, kKept, kAlone };

// Ids and sequences are never used twice: the catalogue counts its opens.
std::uint64_t first_of(std::uint32_t opens) {
    return std::uint64_t{opens} << 32;
}

}  // namespace

std::size_t Spill::FileNameHash::operator()(const FileName& name) const noexcept {
    std::size_t hash = std::hash<std::string_view>()(name.path);
    for (const std::uint64_t word : name.version.words) hash = (hash ^ word) * 0x9e3779b97f4a7c15U;
    return hash ^ (hash >> 32);
}

Result<std::unique_ptr<Spill>> Spill::open(const std::string& folder, Bytes bytes,
                                           CatalogueThread& catalogue, CatalogueContent content) {
    FABRIC_TRY(auto files, SlotFiles::open(folder, bytes));
    if (!files.shortage().empty()) {
        fabricshm::log(fabricshm::LogLevel::kWarning,
                       "%s: the spill has these until the next start", files.shortage().c_str());
    }
    const std::uint32_t staged = std::clamp(files.slots() / 4, kMinStaged, kMaxStaged);
    FABRIC_TRY(auto staging, StagingRoom::make(staged));
    std::unique_ptr<Spill> spill(new Spill(std::move(files), std::move(staging), catalogue));
    FABRIC_TRY_VOID(spill->restore(std::move(content)));
    const SlotWriter::Calls calls{
        [one = spill.get()](SlotPiece& piece, const Result<void>& written) {
            one->on_written(piece, written);
        },
        [one = spill.get()] { one->cut_idle(fabricshm::Clock::now()); }};
    spill->writer_ =
        std::make_unique<SlotWriter>(spill->slot_files_, spill->staging_->memory(), calls);
    return spill;
}

Spill::Spill(SlotFiles files, std::unique_ptr<StagingRoom> staging, CatalogueThread& catalogue)
    : slot_files_(std::move(files)),
      catalogue_(catalogue),
      staging_(std::move(staging)),
      last_sequence_(first_of(catalogue.opens())),
      map_(slot_files_.slots()),
      last_file_(first_of(catalogue.opens())),
      saved_(std::make_shared<std::atomic<std::uint64_t>>(0)) {}

Spill::~Spill() {
    if (!writer_) return;
    {
        const std::lock_guard lock(store_mutex_);
        for (auto& pack : packs_) {
            if (pack) close_pack(pack);
        }
    }
    writer_.reset();
}

// ---- After a restart ----

Result<void> Spill::restore(CatalogueContent content) {
    for (CataloguedFile& file : content.files) {
        const auto [made, is_new] =
            files_.try_emplace({std::move(file.path), file.facts.version},
                               SpilledFile{file.id, file.facts.bytes, 0, true});
        if (is_new) files_by_id_[file.id] = made;
        if (!is_new) changes_.emplace_back(DropFile{file.id});
    }
    std::vector<CataloguedSlot> packs;
    for (const CataloguedSlot& row : content.slots) {
        if (row.slot >= slot_files_.slots()) {
            changes_.emplace_back(DropSlot{row.slot});
        } else if (row.file != 0) {
            restore_slot(row.slot, {{row.file, row.number, 0, row.bytes, row.checksum}});
        } else {
            packs.push_back(row);
        }
    }
    FABRIC_TRY_VOID(restore_packs(packs));
    drop_useless_files();
    return {};
}

// A row that is not as it was written, or whose slot has other bytes by now, costs its chunks
// alone.
void Spill::restore_slot(std::uint32_t slot, std::vector<SlotEntry> entries) {
    std::erase_if(entries, [&](const SlotEntry& entry) {
        const auto file = files_by_id_.find(entry.file);
        if (file == files_by_id_.end()) return true;
        const Bytes begin = entry.number * kSlotBytes;
        const Bytes file_bytes = file->second->second.bytes;
        return begin >= file_bytes || entry.bytes != std::min(kSlotBytes, file_bytes - begin) ||
               map_.find({entry.file, entry.number}).has_value();
    });
    if (!map_.restore(slot, entries)) {
        changes_.emplace_back(DropSlot{slot});
        return;
    }
    for (const SlotEntry& entry : entries) ++files_by_id_.at(entry.file)->second.chunks;
}

Result<void> Spill::restore_packs(const std::vector<CataloguedSlot>& rows) {
    const auto room = staging_->take();
    FABRIC_CHECK(room != nullptr);
    constexpr Bytes kRoom = kMaxIndexBytes;
    static_assert(kRestoreDepth * kRoom <= kSlotBytes);
    fabricshm::DiskReader reader({room->bytes(), kSlotBytes}, kRestoreDepth);
    const auto read_one = [&](std::size_t row, std::byte* into) {
        const Bytes bytes = fabricshm::round_up(rows[row].bytes, kDiskBlock);
        reader.start({slot_files_.readable(rows[row].slot), into, bytes,
                      slot_files_.offset(rows[row].slot) + rows[row].index_at, row});
    };
    std::vector<std::byte*> idle;
    for (unsigned i = 0; i < kRestoreDepth; ++i) idle.push_back(room->bytes() + i * kRoom);
    std::unordered_map<std::size_t, std::byte*> places;
    for (std::size_t next = 0; next < rows.size() || !places.empty();) {
        while (next < rows.size() && !idle.empty()) {
            const CataloguedSlot& row = rows[next];
            const bool is_sound = row.index_at % kDiskBlock == 0 && row.index_at < kSlotBytes &&
                                  fabricshm::round_up(row.bytes, kDiskBlock) <= kRoom &&
                                  row.bytes != 0;
            if (!is_sound) {
                changes_.emplace_back(DropSlot{row.slot});
                ++next;
                continue;
            }
            places[next] = idle.back();
            idle.pop_back();
            read_one(next, places[next]);
            ++next;
        }
        if (places.empty()) break;
        for (const auto& done : reader.wait(fabricshm::Clock::now() + 10s)) {
            const CataloguedSlot& row = rows[done.tag];
            std::byte* const bytes = places.at(done.tag);
            places.erase(done.tag);
            idle.push_back(bytes);
            if (done.error != 0) return fabricshm::error_of_disk(done.error, "read spill");
            if (done.bytes < row.bytes) {
                changes_.emplace_back(DropSlot{row.slot});
                continue;
            }
            auto entries =
                read_index({bytes, row.bytes}, row.checksum, {catalogue_.identity(), row.sequence});
            restore_slot(row.slot, entries.ok() ? std::move(*entries) : std::vector<SlotEntry>());
        }
    }
    return {};
}

void Spill::drop_useless_files() {
    for (auto next = files_.begin(); next != files_.end();) {
        const auto file = next++;
        if (file->second.chunks == 0) drop_file(file->second.id);
    }
    for (CatalogueChange& change : std::exchange(changes_, {})) {
        static_cast<void>(
            catalogue_.add(std::move(change), fabricshm::Clock::now() + kCatalogueWait));
    }
}

// ---- Files: under mutex_ ----

Spill::SpilledFile* Spill::find_file(const std::string& path, const FileVersion& version) {
    const auto file = files_.find({path, version});
    return file != files_.end() ? &file->second : nullptr;
}

Spill::SpilledFile& Spill::make_file(const ChunkName& name, Bytes bytes) {
    const auto [file, is_new] =
        files_.try_emplace({name.path, name.version}, SpilledFile{0, bytes, 0, false});
    if (is_new) {
        file->second.id = ++last_file_;
        files_by_id_[file->second.id] = file;
    }
    return file->second;
}

void Spill::drop_file(std::uint64_t id) {
    const auto file = files_by_id_.find(id);
    FABRIC_CHECK(file != files_by_id_.end());
    if (file->second->second.catalogued) changes_.emplace_back(DropFile{id});
    files_.erase(file->second);
    files_by_id_.erase(file);
}

void Spill::lose_chunks(const std::vector<ChunkKey>& gone) {
    for (const ChunkKey& key : gone) {
        const auto file = files_by_id_.find(key.file);
        FABRIC_CHECK(file != files_by_id_.end() && file->second->second.chunks > 0);
        if (--file->second->second.chunks == 0) drop_file(key.file);
    }
}

bool Spill::has(const ChunkName& name) const {
    const std::lock_guard lock(mutex_);
    if (!counts_.off.empty()) return false;
    const auto file = files_.find({name.path, name.version});
    return file != files_.end() && map_.find({file->second.id, name.number}).has_value();
}

void Spill::forget(const std::string& path, const FileVersion& version) {
    const std::lock_guard lock(mutex_);
    const SpilledFile* const file = find_file(path, version);
    if (file == nullptr) return;
    const SpilledFile known = *file;
    const Bytes numbers = (known.bytes + kSlotBytes - 1) / kSlotBytes;
    for (Bytes number = 0; number < numbers; ++number) {
        const ChunkKey key{known.id, static_cast<std::uint32_t>(number)};
        if (map_.drop(key)) lose_chunks({key});
    }
}

void Spill::release_kept() {
    const std::lock_guard lock(mutex_);
    map_.release_kept();
}

// ---- Store ----

bool Spill::store(const ChunkName& name, Bytes file_bytes, std::span<const std::byte> bytes,
                  std::uint32_t checksum, bool kept) {
    const Bytes begin = name.number * kSlotBytes;
    const bool is_chunk =
        begin < file_bytes && bytes.size() == std::min(kSlotBytes, file_bytes - begin);
    if (!is_chunk) return false;
    const std::lock_guard storing(store_mutex_);
    {
        const std::lock_guard lock(mutex_);
        if (!counts_.off.empty()) return false;
        const SpilledFile* const file = find_file(name.path, name.version);
        if (file != nullptr && map_.find({file->id, name.number})) return true;
    }
    auto& pack = pack_for(bytes.size(), kept);
    const bool is_stored =
        (pack || begin_pack(pack, kept)) && put_in(pack, name, file_bytes, bytes, checksum);
    const std::lock_guard lock(mutex_);
    ++(is_stored ? counts_.stored : counts_.refused);
    return is_stored;
}

// The pack that the chunk goes into. One that has no room for it is closed if it holds more than
// the chunk has, else the chunk gets a slot for itself: so each slot is filled by half at least.
std::unique_ptr<Spill::Pack>& Spill::pack_for(Bytes bytes, bool kept) {
    auto& pack = packs_[kept ? kKept : kOther];
    const bool fits_none = !fits_slot(bytes, 1);
    if (!fits_none &&
        (!pack || fits_slot(place_behind(pack->end, bytes) + bytes, pack->entries.size() + 1))) {
        return pack;
    }
    if (fits_none || bytes > pack->end) return packs_[kAlone];
    close_pack(pack);
    return pack;
}

bool Spill::begin_pack(std::unique_ptr<Pack>& pack, bool kept) {
    auto staged = staging_->take();
    if (!staged) return false;
    const std::lock_guard lock(mutex_);
    std::vector<ChunkKey> gone;
    const auto slot = map_.take_slot(kept, gone);
    lose_chunks(gone);
    if (!slot) return false;
    FAULT_POINT("spill.slot_taken");
    staged_[*slot] = staged;
    pack = std::make_unique<Pack>();
    pack->staged = std::move(staged);
    pack->slot = *slot;
    pack->sequence = ++last_sequence_;
    pack->kept = kept;
    return true;
}

bool Spill::put_in(std::unique_ptr<Pack>& pack, const ChunkName& name, Bytes file_bytes,
                   std::span<const std::byte> bytes, std::uint32_t checksum) {
    const Bytes place = place_behind(pack->end, bytes.size());
    std::memset(pack->staged->bytes() + pack->end, 0, place - pack->end);
    std::memcpy(pack->staged->bytes() + place, bytes.data(), bytes.size());
    pack->end = place + bytes.size();
    pack->last_store = fabricshm::Clock::now();
    {
        const std::lock_guard lock(mutex_);
        SpilledFile& file = make_file(name, file_bytes);
        const SlotEntry entry{file.id, name.number, static_cast<std::uint32_t>(place),
                              static_cast<std::uint32_t>(bytes.size()), checksum};
        pack->entries.push_back(entry);
        ++pack->chunks;
        if (!file.catalogued) {
            pack->files.push_back({file.id, name.path, {file_bytes, name.version}});
            file.catalogued = true;
        }
        ++file.chunks;
        map_.add(pack->slot, entry);
    }
    if (&pack == &packs_[kAlone]) close_pack(pack);
    return true;
}

// What came since the last cut, and an index of all, go to the disk.
void Spill::cut(Pack& pack, bool is_last) {
    SlotPiece piece;
    piece.staged = pack.staged;
    piece.begin = pack.written;
    piece.row = {pack.slot, pack.sequence, 0, 0, 0, 0, 0};
    piece.files = std::exchange(pack.files, {});
    piece.chunks = std::exchange(pack.chunks, 0);
    piece.is_last = is_last;
    std::byte* const bytes = pack.staged->bytes();
    const Bytes index_at = index_place(pack.end);
    std::memset(bytes + pack.end, 0, index_at - pack.end);
    if (fits_slot(pack.end, pack.entries.size())) {
        const Bytes index = index_bytes(pack.entries.size());
        piece.end = index_at + fabricshm::round_up(index, kDiskBlock);
        std::memset(bytes + index_at, 0, piece.end - index_at);
        write_index({catalogue_.identity(), pack.sequence}, pack.entries, bytes + index_at);
        piece.row.bytes = static_cast<std::uint32_t>(index);
        piece.row.checksum = fabricshm::crc32c(bytes + index_at, index);
        piece.row.index_at = static_cast<std::uint32_t>(index_at);
    } else {
        // A chunk that fills its slot.
        FABRIC_CHECK(pack.entries.size() == 1);
        const SlotEntry& entry = pack.entries.front();
        piece.end = index_at;
        piece.row.file = entry.file;
        piece.row.number = entry.number;
        piece.row.bytes = entry.bytes;
        piece.row.checksum = entry.checksum;
    }
    pack.end = piece.end;
    pack.written = piece.end;
    writer_->add(std::move(piece));
}

void Spill::close_pack(std::unique_ptr<Pack>& pack) {
    cut(*pack, true);
    pack.reset();
}

void Spill::cut_idle(TimePoint now) {
    const std::lock_guard lock(store_mutex_);
    for (auto& pack : packs_) {
        const bool is_due =
            pack && pack->end > pack->written && now - pack->last_store >= kIdlePack;
        if (is_due) cut(*pack, false);
    }
}

bool Spill::flush(TimePoint deadline) {
    {
        const std::lock_guard lock(store_mutex_);
        for (auto& pack : packs_) {
            if (pack && pack->end > pack->written) cut(*pack, false);
        }
    }
    return writer_->wait_done(deadline) && status().off.empty() && catalogue_.flush(deadline);
}

// On the writer's thread.
void Spill::on_written(SlotPiece& piece, const Result<void>& written) {
    if (!written.ok()) switch_off(fabricshm::explanation_of(written.error()));
    std::vector<CatalogueChange> changes;
    {
        const std::lock_guard lock(mutex_);
        if (!counts_.off.empty()) return;
        changes = std::exchange(changes_, {});
    }
    const auto deadline = fabricshm::Clock::now() + kCatalogueWait;
    for (CataloguedFile& file : piece.files) changes.emplace_back(std::move(file));
    // Behind its files: a slot whose files are not known is not found again.
    changes.emplace_back(piece.row);
    for (CatalogueChange& change : changes) {
        if (!catalogue_.add(std::move(change), deadline)) break;
    }
    // Relaxed: a number for people.
    catalogue_.then([saved = saved_, chunks = piece.chunks](bool is_written) {
        if (is_written) saved->fetch_add(chunks, std::memory_order_relaxed);
    });
    if (!piece.is_last) return;
    const std::lock_guard lock(mutex_);
    staged_.erase(piece.row.slot);
    map_.seal(piece.row.slot);
}

// ---- Take ----

std::optional<Spill::Pinned> Spill::pin(const ChunkName& name) {
    const std::lock_guard lock(mutex_);
    if (!counts_.off.empty()) return {};
    const SpilledFile* const file = find_file(name.path, name.version);
    const ChunkKey key{file != nullptr ? file->id : 0, name.number};
    const auto place = file != nullptr ? map_.pin(key) : std::nullopt;
    if (!place) {
        ++counts_.absent;
        return {};
    }
    ++counts_.found;
    Pinned pinned;
    pinned.key = key;
    pinned.place = *place;
    pinned.fd = slot_files_.readable(place->slot);
    pinned.offset = slot_files_.offset(place->slot) + place->offset;
    pinned.direct = slot_files_.is_direct();
    const auto staged = staged_.find(place->slot);
    if (staged != staged_.end()) pinned.staged = staged->second;
    return pinned;
}

void Spill::unpin(const Pinned& pinned, Verdict verdict) {
    const std::lock_guard lock(mutex_);
    if (verdict == Verdict::kCorrupt) {
        ++counts_.corrupt;
        // It may be gone for another reason meanwhile, and even be there again, elsewhere.
        const auto place = map_.find(pinned.key);
        const bool is_same =
            place && place->slot == pinned.place.slot && place->offset == pinned.place.offset;
        if (is_same && map_.drop(pinned.key)) lose_chunks({pinned.key});
    }
    map_.unpin(pinned.place.slot);
}

void Spill::switch_off(const std::string& reason) {
    {
        const std::lock_guard lock(mutex_);
        if (!counts_.off.empty()) return;
        counts_.off = reason;
        staged_.clear();
    }
    fabricshm::log(fabricshm::LogLevel::kWarning,
                   "the spill is off until the next start, the cache goes on without: %s",
                   reason.c_str());
}

SpillStatus Spill::status() const {
    const std::lock_guard lock(mutex_);
    SpillStatus status = counts_;
    status.unsaved = status.stored - saved_->load(std::memory_order_relaxed);
    status.room = slot_files_.slots() * kSlotBytes;
    status.bytes = map_.bytes();
    status.chunks = map_.chunks();
    status.slots = map_.slots();
    status.free_slots = map_.free_slots();
    status.kept_slots = map_.kept_slots();
    return status;
}

}  // namespace fabricd
