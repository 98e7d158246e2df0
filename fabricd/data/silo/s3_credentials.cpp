#include "fabricd/data/silo/s3_credentials.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "fabricd/data/silo/silo.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;

namespace {

constexpr std::size_t kFileBytes = 16 * 1024;
constexpr const char* kStep = "read credentials";

std::string_view without_blanks(std::string_view text) noexcept {
    constexpr std::string_view kBlanks = " \t\r";
    const std::size_t begin = text.find_first_not_of(kBlanks);
    if (begin == text.npos) return {};
    return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// They go into headers.
bool is_key(std::string_view value) noexcept {
    return !value.empty() && std::all_of(value.begin(), value.end(), [](char letter) {
        return letter > 0x20 && letter < 0x7f;
    });
}

Error wrong_line(int number, const char* what) {
    return explain({Errc::kInvalid, 0, kStep}, "line %d of the credentials: %s", number, what);
}

Error wrong_file(Errc code, const std::string& path, const char* what) {
    return explain({code, 0, kStep}, "%s: %s", printable(path).c_str(), what);
}

Result<void> check_file(const struct stat& status, const std::string& path) {
    if (!S_ISREG(status.st_mode)) return wrong_file(Errc::kInvalid, path, "is no file");
    if (status.st_uid != ::geteuid()) {
        return wrong_file(Errc::kDenied, path, "belongs to another user");
    }
    if ((status.st_mode & 077) != 0) {
        return wrong_file(Errc::kDenied, path, "may be read or written by other users: chmod 0600");
    }
    return {};
}

}  // namespace

Result<S3Credentials> parse_s3_credentials(std::string_view text) {
    S3Credentials credentials;
    const struct {
        std::string_view name;
        std::string& value;
    } known[] = {{"aws_access_key_id", credentials.access_key},
                 {"aws_secret_access_key", credentials.secret},
                 {"aws_session_token", credentials.session_token}};
    int sections = 0;
    for (int number = 1; !text.empty(); ++number) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        const std::string_view line = without_blanks(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
        if (line.empty() || line.front() == '#') continue;
        if (line.front() == '[' && line.back() == ']') {
            if (++sections > 1) return wrong_line(number, "a second section");
            continue;
        }
        const std::size_t equals = std::min(line.find('='), line.size());
        const std::string_view name = without_blanks(line.substr(0, equals));
        const auto* const field = std::find_if(std::begin(known), std::end(known),
                                               [&](const auto& row) { return row.name == name; });
        if (equals == line.size() || field == std::end(known)) {
            return wrong_line(number,
                              "none of aws_access_key_id, aws_secret_access_key, "
                              "aws_session_token = VALUE");
        }
        const std::string_view value = without_blanks(line.substr(equals + 1));
        if (!is_key(value)) return wrong_line(number, "no value that can be a key");
        if (!field->value.empty()) return wrong_line(number, "a value that was given before");
        field->value = value;
    }
    if (credentials.access_key.empty() || credentials.secret.empty()) {
        return explain(
            {Errc::kInvalid, 0, kStep}, "the credentials lack %s",
            credentials.access_key.empty() ? "aws_access_key_id" : "aws_secret_access_key");
    }
    return credentials;
}

Result<S3Credentials> read_s3_credentials(const std::string& path) {
    const fabricshm::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (!file) {
        const Errc code = errno == ENOENT ? Errc::kNotFound : Errc::kDenied;
        return wrong_file(code, path, errno == ENOENT ? "is not there" : "can't be read");
    }
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) return Error{Errc::kSystem, errno, kStep};
    FABRIC_TRY_VOID(check_file(status, path));
    std::string text(kFileBytes, '\0');
    const ssize_t got = ::read(file.get(), text.data(), text.size());
    if (got < 0) return Error{Errc::kSystem, errno, kStep};
    if (static_cast<std::size_t>(got) == kFileBytes) {
        return wrong_file(Errc::kInvalid, path, "is too long for credentials");
    }
    text.resize(static_cast<std::size_t>(got));
    return parse_s3_credentials(text);
}

}  // namespace fabricd
