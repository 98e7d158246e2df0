// Symbols of loaded libraries, read from their own tables: the shim stands in for dlsym, so it
// can't ask dlsym where the C library's is.

#pragma once

#include <string>
#include <vector>

namespace fabricshm::cuda {

/// Where the C library has `name`; nullptr when it has none. Any thread, also before main().
void* libc_symbol(const char* name) noexcept;

/// Names of the functions that the library behind a handle of dlopen exports.
std::vector<std::string> exported_names(void* handle);

}  // namespace fabricshm::cuda
