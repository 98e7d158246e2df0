#include "fabricd/data/serve/write_log.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <map>

namespace fabricd {

using fabricshm::Fd;

namespace {

constexpr std::size_t kMaxLogText = 64 << 20;
constexpr std::size_t kTokenDigits = 16;

// Lines: "begin TOKEN AT PATH", "answered TOKEN", "end TOKEN"; at and path with %NN for what is no
// plain letter, so that a line is one line.
std::string escaped(const std::string& text) {
    std::string line;
    for (const char letter : text) {
        const auto byte = static_cast<unsigned char>(letter);
        if (byte > 0x20 && byte < 0x7f && byte != '%') {
            line += letter;
            continue;
        }
        char digits[8];
        std::snprintf(digits, sizeof digits, "%%%02x", byte);
        line += digits;
    }
    return line;
}

bool unescape(std::string_view line, std::string& text) {
    text.clear();
    for (std::size_t at = 0; at < line.size(); ++at) {
        if (line[at] != '%') {
            text += line[at];
            continue;
        }
        const std::string_view digits = line.substr(at + 1, 2);
        unsigned byte = 0;
        const auto* const end = digits.data() + digits.size();
        const auto parsed = std::from_chars(digits.data(), end, byte, 16);
        if (digits.size() != 2 || parsed.ec != std::errc() || parsed.ptr != end) return false;
        text += static_cast<char>(byte);
        at += 2;
    }
    return true;
}

std::string_view take_word(std::string_view& line) {
    const std::size_t end = std::min(line.find(' '), line.size());
    const std::string_view word = line.substr(0, end);
    line.remove_prefix(std::min(end + 1, line.size()));
    return word;
}

void take_line(std::string_view line, std::map<std::uint64_t, LoggedWrite>& writes) {
    const std::string_view what = take_word(line);
    const std::string_view digits = take_word(line);
    std::uint64_t token = 0;
    const auto* const end = digits.data() + digits.size();
    const auto parsed = std::from_chars(digits.data(), end, token, 16);
    if (digits.size() != kTokenDigits || parsed.ec != std::errc() || parsed.ptr != end) return;
    if (what == "end") writes.erase(token);
    if (what == "answered" && writes.contains(token)) writes[token].is_answered = true;
    if (what != "begin") return;
    LoggedWrite write;
    write.name.token = token;
    const std::string_view at = take_word(line);
    if (unescape(at, write.at) && unescape(line, write.name.path)) writes[token] = write;
}

std::string begin_line(const std::string& at, const WriteName& name) {
    return "begin " + token_text(name.token) + " " + escaped(at) + " " + escaped(name.path) + "\n";
}

std::string read_all(int file) {
    std::string text;
    char part[65536];
    for (ssize_t got; text.size() < kMaxLogText && (got = ::read(file, part, sizeof part)) > 0;) {
        text.append(part, static_cast<std::size_t>(got));
    }
    return text;
}

}  // namespace

std::vector<LoggedWrite> parse_write_log(std::string_view text) {
    std::map<std::uint64_t, LoggedWrite> open;
    // What has no end was not written whole.
    for (std::size_t end; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1)) {
        take_line(text.substr(0, end), open);
    }
    std::vector<LoggedWrite> writes;
    for (auto& [token, write] : open) writes.push_back(std::move(write));
    return writes;
}

Result<WriteLog> WriteLog::open(const std::string& path, std::vector<LoggedWrite>& writes) {
    if (const Fd old(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)); old) {
        struct stat status {};
        const bool is_file = ::fstat(old.get(), &status) == 0 && S_ISREG(status.st_mode);
        if (is_file) writes = parse_write_log(read_all(old.get()));
    }
    // The new one takes its place whole.
    const std::string next = path + ".new";
    WriteLog log;
    log.file_ = Fd(::open(next.c_str(),
                          O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!log.file_) return fabricshm::error_of_disk(errno, "make the log of writes");
    for (const LoggedWrite& write : writes) {
        FABRIC_TRY_VOID(log.begin(write.at, write.name));
        if (write.is_answered) FABRIC_TRY_VOID(log.answered(write.name.token));
    }
    if (::rename(next.c_str(), path.c_str()) != 0) {
        return fabricshm::error_of_disk(errno, "make the log of writes");
    }
    return log;
}

Result<void> WriteLog::write(const std::string& line) const {
    const ssize_t count = ::write(file_.get(), line.data(), line.size());
    if (count == static_cast<ssize_t>(line.size())) return {};
    return fabricshm::error_of_disk(count < 0 ? errno : ENOSPC, "write the log of writes");
}

Result<void> WriteLog::begin(const std::string& at, const WriteName& name) {
    return write(begin_line(at, name));
}

Result<void> WriteLog::answered(std::uint64_t token) {
    return write("answered " + token_text(token) + "\n");
}

void WriteLog::end(std::uint64_t token) noexcept {
    // Cleared once more otherwise, which does nothing.
    static_cast<void>(write("end " + token_text(token) + "\n").ok());
}

}  // namespace fabricd
