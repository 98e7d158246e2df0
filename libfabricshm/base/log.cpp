#include "libfabricshm/base/log.hpp"

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fabricshm {

namespace {

constexpr std::size_t kLineBytes = 1024;
constexpr const char* kNames[] = {"debug", "info", "warning", "error", "off"};

LogLevel level_from_environment() noexcept {
    const char* wanted = std::getenv("FABRIC_LOG");
    for (int i = 0; wanted != nullptr && i < 5; ++i) {
        if (std::strcmp(wanted, kNames[i]) == 0) return static_cast<LogLevel>(i);
    }
    return LogLevel::kWarning;
}

void write_to_stderr(LogLevel level, const char* line) {
    // Texts of others are in it: none of them begins a line of its own, or commands a terminal.
    char shown[kLineBytes];
    std::snprintf(shown, sizeof shown, "%s", line);
    std::replace_if(
        shown, shown + std::strlen(shown), [](unsigned char c) { return c < 0x20 || c == 0x7f; },
        '?');
    std::fprintf(stderr, "fabric: %s: %s\n", kNames[static_cast<int>(level)], shown);
}

// Relaxed is enough for both: a line more or less around the change is allowed.
std::atomic<LogSink> g_sink{write_to_stderr};
std::atomic<LogLevel> g_level{level_from_environment()};

}  // namespace

void set_log_sink(LogSink sink) noexcept {
    g_sink.store(sink != nullptr ? sink : write_to_stderr, std::memory_order_relaxed);
}

void set_log_level(LogLevel level) noexcept {
    g_level.store(level, std::memory_order_relaxed);
}

LogLevel log_level() noexcept {
    return g_level.load(std::memory_order_relaxed);
}

void log(LogLevel level, const char* format, ...) noexcept {
    if (level < log_level()) return;
    char line[kLineBytes];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    g_sink.load(std::memory_order_relaxed)(level, line);
}

}  // namespace fabricshm
