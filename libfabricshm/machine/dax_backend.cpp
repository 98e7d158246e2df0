#include "libfabricshm/machine/dax_backend.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "libfabricshm/base/log.hpp"

namespace fabricshm {

namespace {

class DaxBackend final : public PoolBackend {
  public:
    DaxBackend(DaxDevices devices, DaxCatalogue catalogue, Bytes capacity, bool is_shared)
        : devices_(std::move(devices)),
          catalogue_(std::move(catalogue)),
          capacity_(capacity),
          is_shared_(is_shared) {}

    const char* kind() const noexcept override { return "dax"; }
    std::array<std::uint8_t, 16> uuid() const noexcept override { return catalogue_.uuid; }

    std::string describe() const override {
        const bool is_striped = devices_.count() > 1;
        return "ranges of " + devices_.names() + " (UUID " + format_uuid(catalogue_.uuid) +
               ", blocks of " + format_bytes(catalogue_.align) +
               (is_striped ? ", stripes of " + format_bytes(catalogue_.stripe) : "") + ")";
    }

    Result<PoolPiece> create(std::uint64_t arena_id, const std::string& name, std::uint32_t uid,
                             Bytes bytes) override;
    Result<PoolPiece> adopt(std::uint64_t arena_id, Bytes bytes, PresentedFiles presented,
                            Bytes uncommitted) override;
    void destroy(std::uint64_t arena_id) noexcept override;
    Result<std::vector<PoolLeftover>> list() override;

    PoolTotals totals() const noexcept override {
        const auto add = [](Bytes sum, const DaxEntry& entry) { return sum + entry.bytes; };
        const auto& entries = catalogue_.entries;
        return {capacity_, std::accumulate(entries.begin(), entries.end(), Bytes{0}, add)};
    }

  private:
    std::vector<DaxEntry>::iterator find(std::uint64_t arena_id) {
        auto& entries = catalogue_.entries;
        return std::find_if(entries.begin(), entries.end(),
                            [=](const DaxEntry& entry) { return entry.arena_id == arena_id; });
    }

    Result<PoolPiece> piece_of(const DaxEntry& entry) const {
        FABRIC_TRY(Fd fd, devices_.first().client_fd());
        PoolPiece piece{std::move(fd), entry.offset, entry.bytes, 0, catalogue_.align, 0};
        if (devices_.count() == 1) return piece;
        FABRIC_TRY(piece.others, devices_.other_fds());
        piece.stripes = catalogue_.stripes();
        return piece;
    }

