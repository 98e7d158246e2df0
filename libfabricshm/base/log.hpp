// Logging for library and daemon: one line per event, to a sink that the program chooses.
// The library writes to stderr and keeps quiet below `warning`; fabricd installs spdlog
// (log_spdlog.hpp), so that libfabricshm.so itself links no logging library.

#pragma once

#include <string>

namespace fabricshm {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kOff = 4 };

using LogSink = void (*)(LogLevel level, const char* line);

/// Replaces the sink. Call before other threads run; nullptr restores the one for stderr.
void set_log_sink(LogSink sink) noexcept;

/// Lines below `level` are dropped before they are formatted. The default is kWarning, or what
/// FABRIC_LOG says (debug, info, warning, error, off). Thread-safe.
void set_log_level(LogLevel level) noexcept;
LogLevel log_level() noexcept;

/// printf-like. Never fails, truncates at 1 KiB, thread-safe, not async-signal-safe.
void log(LogLevel level, const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));

}  // namespace fabricshm
