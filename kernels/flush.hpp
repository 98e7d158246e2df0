// Cache maintenance: lines written back to memory, lines dropped from the caches.

#pragma once

#include <cstddef>

namespace kernels {

/// How lines leave the caches. What a processor lacks is found out at run time.
enum class FlushMethod { kClwb, kClflushopt, kClflush, kNonTemporal };

/// Whether this processor has the instructions. Off x86 none.
bool has_flush(FlushMethod method) noexcept;

/// Writes every line of the range back, and orders it before all later stores of this thread. The
/// lines may stay cached (kClwb) or not. The caller must be the only one that stores into the
/// range.
void write_back(FlushMethod method, const void* data, std::size_t bytes) noexcept;

/// Drops every line of the range, what is dirty in it being written back first, before any later
/// load of this thread.
void drop(FlushMethod method, const void* data, std::size_t bytes) noexcept;

}  // namespace kernels
