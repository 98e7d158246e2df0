#include "kernels/flush.hpp"

#include <cstdint>

namespace kernels {

#if defined(__x86_64__)

namespace {

constexpr std::uintptr_t kLine = 64;

// Assembler rather than intrinsics: those need the instruction set switched on for the whole
// function, and has_flush() has asked at run time already. "memory": what was stored before must
// really be stored, and what is loaded after must not have been loaded before.
void clwb(char* line) noexcept {
    asm volatile("clwb %0" : "+m"(*line)::"memory");
}
void clflushopt(char* line) noexcept {
    asm volatile("clflushopt %0" : "+m"(*line)::"memory");
}
void clflush(char* line) noexcept {
    asm volatile("clflush %0" : "+m"(*line)::"memory");
}

// The line again, by stores that go past the caches: they take the cached copy along and leave
// none.
void rewrite(char* line) noexcept {
    auto* words = reinterpret_cast<long long*>(line);
    for (int i = 0; i < 8; ++i) {
        const long long word = __atomic_load_n(words + i, __ATOMIC_RELAXED);
        asm volatile("movnti %1, %0" : "=m"(words[i]) : "r"(word) : "memory");
    }
}

// `whole`: the line lies in the range with all of its bytes. Lines at the ends may have other
// owners.
template <typename Step>
void for_lines(const void* data, std::size_t bytes, const Step& step) noexcept {
    const auto start = reinterpret_cast<std::uintptr_t>(data);
    for (auto line = start / kLine * kLine; line < start + bytes; line += kLine) {
        step(reinterpret_cast<char*>(line), line >= start && line + kLine <= start + bytes);
    }
}

}  // namespace

bool has_flush(FlushMethod method) noexcept {
    // Every x86-64 has clflush and movnti. Leaf 7 reports the others: EBX bits 23 and 24.
    if (method == FlushMethod::kClflush || method == FlushMethod::kNonTemporal) return true;
    unsigned eax = 7;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    asm volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    const bool has_clflushopt = (ebx >> 23 & 1) != 0;
    const bool has_clwb = (ebx >> 24 & 1) != 0;
    // drop() of kClwb needs clflushopt, since clwb may keep the line.
    return has_clflushopt && (method == FlushMethod::kClflushopt || has_clwb);
}

// No other process can be notified of the bytes before the fence.
void write_back(FlushMethod method, const void* data, std::size_t bytes) noexcept {
    for_lines(data, bytes, [&](char* line, bool whole) {
        switch (method) {
            case FlushMethod::kClwb:
                return clwb(line);
            case FlushMethod::kClflushopt:
                return clflushopt(line);
            case FlushMethod::kClflush:
                return clflush(line);
            case FlushMethod::kNonTemporal:
                // Next to the range another thread may be storing: a partial line is not rewritten.
                return whole ? rewrite(line) : clflush(line);
        }
    });
    // clwb, clflushopt and movnti are ordered by a store fence only: without it the flag that is
    // stored next could reach memory first. After clflush it costs little and says the same.
    asm volatile("sfence" ::: "memory");
}

// clwb may keep the line, so it can't drop one; and dropping what was written here loses nothing,
// since a flush writes back first.
void drop(FlushMethod method, const void* data, std::size_t bytes) noexcept {
    const bool optimized = method == FlushMethod::kClwb || method == FlushMethod::kClflushopt;
    for_lines(data, bytes, [&](char* line, bool) { optimized ? clflushopt(line) : clflush(line); });
    // A full fence: neither lfence nor sfence keeps a later load from being served before the flush
    // is done. It also puts this thread's earlier publication before the load.
    asm volatile("mfence" ::: "memory");
}

#else

bool has_flush(FlushMethod) noexcept {
    return false;
}
void write_back(FlushMethod, const void*, std::size_t) noexcept {}
void drop(FlushMethod, const void*, std::size_t) noexcept {}

#endif

}  // namespace kernels