    DaxDevices devices_;
    DaxCatalogue catalogue_;
    Bytes capacity_;
    bool is_shared_;
};

Result<PoolPiece> DaxBackend::create(std::uint64_t arena_id, const std::string& name,
                                     std::uint32_t uid, Bytes bytes) {
    if (bytes == 0 || bytes > catalogue_.device_bytes) {
        return Error{bytes == 0 ? Errc::kInvalid : Errc::kNoMemory, 0, "create arena"};
    }
    if (find(arena_id) != catalogue_.entries.end()) return Error{Errc::kExists, 0, "create arena"};
    const Bytes size = round_up(bytes, catalogue_.align);
    const bool is_full =
        totals().used + size > capacity_ || catalogue_.entries.size() == kCatalogueEntriesMax;
    if (is_full) return Error{Errc::kNoMemory, 0, "create arena: pool is full"};
    FABRIC_TRY(const std::uint64_t offset, find_room(catalogue_, size));
    // Cleared before it is entered: a crash in between leaves a free range, not a dirty arena.
    FABRIC_TRY_VOID(devices_.clear(catalogue_.stripes(), offset, size));
    // Zeros that stay in this host's caches would be written over what other hosts write there.
    if (is_shared_) FABRIC_TRY_VOID(devices_.flush(catalogue_.stripes(), offset, size));

    // A copy: what cannot be saved was not granted.
    DaxCatalogue next = catalogue_;
    const DaxEntry entry{arena_id, name.substr(0, 63), uid, offset, size};
    // By offset: find_room() and the checks of a catalogue go through it from left to right.
    const auto place = std::find_if(next.entries.begin(), next.entries.end(),
                                    [=](const DaxEntry& other) { return other.offset > offset; });
    next.entries.insert(place, entry);
    FABRIC_TRY(PoolPiece piece, piece_of(entry));
    FABRIC_TRY_VOID(devices_.first().save(next, catalogue_));
    catalogue_ = std::move(next);
    return piece;
}

// A range of the device has no pages to be committed.
Result<PoolPiece> DaxBackend::adopt(std::uint64_t arena_id, Bytes bytes, PresentedFiles presented,
                                    Bytes) {
    // The descriptors say which devices, not which range: the catalogue has to know the arena.
    const auto entry = find(arena_id);
    if (entry == catalogue_.entries.end() || entry->bytes != bytes ||
        !devices_.are_same(presented.fd, presented.others)) {
        return Error{Errc::kCorrupt, 0, "adopt arena"};
    }
    return piece_of(*entry);
}

void DaxBackend::destroy(std::uint64_t arena_id) noexcept {
    const auto entry = find(arena_id);
    if (entry == catalogue_.entries.end()) return;
    // Also when it cannot be saved: another host has the pool then, and here nothing is granted any
    // more.
    catalogue_.entries.erase(entry);
    if (const auto saved = devices_.first().save(catalogue_, catalogue_); !saved.ok()) {
        log(LogLevel::kError, "arena %llu is free but still in the catalogue: %s",
            static_cast<unsigned long long>(arena_id), fabricshm::describe(saved.error()).c_str());
    }
}

Result<std::vector<PoolLeftover>> DaxBackend::list() {
    std::vector<PoolLeftover> found;
    for (const auto& entry : catalogue_.entries) {
        FABRIC_TRY(PoolPiece piece, piece_of(entry));
        found.push_back({entry.arena_id, entry.name, entry.uid, std::move(piece)});
    }
    return found;
}

/// This host, to keep another one from taking a device that both can reach; zero when unknown.
Uuid host_id(const HostFiles& files) {
    const auto id = parse_uuid(files.text("/etc/machine-id").value_or(""));
    return id.ok() ? *id : Uuid{};
}

// Of two hosts that find a device blank at the same time the second overwrites the first. The wait
// is longer than the time between checking and writing, so that the first observes it, and only one
// host goes on (Fischer's way of mutual exclusion: plain loads and stores, and a bound on their
// delay).
constexpr auto kSettle = std::chrono::milliseconds(100);

Result<void> settle(const DaxDevice& device, const DaxCatalogue& catalogue,
                    const DaxOptions& options) {
    if (options.settle) {
        options.settle();
    } else {
        std::this_thread::sleep_for(kSettle);
    }
    if (device.still_holds(catalogue)) return {};
    return Error{Errc::kDenied, 0, "open dax pool: another host formatted it at the same time"};
}

Result<DaxCatalogue> format_devices(DaxDevices& devices, const DaxOptions& options,
                                    std::uint64_t epoch) {
    DaxDevice& device = devices.first();
    const auto random = options.files.text("/proc/sys/kernel/random/uuid").value_or("");
    DaxCatalogue catalogue;
    FABRIC_TRY(catalogue.uuid, parse_uuid(random));
    catalogue.host = host_id(options.files);
    catalogue.devices = devices.count();
    catalogue.stripe = devices.stripe();
    catalogue.device_bytes = devices.space(catalogue.stripe);
    catalogue.align = device.align();
    catalogue.epoch = epoch;
    FABRIC_TRY_VOID(device.format(catalogue));
    FABRIC_TRY_VOID(settle(device, catalogue, options));
    // By the one host that came through. Cut off here, the catalogue refuses devices without
    // labels.
    FABRIC_TRY_VOID(devices.format_labels(catalogue));
    log(LogLevel::kInfo, "formatted %s as pool %s", devices.names().c_str(),
        format_uuid(catalogue.uuid).c_str());
    return catalogue;
}

Result<void> check_identity(const DaxCatalogue& catalogue, const DaxDevices& devices,
                            const DaxOptions& options) {
    FABRIC_TRY_VOID(devices.check(catalogue));
    if (catalogue.device_bytes != devices.space(catalogue.stripe)) {
        return Error{Errc::kCorrupt, 0, "open dax pool: its catalogue is of another device size"};
    }
    if (catalogue.align != devices.align()) {
        return Error{Errc::kCorrupt, 0, "open dax pool: its catalogue is of another alignment"};
    }
    if (!options.uuid.empty()) {
        FABRIC_TRY(const Uuid wanted, parse_uuid(options.uuid));
        if (wanted != catalogue.uuid) {
            return Error{Errc::kNotFound, 0, "open dax pool: the one with this UUID"};
        }
    }
    return {};
}

bool is_anothers(const DaxCatalogue& catalogue, const DaxOptions& options) {
    // A pool of an unknown host is open to any host.
    return catalogue.host != Uuid{} && catalogue.host != host_id(options.files);
}

/// The epoch that a catalogue of this host has from now on; kDenied when the pool is another
/// host's. Asked before anything is written, also before a device is formatted.
Result<std::uint64_t> epoch_of_owner_of(const DaxDevice& device, const DaxOptions& options) {
    const auto found = device.load();
    // Blank, or damaged: nothing says whose it was.
    if (!found.ok()) return std::uint64_t{1};
    if (!is_anothers(*found, options)) return found->epoch;
    if (options.take_over) return found->epoch + 1;
    return Error{Errc::kDenied, 0,
                 "open dax pool: it belongs to another host (--take-over if that one is dead)"};
}

/// Of several devices: the first one's catalogue says it. None of the others may be of another pool
/// of another host; without --format they may be of no other pool at all, see DaxDevices::check().
Result<std::uint64_t> epoch_of_owner(const DaxDevices& devices, const DaxOptions& options) {
    FABRIC_TRY(const std::uint64_t epoch, epoch_of_owner_of(devices.first(), options));
    if (!options.format) return epoch;
    FABRIC_TRY_VOID(devices.check_others([&](const DaxDevice& device) -> Result<void> {
        FABRIC_TRY([[maybe_unused]] const std::uint64_t other, epoch_of_owner_of(device, options));
        return {};
    }));
    return epoch;
}

Result<DaxCatalogue> take_over(DaxDevice& device, DaxCatalogue catalogue, std::uint64_t epoch,
                               const DaxOptions& options) {
    // What has to be on the device still when this host writes.
    const DaxCatalogue held = catalogue;
    log(LogLevel::kWarning, "pool %s is taken over from host %s", format_uuid(held.uuid).c_str(),
        format_uuid(held.host).c_str());
    catalogue.host = host_id(options.files);
    catalogue.epoch = epoch;
    FABRIC_TRY_VOID(device.save(catalogue, held));
    FABRIC_TRY_VOID(settle(device, catalogue, options));
    return catalogue;
}

Result<DaxCatalogue> open_catalogue(DaxDevices& devices, const DaxOptions& options) {
    DaxDevice& device = devices.first();
    FABRIC_TRY(const std::uint64_t epoch, epoch_of_owner(devices, options));
    if (options.format) return format_devices(devices, options, epoch);
    FABRIC_TRY(const DaxContents contents, device.contents());
    // A daemon that asks for a certain pool does not want a new one made in its place.
    if (contents == DaxContents::kBlank && options.uuid.empty()) {
        FABRIC_TRY_VOID(devices.check_blank());
        return format_devices(devices, options, epoch);
    }
    if (contents == DaxContents::kForeign) {
        return Error{Errc::kExists, 0, "open dax pool: the device holds other data"};
    }
    FABRIC_TRY(DaxCatalogue catalogue, device.load());
    FABRIC_TRY_VOID(check_identity(catalogue, devices, options));
    // It rises only when a pool is taken over.
    if (catalogue.epoch != epoch) {
        FABRIC_TRY(catalogue, take_over(device, std::move(catalogue), epoch, options));
    }
    FABRIC_TRY_VOID(devices.follow(catalogue));
    return catalogue;
}

}  // namespace

Result<std::unique_ptr<PoolBackend>> make_dax_backend(DaxOptions options) {
    FABRIC_TRY(DaxDevices devices, DaxDevices::open(options.devices, options.files));
    // Whole blocks, but for the first, which is the catalogue's.
    const Bytes align = devices.align();
    const Bytes room = devices.space(devices.stripe()) / align * align - align;
    const Bytes capacity = options.capacity != 0 ? options.capacity : room;
    // Before the catalogue: a daemon that is rejected must not have formatted the device.
    if (room == 0 || capacity > room) return Error{Errc::kNoMemory, 0, "start dax pool"};
    FABRIC_TRY(DaxCatalogue catalogue, open_catalogue(devices, options));
    return std::unique_ptr<PoolBackend>(std::make_unique<DaxBackend>(
        std::move(devices), std::move(catalogue), capacity, options.is_shared));
}

}  // namespace fabricshm
