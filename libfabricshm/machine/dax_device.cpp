#include "libfabricshm/machine/dax_device.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/fault_point.hpp"
#include "libfabricshm/os/poison.hpp"

namespace fabricshm {

namespace {

constexpr Bytes kStandInAlign = 2 * kMiB;

/// "dax0.0" of a character device of the dax subsystem; "" for any other.
std::string dax_name(const struct stat& status, const HostFiles& files) {
    const std::string node = files.root() + "/sys/dev/char/" +
                             std::to_string(major(status.st_rdev)) + ":" +
                             std::to_string(minor(status.st_rdev));
    std::error_code error;
    const auto target = std::filesystem::canonical(node, error);
    if (error) return "";
    const std::string name = target.filename().string();
    return files.exists("/sys/bus/dax/devices/" + name) ? name : "";
}

/// Writes the lines out of the caches to the memory behind them, and drops them: for devices that
/// keep their data without power, and for hosts that share a device but not their caches. What is
/// read afterwards comes from the device.
void flush_lines([[maybe_unused]] const std::byte* data, [[maybe_unused]] Bytes bytes) {
#if defined(__x86_64__)
    for (Bytes at = 0; at < bytes; at += kCacheLine) __builtin_ia32_clflush(data + at);
#elif defined(__aarch64__)
    for (Bytes at = 0; at < bytes; at += kCacheLine) asm volatile("dc civac, %0" ::"r"(data + at));
#endif
    // The flushes before the fence are done before anything after it: the return to a caller that
    // hands out the arena, or a load that has to see what another host wrote.
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool is_zero(const std::byte* data, Bytes bytes) {
    return std::all_of(data, data + bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

Result<DaxDevice> DaxDevice::open(const std::string& path, const HostFiles& files, bool read_only) {
    const int flags = (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC;
    DaxDevice device;
    device.fd_ = Fd(::open(path.c_str(), flags));
    if (!device.fd_) return error_from_errno(errno, "open dax device");
    struct stat status {};
    if (::fstat(device.fd_.get(), &status) != 0) return error_from_errno(errno, "open dax device");
    if (S_ISREG(status.st_mode)) {
        device.is_file_ = true;
        device.bytes_ = static_cast<Bytes>(status.st_size);
        device.align_ = kStandInAlign;
    } else if (const auto name = dax_name(status, files); S_ISCHR(status.st_mode) && name != "") {
        const std::string folder = "/sys/bus/dax/devices/" + name;
        device.bytes_ = files.number(folder + "/size").value_or(0);
        device.align_ = files.number(folder + "/align").value_or(kStandInAlign);
    } else {
        return Error{Errc::kInvalid, 0, "open dax device: not a DAX device"};
    }
    // A block for the catalogue and one for arenas.
    if (device.bytes_ < 2 * device.align_ || device.align_ < kStandInAlign) {
        return Error{Errc::kInvalid, 0, "open dax device: too small"};
    }
    if (!read_only) {
        // Keeps other daemons of this host out; other hosts are distinguished by the catalogue.
        if (::flock(device.fd_.get(), LOCK_EX | LOCK_NB) != 0) {
            return Error{Errc::kBusy, 0, "open dax device: another process has it"};
        }
        // Opened again instead of duplicated: see the class.
        device.client_ = Fd(::open(path.c_str(), flags));
        if (!device.client_) return error_from_errno(errno, "open dax device");
    }
    FABRIC_TRY(device.first_block_,
               Mapping::map(device.fd_, 0, device.align_, {!read_only, device.align_, 0}));
    flush_lines(device.first_block_.data(), device.align_);  // another host may have written it
    return device;
}

Result<DaxDevice> DaxDevice::open_as_guest(const std::string& path, const HostFiles& files) {
    FABRIC_TRY(DaxDevice device, open(path, files, true));
    device.client_ = Fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!device.client_) return error_from_errno(errno, "open dax device");
    return device;
}

Result<void> DaxDevice::flush(std::uint64_t offset, Bytes bytes) const {
    // The device is mapped in whole blocks alone; what lies around the range is left as it is.
    const std::uint64_t first = offset / align_ * align_;
    const Bytes within = offset - first;
    FABRIC_TRY(const Mapping blocks,
               Mapping::map(client_, first, round_up(within + bytes, align_), {true, align_, 0}));
    flush_lines(blocks.data() + within, bytes);
    return {};
}

namespace {

// The end of the second copy, behind as many entries as it may have; a line for each mark, so that
// two hosts never write one line.
constexpr Bytes kMarksOffset = 2 * kCatalogueCopyBytes - DaxDevice::kMarks * kCacheLine;
static_assert((kCatalogueEntriesMax + 1) * 128 <=
              kCatalogueCopyBytes - DaxDevice::kMarks * kCacheLine);

std::byte* mark_in(const Mapping& block, std::uint32_t slot) {
    FABRIC_CHECK(slot < DaxDevice::kMarks);
    return block.data() + kMarksOffset + slot * kCacheLine;
}

}  // namespace

Result<void> DaxDevice::write_mark(std::uint32_t slot, std::uint64_t value) const {
    FABRIC_TRY(const Mapping block, Mapping::map(client_, 0, align_, {true, align_, 0}));
    std::byte* mark = mark_in(block, slot);
    std::memcpy(mark, &value, sizeof value);
    flush_lines(mark, sizeof value);
    return {};
}

Result<std::uint64_t> DaxDevice::read_mark(std::uint32_t slot) const {
    FABRIC_TRY(const Mapping block, Mapping::map(client_, 0, align_, {true, align_, 0}));
    const std::byte* mark = mark_in(block, slot);
    // Before the load: this host may have the line from the last time.
    flush_lines(mark, kCacheLine);
    std::uint64_t value = 0;
    std::memcpy(&value, mark, sizeof value);
    return value;
}

Result<DaxContents> DaxDevice::contents() const {
    const auto loaded = load();
    if (loaded.ok()) return DaxContents::kCatalogue;
    if (loaded.error().code != Errc::kNotFound) return DaxContents::kDamaged;
    if (!is_zero(first_block_.data(), align_)) return DaxContents::kForeign;
    // The last whole block.
    const Bytes last = bytes_ / align_ * align_ - align_;
    // In steps: devices may have terabytes.
    for (Bytes at = align_;; at += std::max(kGiB, align_)) {
        at = std::min(at, last);
        FABRIC_TRY(const Mapping block, Mapping::map(fd_, at, align_, {false, align_, 0}));
        // Labels of other systems are at the start or in the last block.
        if (!is_zero(block.data(), at == last ? align_ : kPageBytes)) return DaxContents::kForeign;
        if (at == last) return DaxContents::kBlank;
    }
}

Result<DaxCatalogue> DaxDevice::load() const {
    auto first = decode_catalogue(first_block_.data());
    auto second = decode_catalogue(first_block_.data() + kCatalogueCopyBytes);
    if (first.ok() && second.ok()) {
        return first->sequence > second->sequence ? std::move(first) : std::move(second);
    }
    if (first.ok()) return first;
    if (second.ok()) return second;
    // A damaged copy says more than one that was never written.
    return first.error().code == Errc::kNotFound ? second : first;
}

bool DaxDevice::still_holds(const DaxCatalogue& catalogue) const {
    // As many bytes as are expected: were there more, the checksum would fail on stale ones.
    const Bytes bytes = encode_catalogue(catalogue).size();
    flush_lines(first_block_.data(), bytes);
    flush_lines(first_block_.data() + kCatalogueCopyBytes, bytes);
    const auto found = load();
    return found.ok() && found->sequence == catalogue.sequence && found->uuid == catalogue.uuid &&
           found->host == catalogue.host && found->epoch == catalogue.epoch &&
           found->device == catalogue.device;
}

Result<void> DaxDevice::save(DaxCatalogue& catalogue, const DaxCatalogue& held) {
    // Not one step with the write: a host that takes over in between is seen at the next save. To
    // take a pool from a host that still grants is a mistake that this catches soon, not at once.
    if (!still_holds(held)) {
        return Error{Errc::kDenied, 0, "save catalogue: another host has taken the pool"};
    }
    write(catalogue);
    return {};
}

Result<void> DaxDevice::format(DaxCatalogue& catalogue) {
    // What was there is gone from both copies, so that an older catalogue can't come back.
    FABRIC_TRY_VOID(clear(0, align_));
    // Once for each copy.
    write(catalogue);
    write(catalogue);
    return {};
}

void DaxDevice::write(DaxCatalogue& catalogue) {
    ++catalogue.sequence;
    const auto bytes = encode_catalogue(catalogue);
    std::byte* copy = first_block_.data() + (catalogue.sequence % 2) * kCatalogueCopyBytes;
    // In halves, for tests that crash between them.
    const std::size_t half = bytes.size() / 2;
    std::memcpy(copy, bytes.data(), half);
    FAULT_POINT("dax.catalogue_torn");
    std::memcpy(copy + half, bytes.data() + half, bytes.size() - half);
    flush_lines(copy, bytes.size());
    // A stand-in file needs no more: its pages outlive this process, and the loss of power is what
    // only a device is for. (MS_ASYNC would do nothing on Linux, MS_SYNC would wait for a disk.)
}

Result<void> DaxDevice::clear(std::uint64_t offset, Bytes bytes) {
    const auto length = static_cast<off_t>(bytes);
    // Only the stand-in can run out of space behind its mapping, which would be a SIGBUS below.
    if (is_file_ && ::fallocate(fd_.get(), 0, static_cast<off_t>(offset), length) != 0) {
        return error_from_errno(errno, "clear arena");
    }
    FABRIC_TRY(const Mapping range, Mapping::map(fd_, offset, bytes, {true, align_, 0}));
    // From here on a lost page is an error and no signal.
    const PoisonWatch watch(range.data(), bytes, {nullptr, 0, align_, true});
    const PoisonGuard guard;
    std::memset(range.data(), 0, bytes);
    if (guard.hit()) return Error{Errc::kPoisoned, 0, "clear arena"};
    return {};
}

bool DaxDevice::is_same(const Fd& other) const noexcept {
    struct stat ours {};
    struct stat theirs {};
    if (::fstat(client_.get(), &ours) != 0 || ::fstat(other.get(), &theirs) != 0) return false;
    const bool same_node = ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
    const bool same_device =
        S_ISCHR(ours.st_mode) && S_ISCHR(theirs.st_mode) && ours.st_rdev == theirs.st_rdev;
    if (!same_node && !same_device) return false;
    return (::fcntl(other.get(), F_GETFL) & O_ACCMODE) == O_RDWR;
}

}  // namespace fabricshm
