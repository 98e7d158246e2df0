#include "libfabricshm/base/log_spdlog.hpp"

#include <fcntl.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>

namespace fabricshm {

namespace {

constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                 spdlog::level::warn, spdlog::level::err,
                                                 spdlog::level::off};

std::shared_ptr<spdlog::logger> g_logger;  // replaced as a whole by reopen_spdlog()
std::string g_path;
std::atomic<LogFormat> g_format{LogFormat::kText};

// Of what happens and not of how: lines for debugging would push the rest out.
constexpr std::size_t kMaxEvents = 1000;
std::mutex g_events_mutex;
std::deque<LogEvent> g_events;
std::uint64_t g_last_event = 0;

void remember(LogLevel level, const char* line) {
    if (level < LogLevel::kInfo) return;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const std::int64_t unix_ms = now / std::chrono::milliseconds(1);
    const std::lock_guard lock(g_events_mutex);
    if (g_events.size() == kMaxEvents) g_events.pop_front();
    g_events.push_back({++g_last_event, unix_ms, level, line});
}

/// As a JSON string has it. Bytes above ASCII go through as they are: UTF-8 is right there, and
/// names of clients are ASCII.
std::string escaped(const char* line) {
    std::string out;
    for (; *line != '\0'; ++line) {
        const auto c = static_cast<unsigned char>(*line);
        char code[8];
        if (c == '"' || c == '\\') {
            out += '\\';
            out += *line;
        } else if (c < 0x20 || c == 0x7f) {
            std::snprintf(code, sizeof code, "\\u%04x", c);
            out += code;
        } else {
            out += *line;
        }
    }
    return out;
}

/// As text: what others wrote begins no line of its own, and commands no terminal.
std::string on_one_line(const char* line) {
    std::string out(line);
    std::replace_if(
        out.begin(), out.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
    return out;
}

void write_line(LogLevel level, const char* line) {
    remember(level, line);
    const auto logger = std::atomic_load(&g_logger);
    if (logger == nullptr) return;
    // The "{}" keeps braces in the line from being read as a format.
    const auto known = kLevels[static_cast<int>(level)];
    if (g_format == LogFormat::kText) return logger->log(known, "{}", on_one_line(line));
    logger->log(known, "{}", escaped(line));
}

/// Priorities of sd-daemon(3), by our levels.
void write_line_for_journal(LogLevel level, const char* line) {
    constexpr const char* kPriorities[] = {"<7>", "<6>", "<4>", "<3>", "<0>"};
    remember(level, line);
    const auto logger = std::atomic_load(&g_logger);
    const int index = static_cast<int>(level);
    if (logger == nullptr) return;
    if (g_format == LogFormat::kText) {
        return logger->log(kLevels[index], "{}{}", kPriorities[index], on_one_line(line));
    }
    // The prefix stands before the object, where the journal takes it away.
    constexpr const char* kNames[] = {"debug", "info", "warning", "error", "off"};
    logger->log(kLevels[index], "{}{{\"level\":\"{}\",\"text\":\"{}\"}}", kPriorities[index],
                kNames[index], escaped(line));
}

Result<std::shared_ptr<spdlog::logger>> make_logger(const std::string& path) {
    if (path.empty()) {
        return std::make_shared<spdlog::logger>("fabricd",
                                                std::make_shared<spdlog::sinks::stderr_sink_mt>());
    }
    // spdlog would throw; opening it first gives the errno.
    const int probe = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    if (probe < 0) return error_from_errno(errno, "open log file");
    ::close(probe);
    try {
        return std::make_shared<spdlog::logger>(
            "fabricd", std::make_shared<spdlog::sinks::basic_file_sink_mt>(path));
    } catch (const spdlog::spdlog_ex&) {
        return Error{Errc::kSystem, 0, "open log file"};
    }
}

}  // namespace

Result<void> install_spdlog(const std::string& path, LogFormat format) {
    FABRIC_TRY(auto logger, make_logger(path));
    const bool journal = path.empty() && std::getenv("JOURNAL_STREAM") != nullptr;
    logger->set_level(spdlog::level::trace);  // base/log.hpp has dropped what is not wanted
    const char* pattern =
        format == LogFormat::kJson
            ? "{\"time\":\"%Y-%m-%dT%H:%M:%S.%e%z\",\"level\":\"%l\",\"text\":\"%v\"}"
            : "%Y-%m-%dT%H:%M:%S.%e%z %l: %v";
    logger->set_pattern(journal ? "%v" : pattern);
    logger->flush_on(spdlog::level::trace);  // a line that is lost in a crash is the one needed
    g_path = path;
    g_format = format;
    std::atomic_store(&g_logger, std::move(logger));
    set_log_sink(journal ? write_line_for_journal : write_line);
    return {};
}

Result<void> reopen_spdlog() {
    if (g_path.empty()) return {};
    return install_spdlog(std::string(g_path), g_format);
}

std::vector<LogEvent> recent_events(std::size_t most) {
    const std::lock_guard lock(g_events_mutex);
    const std::size_t count = std::min(most, g_events.size());
    return {g_events.end() - static_cast<std::ptrdiff_t>(count), g_events.end()};
}

Result<void> set_log_level_by_name(const std::string& name) {
    int index = 0;
    for (const char* known : {"debug", "info", "warning", "error", "off"}) {
        if (name == known) {
            set_log_level(static_cast<LogLevel>(index));
            return {};
        }
        ++index;
    }
    return Error{Errc::kInvalid, 0, "set log level"};
}

}  // namespace fabricshm
