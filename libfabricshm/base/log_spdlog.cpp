#include "libfabricshm/base/log_spdlog.hpp"

#include <fcntl.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>

#include "libfabricshm/base/log.hpp"

namespace fabricshm {

namespace {

constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                 spdlog::level::warn, spdlog::level::err,
                                                 spdlog::level::off};

std::shared_ptr<spdlog::logger> g_logger;  // replaced as a whole by reopen_spdlog()
std::string g_path;

void write_line(LogLevel level, const char* line) {
    const auto logger = std::atomic_load(&g_logger);
    // The "{}" keeps braces in the line from being read as a format.
    if (logger != nullptr) logger->log(kLevels[static_cast<int>(level)], "{}", line);
}

/// Priorities of sd-daemon(3), by our levels.
void write_line_for_journal(LogLevel level, const char* line) {
    constexpr const char* kPriorities[] = {"<7>", "<6>", "<4>", "<3>", "<0>"};
    const auto logger = std::atomic_load(&g_logger);
    const int index = static_cast<int>(level);
    if (logger != nullptr) logger->log(kLevels[index], "{}{}", kPriorities[index], line);
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

Result<void> install_spdlog(const std::string& path) {
    FABRIC_TRY(auto logger, make_logger(path));
    const bool journal = path.empty() && std::getenv("JOURNAL_STREAM") != nullptr;
    logger->set_level(spdlog::level::trace);  // base/log.hpp has dropped what is not wanted
    logger->set_pattern(journal ? "%v" : "%Y-%m-%dT%H:%M:%S.%e%z %l: %v");
    logger->flush_on(spdlog::level::trace);  // a line that is lost in a crash is the one needed
    g_path = path;
    std::atomic_store(&g_logger, std::move(logger));
    set_log_sink(journal ? write_line_for_journal : write_line);
    return {};
}

Result<void> reopen_spdlog() {
    if (g_path.empty()) return {};
    return install_spdlog(std::string(g_path));
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
