#include "libfabricshm/os/mapping.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <mutex>
#include <utility>

#include "libfabricshm/os/fork_lock.hpp"

namespace fabricshm {

namespace {

Result<void> check_length(const Fd& fd, std::uint64_t offset, Bytes bytes) {
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0) return error_from_errno(errno, "stat arena");
    if (!S_ISREG(status.st_mode)) return {};  // a device: mmap itself refuses what is outside
    const auto size = static_cast<Bytes>(status.st_size);
    if (offset > size || bytes > size - offset) return Error{Errc::kCorrupt, 0, "map arena"};
    return {};
}

// That each stripe lies in its file, and so that its pages can be mapped.
Result<void> check_stripes(const Fd& first, std::span<const Fd> others, const Stripes& stripes,
                           std::uint64_t offset, Bytes bytes, Bytes align) {
    const bool sound = stripes.files == others.size() + 1 &&
                       (stripes.is_one_file() || (stripes.bytes != 0 && offset >= stripes.skip));
    if (!sound) return Error{Errc::kInvalid, 0, "map arena: stripes"};
    for (std::uint32_t i = 0; i < stripes.files; ++i) {
        const Stripes::Part part = stripes.part(i, offset, bytes);
        if (part.bytes != 0)
            FABRIC_TRY_VOID(check_length(i == 0 ? first : others[i - 1], part.offset, part.bytes));
    }
    // A device-DAX takes such an offset, and answers the first access with SIGBUS: bytes and
    // addresses would not be aligned alike, and it has no smaller page to make up for it.
    const bool aligned =
        offset % align == 0 && stripes.bytes % align == 0 && stripes.skip % align == 0;
    if (!aligned) return Error{Errc::kInvalid, 0, "map arena: offset"};
    return {};
}

}  // namespace

Result<Mapping> Mapping::map(const Fd& fd, std::uint64_t offset, Bytes bytes,
                             const MapOptions& options) {
    return map(fd, {}, {}, offset, bytes, options);
}

Result<Mapping> Mapping::map(const Fd& first, std::span<const Fd> others, const Stripes& stripes,
                             std::uint64_t offset, Bytes bytes, const MapOptions& options) {
    const auto file = [&](std::uint32_t index) -> const Fd& {
        return index == 0 ? first : others[index - 1];
    };
    FABRIC_TRY_VOID(check_stripes(first, others, stripes, offset, bytes, options.align));

    // So that no child is born between a part's mmap and its madvise, below.
    std::unique_lock from_forks(fork_lock(), std::defer_lock);
    if (!options.is_inherited) from_forks.lock();
    // Reserve more than is needed, place the mapping on a multiple of `align`, return the rest.
    const Bytes reserved = bytes + options.align;
    void* space =
        ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) return error_from_errno(errno, "reserve addresses");
    const auto start = reinterpret_cast<std::uintptr_t>(space);
    const auto place = round_up(start, options.align);
    const int protection = PROT_READ | (options.writable ? PROT_WRITE : 0);
    Bytes done = 0;
    do {  // also of 0 bytes, which the kernel refuses
        const Stripes::Part part = stripes.first(offset + done, bytes - done);
        void* const data =
            ::mmap(reinterpret_cast<void*>(place + done), part.bytes, protection,
                   MAP_SHARED | MAP_FIXED, file(part.file).get(), static_cast<off_t>(part.offset));
        if (data == MAP_FAILED) {
            const int saved = errno;
            ::munmap(space, reserved);
            const bool many = done != 0 && saved == ENOMEM;
            return error_from_errno(saved,
                                    many ? "map arena: stripes (vm.max_map_count)" : "map arena");
        }
        done += part.bytes;
    } while (done < bytes);
    const auto used_end = place + round_up(bytes, 4096);
    if (place > start) ::munmap(space, place - start);
    if (start + reserved > used_end) {
        ::munmap(reinterpret_cast<void*>(used_end), start + reserved - used_end);
    }
    auto* const data = reinterpret_cast<std::byte*>(place);
    // A hint: without transparent huge pages for shared memory everything works with small ones.
    if (options.huge_page_bytes != 0) ::madvise(data, bytes, MADV_HUGEPAGE);

    Mapping mapping;
    mapping.data_ = data;
    mapping.bytes_ = bytes;
    // No hint: the caller counts on it.
    if (!options.is_inherited && ::madvise(data, bytes, MADV_DONTFORK) != 0) {
        return error_from_errno(errno, "map arena: keep it from children");
    }
    return mapping;
}

Result<Mapping> Mapping::own(Bytes bytes) {
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return error_from_errno(errno, "map memory");
    // Hints, both: without them it takes longer, here and in fork().
    ::madvise(data, bytes, MADV_HUGEPAGE);
    ::madvise(data, bytes, MADV_DONTFORK);
    Mapping mapping;
    mapping.data_ = static_cast<std::byte*>(data);
    mapping.bytes_ = bytes;
    return mapping;
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
    if (this != &other) {
        reset();
        data_ = std::exchange(other.data_, nullptr);
        bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
}

Result<void> Mapping::replace(const Fd& fd) {
    FABRIC_TRY_VOID(check_length(fd, 0, bytes_));
    void* const data =
        ::mmap(data_, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd.get(), 0);
    if (data == MAP_FAILED) return error_from_errno(errno, "replace mapping");
    return {};
}

void Mapping::reset() noexcept {
    if (data_ != nullptr) ::munmap(data_, bytes_);
    data_ = nullptr;
    bytes_ = 0;
}

}  // namespace fabricshm
