// The simulated GPU behind the mock driver: memory and time, shared by all processes of a test.
//
// $FABRIC_MOCK_GPU names a file that all map. What the mock has handed out is counted there apart
// from anything that the shim counts, so that a test can ask the device itself whether a quota was
// ever passed.

#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace mock_gpu {

inline constexpr int kProcesses = 256;
inline constexpr std::uint64_t kEndless = std::uint64_t{1} << 60;  // capacity: nothing is counted

struct ProcessUse {
    std::atomic<std::uint64_t> pid;
    std::atomic<std::uint64_t> used;     // bytes
    std::atomic<std::uint64_t> busy_ns;  // of kernels
    std::atomic<std::uint64_t> launches;
    std::atomic<std::uint64_t> seen_busy_ns;  // at the last sample of NVML
};

struct Device {
    std::uint64_t capacity;
    std::uint64_t context_bytes;           // that a context takes
    std::uint64_t nanoseconds_per_thread;  // of a kernel, times 1000
    std::atomic<std::uint64_t> peak;       // of all processes together
    std::atomic<std::uint64_t> busy_until_ns;
    std::atomic<std::uint64_t> sampled_ns;
    ProcessUse processes[kProcesses];
};

/// Makes the file of a GPU. By the test, before any process uses it.
bool make_device(const std::string& path, std::uint64_t capacity, std::uint64_t context_bytes = 0,
                 std::uint64_t picoseconds_per_thread = 1000);

/// Maps a GPU's file; nullptr when there is none. Stays mapped.
Device* open_device(const std::string& path);

/// The GPU of this process, of $FABRIC_MOCK_GPU; ends the process when there is none.
Device& device();

/// Takes and gives back memory of the GPU for this process. False: the GPU is full.
bool take(std::uint64_t bytes);
void give(std::uint64_t bytes);

/// What live processes hold together.
std::uint64_t used_by_all(Device& device);
std::uint64_t used_by_me();

/// Runs a kernel: the GPU's time moves on, and a process that runs too far ahead of it waits.
void run(std::uint64_t threads);

std::uint64_t now_ns();

/// $FABRIC_MOCK_HOLD names a folder in which a test may have put a file `point`. It is renamed to
/// `point`.here, and the call goes on when the test has removed that; a minute later at the latest.
void hold_at(const char* point);

/// What an allocation takes of the device.
std::uint64_t taken_by(std::uint64_t bytes);

}  // namespace mock_gpu
