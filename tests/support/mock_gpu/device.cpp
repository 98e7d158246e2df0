#include "tests/support/mock_gpu/device.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace mock_gpu {

namespace {

constexpr std::uint64_t kAheadNs = 50'000'000;

// A lock that the kernel takes from the dead.
class FileLock {
  public:
    FileLock() { ::flock(descriptor(), LOCK_EX); }
    ~FileLock() { ::flock(descriptor(), LOCK_UN); }

  private:
    // Of each process its own: a forked child that shared it would share the lock.
    static int descriptor() {
        static int fd = -1;
        static pid_t owner = 0;
        if (owner != ::getpid()) {
            fd = ::open(std::getenv("FABRIC_MOCK_GPU"), O_RDWR | O_CLOEXEC);
            owner = ::getpid();
        }
        return fd;
    }
};

bool is_dead(std::uint64_t pid) {
    char path[40];
    std::snprintf(path, sizeof path, "/proc/%llu/stat", static_cast<unsigned long long>(pid));
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return true;
    char line[512] = "";
    const auto length = ::read(fd, line, sizeof line - 1);
    ::close(fd);
    const char* bracket = length > 0 ? std::strrchr(line, ')') : nullptr;
    return bracket == nullptr || bracket[2] == 'Z' || bracket[2] == 'X';
}

// The number that NVML has of this process: in a pid namespace, what it was given from outside.
std::uint64_t own_number() {
    const char* told = std::getenv("FABRIC_MOCK_PID");
    return told != nullptr ? std::strtoull(told, nullptr, 10)
                           : static_cast<std::uint64_t>(::getpid());
}

// A driver frees what the dead held. From inside a pid namespace no process is seen to be dead.
void bury_dead(Device& gpu) {
    if (std::getenv("FABRIC_MOCK_PID") != nullptr) return;
    for (ProcessUse& process : gpu.processes) {
        const auto pid = process.pid.load();
        if (pid == 0 || pid == own_number() || !is_dead(pid)) continue;
        process.used = 0;
        process.pid = 0;
    }
}

std::uint64_t sum_of(Device& gpu) {
    std::uint64_t sum = 0;
    for (ProcessUse& process : gpu.processes) {
        if (process.pid.load() != 0) sum += process.used.load();
    }
    return sum;
}

ProcessUse& mine() {
    static ProcessUse* own = nullptr;
    static pid_t owner = 0;
    if (own != nullptr && owner == ::getpid()) return *own;
    const FileLock lock;
    bury_dead(device());
    for (ProcessUse& process : device().processes) {
        if (process.pid.load() != 0) continue;
        process.used = process.busy_ns = process.launches = process.seen_busy_ns = 0;
        process.pid = own_number();
        owner = ::getpid();
        own = &process;
        return process;
    }
    std::fprintf(stderr, "mock GPU: too many processes\n");
    std::abort();
}

}  // namespace

std::uint64_t now_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(now.tv_nsec);
}

std::uint64_t taken_by(std::uint64_t bytes) {
    const std::uint64_t unit = bytes >= (1U << 20) ? 2U << 20 : 512;
    return (bytes + unit - 1) / unit * unit;
}

bool make_device(const std::string& path, std::uint64_t capacity, std::uint64_t context_bytes,
                 std::uint64_t picoseconds_per_thread) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || ::ftruncate(fd, sizeof(Device)) != 0) return false;
    ::close(fd);
    Device* made = open_device(path);
    if (made == nullptr) return false;
    made->capacity = capacity;
    made->context_bytes = context_bytes;
    made->nanoseconds_per_thread = picoseconds_per_thread;
    return true;
}

Device* open_device(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return nullptr;
    void* data = ::mmap(nullptr, sizeof(Device), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    return data == MAP_FAILED ? nullptr : static_cast<Device*>(data);
}

Device& device() {
    static Device* const opened = [] {
        const char* path = std::getenv("FABRIC_MOCK_GPU");
        Device* found = path != nullptr ? open_device(path) : nullptr;
        if (found == nullptr) {
            std::fprintf(stderr, "mock GPU: FABRIC_MOCK_GPU names no device\n");
            std::abort();
        }
        return found;
    }();
    return *opened;
}

// A GPU that never fills up does not count: for measurements of what stands in front of it.
bool is_endless(const Device& gpu) {
    return gpu.capacity == kEndless;
}

bool take(std::uint64_t bytes) {
    ProcessUse& own = mine();
    Device& gpu = device();
    if (is_endless(gpu)) return true;
    const FileLock lock;
    std::uint64_t sum = sum_of(gpu);
    if (sum + bytes > std::min(gpu.capacity, gpu.peak.load())) {
        bury_dead(gpu);
        sum = sum_of(gpu);
    }
    if (bytes > gpu.capacity || sum > gpu.capacity - bytes) return false;
    own.used += bytes;
    gpu.peak = std::max(gpu.peak.load(), sum + bytes);
    return true;
}

void give(std::uint64_t bytes) {
    ProcessUse& own = mine();
    if (is_endless(device())) return;
    const FileLock lock;
    own.used -= bytes;
}

std::uint64_t used_by_all(Device& gpu) {
    std::uint64_t sum = 0;
    for (ProcessUse& process : gpu.processes) {
        const auto pid = process.pid.load();
        if (pid != 0 && !is_dead(pid)) sum += process.used.load();
    }
    return sum;
}

std::uint64_t used_by_me() {
    return mine().used.load();
}

void run(std::uint64_t threads) {
    Device& gpu = device();
    ProcessUse& own = mine();
    const std::uint64_t length = threads * gpu.nanoseconds_per_thread / 1000;
    std::uint64_t until = gpu.busy_until_ns.load();
    std::uint64_t end = 0;
    do {
        end = std::max(until, now_ns()) + length;
    } while (!gpu.busy_until_ns.compare_exchange_weak(until, end));
    own.busy_ns += length;
    ++own.launches;
    // As a real queue of launches, which holds so many and no more.
    for (std::uint64_t now = now_ns(); end > now + kAheadNs; now = now_ns()) {
        const auto left =
            static_cast<long>(std::min<std::uint64_t>(end - now - kAheadNs, 5'000'000));
        const timespec length_of_nap{0, left};
        ::nanosleep(&length_of_nap, nullptr);
    }
}

void hold_at(const char* point) {
    static const char* const folder = std::getenv("FABRIC_MOCK_HOLD");
    if (folder == nullptr) return;
    const std::string file = std::string(folder) + "/" + point;
    const std::string here = file + ".here";
    if (std::rename(file.c_str(), here.c_str()) != 0) return;
    const timespec nap{0, 1'000'000};
    for (int i = 0; i < 60'000 && ::access(here.c_str(), F_OK) == 0; ++i)
        ::nanosleep(&nap, nullptr);
}

}  // namespace mock_gpu
