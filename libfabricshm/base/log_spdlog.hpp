// The daemon's log: lines of base/log.hpp go through spdlog to standard error or a file. A library
// of its own (fabric_log_spdlog), so that libfabricshm.so links none of it.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/result.hpp"

namespace fabricshm {

/// kJson: one object a line, with time, level and text.
enum class LogFormat { kText, kJson };

/// Installs the sink: `path` is appended to, "" is standard error. Under systemd's journal (which
/// sets JOURNAL_STREAM) lines carry its priority prefix, and as text no time of their own.
/// kSystem when the file cannot be opened. Call before other threads log.
Result<void> install_spdlog(const std::string& path, LogFormat format = LogFormat::kText);

/// A line that was logged, by its number from 1 on.
struct LogEvent {
    std::uint64_t number = 0;
    std::int64_t unix_ms = 0;
    LogLevel level = LogLevel::kInfo;
    std::string text;
};

/// The newest `most` of the last 1,000 lines at kInfo and above that went through the sink, the
/// oldest first. Thread-safe.
std::vector<LogEvent> recent_events(std::size_t most);

/// Opens the file again after it was renamed (log rotation). Keeps the old one when that fails.
/// Thread-safe. Nothing to do for standard error.
Result<void> reopen_spdlog();

/// "debug", "info", "warning", "error" or "off", as set_log_level(); kInvalid for anything else.
Result<void> set_log_level_by_name(const std::string& name);

}  // namespace fabricshm
