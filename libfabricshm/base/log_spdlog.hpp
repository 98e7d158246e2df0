// The daemon's log: lines of base/log.hpp go through spdlog to standard error or a file. A library
// of its own (fabric_log_spdlog), so that libfabricshm.so links none of it.

#pragma once

#include <string>

#include "libfabricshm/base/result.hpp"

namespace fabricshm {

/// Installs the sink: `path` is appended to, "" is standard error. Under systemd's journal (which
/// sets JOURNAL_STREAM) lines carry its priority prefix instead of a time of their own.
/// kSystem when the file cannot be opened. Call before other threads log.
Result<void> install_spdlog(const std::string& path);

/// Opens the file again after it was renamed (log rotation). Keeps the old one when that fails.
/// Thread-safe. Nothing to do for standard error.
Result<void> reopen_spdlog();

/// "debug", "info", "warning", "error" or "off", as set_log_level(); kInvalid for anything else.
Result<void> set_log_level_by_name(const std::string& name);

}  // namespace fabricshm
