// Mock driver: device memory that can be read and written here, for HostState::real_memory, and
// opened by other processes that have a mock of their own, by the rules of a real driver: not by
// the process that it belongs to, and once in a context. (Drivers since CUDA 12 count how often
// instead; older ones answer as here.)

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "tests/support/mock_gpu/driver.hpp"
#include "tests/support/mock_gpu/host.hpp"

using namespace mock_gpu;

namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

constexpr Status kMapFailed = 205;
constexpr Status kAlreadyMapped = 208;
constexpr int kPointerMemoryType = 2;
constexpr int kPointerBufferId = 7;
constexpr int kPointerHasIpcHandle = 10;

// What is in a handle: where the memory's file is found, and which one it has to be. A process
// that ended, or freed its memory, has no such file any more.
struct Handle64 {
    std::uint64_t magic;
    std::uint64_t pid;
    std::uint64_t fd;
    std::uint64_t bytes;
    std::uint64_t file;  // its number
};
constexpr std::uint64_t kMagic = 0x6d6f636b69706331;

struct Real {
    std::size_t bytes = 0;
    int fd = -1;             // of memory that belongs to this process
    std::uint64_t file = 0;  // of memory that is opened
    std::uint64_t id = 0;
    int device = 0;
    bool has_handle = true;
};

std::map<Pointer, Real>& all() {
    static auto& made = *new std::map<Pointer, Real>;
    return made;
}

std::map<Pointer, Real>::iterator holder_of(Pointer pointer) {
    auto next = all().upper_bound(pointer);
    if (next == all().begin()) return all().end();
    --next;
    return pointer - next->first < next->second.bytes ? next : all().end();
}

void* map_file(int fd, std::size_t bytes) {
    return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

std::uint64_t number_of(int fd, std::size_t* bytes) {
    struct stat file {};
    if (::fstat(fd, &file) != 0) return 0;
    *bytes = static_cast<std::size_t>(file.st_size);
    return file.st_ino;
}

std::uint64_t next_id() {
    static std::uint64_t last = 0;
    return ++last;
}

}  // namespace

namespace mock_gpu {

Status take_real(Pointer* out, std::size_t bytes) {
    if (!may_do_unsafe()) return kCaptureUnsupported;
    const Lock lock(driver().mutex);
    if (current() == nullptr) return kInvalidContext;
    if (bytes == 0) return kInvalidValue;
    const int fd = ::memfd_create("mock device memory", MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return kOutOfMemory;
    void* made = map_file(fd, bytes);
    if (made == MAP_FAILED) return ::close(fd), kOutOfMemory;
    *out = reinterpret_cast<Pointer>(made);
    const HostState& host = *mock_gpu_host();
    all()[*out] = {bytes, fd, 0, next_id(), host.memory_device, host.has_ipc_handles};
    mock_gpu_host()->pinned[*out] = bytes;
    return kSuccess;
}

bool give_real(Pointer pointer) {
    const Lock lock(driver().mutex);
    const auto found = all().find(pointer);
    if (found == all().end() || found->second.fd < 0) return false;
    ::munmap(reinterpret_cast<void*>(pointer), found->second.bytes);
    ::close(found->second.fd);
    all().erase(found);
    mock_gpu_host()->pinned.erase(pointer);
    return true;
}

void fill_real(Pointer pointer, unsigned char value, std::size_t bytes) {
    const Lock lock(driver().mutex);
    const auto found = all().find(pointer);
    if (found != all().end() && bytes <= found->second.bytes) {
        std::memset(reinterpret_cast<void*>(pointer), value, bytes);
    }
}

std::optional<Status> real_range(Pointer* base, std::size_t* bytes, Pointer pointer) {
    const Lock lock(driver().mutex);
    const auto found = holder_of(pointer);
    if (found == all().end()) return std::nullopt;
    if (base != nullptr) *base = found->first;
    if (bytes != nullptr) *bytes = found->second.bytes;
    return kSuccess;
}

std::optional<Status> real_attribute(void* out, int attribute, Pointer pointer) {
    Pointer host = 0;
    const auto found = holder_of(pointer);
    const bool is_real = found != all().end();
    if (attribute == kPointerMemoryType && (is_real || reaches_host(pointer, host))) {
        *static_cast<unsigned int*>(out) = is_real ? 2 : 1;
        return kSuccess;
    }
    if (!is_real) return std::nullopt;
    const Real& memory = found->second;
    switch (attribute) {
        case kPointerDevicePointer:
            *static_cast<Pointer*>(out) = pointer;
            return kSuccess;
        case kPointerBufferId:
            *static_cast<std::uint64_t*>(out) = memory.id;
            return kSuccess;
        case kPointerDevice:
            *static_cast<int*>(out) = memory.device;
            return kSuccess;
        case kPointerHasIpcHandle:
            *static_cast<int*>(out) = memory.has_handle && memory.fd >= 0 ? 1 : 0;
            return kSuccess;
        default:
            return kInvalidValue;
    }
}

std::optional<Status> real_handle(IpcHandle* out, Pointer pointer) {
    const Lock lock(driver().mutex);
    const auto found = holder_of(pointer);
    if (found == all().end()) return std::nullopt;
    if (!found->second.has_handle || found->second.fd < 0) return kInvalidValue;
    std::size_t bytes = 0;
    const std::uint64_t file = number_of(found->second.fd, &bytes);
    const Handle64 handle{kMagic, static_cast<std::uint64_t>(::getpid()),
                          static_cast<std::uint64_t>(found->second.fd), bytes, file};
    std::memset(out, 0, sizeof *out);
    std::memcpy(out, &handle, sizeof handle);
    return kSuccess;
}

std::optional<Status> open_real(Pointer* out, const IpcHandle& given) {
    const Lock lock(driver().mutex);
    HostState& host = *mock_gpu_host();
    Handle64 handle;
    std::memcpy(&handle, &given, sizeof handle);
    if (handle.magic != kMagic) {
        if (host.real_memory) return kInvalidValue;
        return std::nullopt;
    }
    if (current() == nullptr) return kInvalidContext;
    if (host.open_status != kSuccess) return host.open_status;
    if (handle.pid == static_cast<std::uint64_t>(::getpid())) return kInvalidContext;
    for (const auto& [pointer, memory] : all()) {
        if (memory.fd < 0 && memory.file == handle.file) return kAlreadyMapped;
    }
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%llu/fd/%llu",
                  static_cast<unsigned long long>(handle.pid),
                  static_cast<unsigned long long>(handle.fd));
    const int fd = ::open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return kInvalidValue;
    std::size_t bytes = 0;
    const std::uint64_t file = number_of(fd, &bytes);
    void* const mapped =
        file == handle.file && bytes == handle.bytes ? map_file(fd, bytes) : MAP_FAILED;
    ::close(fd);
    if (mapped == MAP_FAILED) return kMapFailed;
    *out = reinterpret_cast<Pointer>(mapped);
    all()[*out] = {bytes, -1, file, next_id(), host.memory_device, false};
    host.opened[*out] = bytes;
    ++host.opens;
    return kSuccess;
}

std::optional<Status> close_real(Pointer pointer) {
    const Lock lock(driver().mutex);
    const auto found = all().find(pointer);
    if (found == all().end()) return std::nullopt;
    if (found->second.fd >= 0) return kInvalidValue;
    ::munmap(reinterpret_cast<void*>(pointer), found->second.bytes);
    all().erase(found);
    mock_gpu_host()->opened.erase(pointer);
    return kSuccess;
}

}  // namespace mock_gpu
