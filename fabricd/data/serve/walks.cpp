#include "fabricd/data/serve/walks.hpp"

#include <algorithm>
#include <cstdlib>

#include "libfabricshm/base/crc32c.hpp"
#include "libfabricshm/shm/data_layout.hpp"
#include "libfabricshm/shm/data_listing.hpp"

namespace fabricd {

using fabricshm::crc32c;
using fabricshm::data_chunk_length;
using fabricshm::data_chunks;
using fabricshm::Errc;
using fabricshm::kDataChunkBytes;
using fabricshm::kNoLine;

namespace {

constexpr std::size_t kWalkInFlight = 32;
constexpr Bytes kWalkInFlightBytes = 64 * fabricshm::kMiB;
constexpr Bytes kCheckedATick = 16 * fabricshm::kMiB;  // some 2 ms of CRC-32C
constexpr std::size_t kWalksKept = 16;

}  // namespace

std::uint64_t Walks::add(const std::string& path, const std::vector<std::uint64_t>& files) {
    auto walk = std::make_shared<Walk>();
    walk->view.id = ++last_;
    walk->view.path = path;
    for (const auto id : files) {
        const KnownFile* file = parts_.files.find(id);
        if (file == nullptr) continue;
        walk->files.push_back(id);
        walk->view.bytes += file->facts.bytes;
    }
    walk->view.files = walk->files.size();
    walks_.push_back(walk);
    if (walks_.size() > kWalksKept && walks_.front()->view.is_over) walks_.pop_front();
    return walk->view.id;
}

std::uint64_t Walks::load(const std::string& path, const std::vector<std::uint64_t>& files) {
    const std::uint64_t id = add(path, files);
    walks_.back()->is_load = true;
    return id;
}

std::uint64_t Walks::verify(const std::string& path, const std::vector<std::uint64_t>& files,
                            bool with_silo) {
    const std::uint64_t id = add(path, files);
    walks_.back()->with_silo = with_silo;
    return id;
}

std::optional<WalkView> Walks::view(std::uint64_t id) const {
    for (const auto& walk : walks_) {
        if (walk->view.id == id) return walk->view;
    }
    return std::nullopt;
}

std::vector<WalkView> Walks::under_way() const {
    std::vector<WalkView> views;
    for (const auto& walk : walks_) {
        if (!walk->view.is_over) views.push_back(walk->view);
    }
    return views;
}

bool Walks::is_idle() const {
    return std::all_of(walks_.begin(), walks_.end(),
                       [](const auto& walk) { return walk->view.is_over; });
}

// The file whose chunk is next; nullptr: there is none. Files without bytes are done.
const KnownFile* Walks::next_file(Walk& walk) {
    for (; walk.next < walk.files.size(); ++walk.next, walk.chunk = 0) {
        const KnownFile* file = parts_.files.find(walk.files[walk.next]);
        if (file != nullptr && file->first_line != kNoLine) return file;
        ++walk.view.done_files;
    }
    return nullptr;
}

void Walks::step_over(Walk& walk, const KnownFile& file) {
    if (++walk.chunk < data_chunks(file.facts.bytes)) return;
    walk.chunk = 0;
    ++walk.next;
    ++walk.view.done_files;
}

void Walks::end_chunk(Walk& walk, Bytes bytes, const std::string& failure) {
    if (failure.empty()) {
        walk.view.done_bytes += bytes;
        return;
    }
    if (walk.view.failed++ == 0) walk.view.first_failure = failure;
}

bool Walks::load_next(const std::shared_ptr<Walk>& walk, TimePoint now) {
    if (walk->in_flight >= kWalkInFlight || walk->in_flight_bytes >= kWalkInFlightBytes)
        return false;
    const KnownFile* file = next_file(*walk);
    if (file == nullptr) return false;
    const Bytes bytes = data_chunk_length(file->facts.bytes, walk->chunk);
    const std::uint64_t line = file->first_line + walk->chunk;
    // What is on its way has its room.
    const bool is_here =
        parts_.cache.state(line) == DataLineState::kReady || parts_.fills.is_under_way(line);
    // It takes what is free, and nothing from others.
    const Bytes free = parts_.cache.capacity() - parts_.cache.used();
    if (!is_here && free < bytes + kDataChunkBytes) {
        walk->view.is_full = true;
        walk->next = walk->files.size();
        return false;
    }
    ++walk->in_flight;
    walk->in_flight_bytes += bytes;
    const std::string name = parts_.files.full_path(*file);
    const KnownFile wanted = *file;
    const std::uint64_t chunk = walk->chunk;
    step_over(*walk, wanted);
    parts_.fills.want(
        *file, chunk, FetchPriority::kAhead, ChunkKind::kTried,
        [this, walk, bytes, name](const RequestOutcome& outcome) {
            --walk->in_flight;
            walk->in_flight_bytes -= bytes;
            const bool is_good = outcome.code == Errc::kOk;
            end_chunk(*walk, bytes, is_good ? "" : printable(name) + ": " + outcome.text);
        },
        now);
    return true;
}

// What its version names is not one content: none of its chunks is good.
void Walks::drop_wrong(std::uint64_t id) {
    const KnownFile* const file = parts_.files.find(id);
    if (file == nullptr || parts_.spec.silos[file->silo].made != nullptr) return;
    const std::uint32_t silo = file->silo;
    if (parts_.tier != nullptr) parts_.tier->forget(*file);
    parts_.files.forget(id);
    parts_.files.flush();
    parts_.listings.expire(silo);
}

// Against bytes of the silo in memory of this walk alone.
void Walks::compare_with_silo(const std::shared_ptr<Walk>& walk, const KnownFile& file) {
    const std::uint64_t line = file.first_line + walk->chunk;
    const Bytes bytes = data_chunk_length(file.facts.bytes, walk->chunk);
    const Bytes room = fabricshm::round_up(bytes, fabricshm::kPageBytes);
    const std::shared_ptr<std::byte> memory(
        static_cast<std::byte*>(std::aligned_alloc(fabricshm::kPageBytes, room)), std::free);
    Fetch fetch;
    fetch.path = file.path;
    fetch.facts = file.facts;
    fetch.offset = walk->chunk * kDataChunkBytes;
    fetch.bytes = bytes;
    fetch.into = memory.get();
    fetch.room = room;
    ++walk->in_flight;
    walk->in_flight_bytes += bytes;
    const std::uint32_t checksum = parts_.cache.fields(line).checksum;
    const std::string name = printable(parts_.files.full_path(file));
    fetch.from_source = true;
    parts_.read_silo(fetch, file.silo,
                     [this, walk, memory, bytes, checksum, name, id = file.id](FillDone done) {
                         --walk->in_flight;
                         walk->in_flight_bytes -= bytes;
                         std::string failure;
                         if (done.fetched.outcome != FetchOutcome::kWhole) {
                             failure = name + ": " + done.fetched.reason;
                         } else if (done.checksum != checksum) {
                             failure = name + ": the silo has other bytes than memory";
                             drop_wrong(id);
                         }
                         end_chunk(*walk, bytes, failure);
                     });
}

bool Walks::verify_next(const std::shared_ptr<Walk>& walk) {
    if (walk->in_flight >= kWalkInFlight || walk->in_flight_bytes >= kWalkInFlightBytes)
        return false;
    const KnownFile* file = next_file(*walk);
    if (file == nullptr) return false;
    const std::uint64_t line = file->first_line + walk->chunk;
    if (parts_.cache.state(line) != DataLineState::kReady) {
        ++walk->view.skipped;
        walk->view.bytes -= data_chunk_length(file->facts.bytes, walk->chunk);
        step_over(*walk, *file);
        return true;
    }
    const auto bytes = parts_.cache.bytes_of(line);
    const bool is_right = crc32c(bytes.data(), bytes.size()) == parts_.cache.fields(line).checksum;
    if (!is_right) {
        end_chunk(*walk, bytes.size(),
                  printable(parts_.files.full_path(*file)) + ": its bytes in memory are wrong");
        if (parts_.spec.silos[file->silo].made == nullptr) parts_.cache.drop({line});
    } else if (walk->with_silo) {
        compare_with_silo(walk, *file);
    } else {
        end_chunk(*walk, bytes.size(), "");
    }
    step_over(*walk, *file);
    return true;
}

void Walks::tick(TimePoint now) {
    for (const auto& walk : walks_) {
        if (walk->view.is_over) continue;
        Bytes checked = 0;
        if (walk->is_load) {
            while (load_next(walk, now)) {
            }
        } else {
            while (checked < kCheckedATick && verify_next(walk)) {
                checked += kDataChunkBytes / 8;
            }
        }
        walk->view.is_over = walk->next >= walk->files.size() && walk->in_flight == 0;
    }
}

}  // namespace fabricd
