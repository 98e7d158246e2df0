#include "fabricd/slurm/plugin_settings.hpp"

#include <charconv>
#include <string_view>

#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::Error;
using fabricshm::explain;
using fabricshm::Result;

namespace {

constexpr int kMaxSeconds = 60;
constexpr const char* kReadStep = "read plugstack.conf";

Result<void> read_path(std::string_view value, const char* word, std::string& path) {
    // A step's current folder is the user's.
    if (value.empty() || value.front() != '/') {
        return explain({Errc::kInvalid, 0, kReadStep}, "'%s': expected an absolute path", word);
    }
    path = value;
    return {};
}

Result<void> read_timeout(std::string_view value, const char* word,
                          std::chrono::milliseconds& timeout) {
    int seconds = 0;
    const auto [end, bad] = std::from_chars(value.data(), value.data() + value.size(), seconds);
    const bool whole = bad == std::errc{} && end == value.data() + value.size();
    if (!whole || seconds < 1 || seconds > kMaxSeconds) {
        return explain({Errc::kInvalid, 0, kReadStep}, "'%s': expected seconds from 1 to %d", word,
                       kMaxSeconds);
    }
    timeout = std::chrono::seconds(seconds);
    return {};
}

}  // namespace

std::string admin_socket_of(const PluginSettings& settings) {
    return settings.socket.substr(0, settings.socket.rfind('/') + 1) + "admin.sock";
}

Result<void> read_settings(std::span<const char* const> words, PluginSettings& settings) {
    for (const char* word : words) {
        const std::string_view text(word);
        const auto equals = text.find('=');
        const auto name = text.substr(0, equals);
        const auto value = equals == text.npos ? std::string_view() : text.substr(equals + 1);
        if (name == "socket") {
            FABRIC_TRY_VOID(read_path(value, word, settings.socket));
        } else if (name == "fabricctl") {
            FABRIC_TRY_VOID(read_path(value, word, settings.fabricctl));
        } else if (name == "spool") {
            FABRIC_TRY_VOID(read_path(value, word, settings.spool));
        } else if (name == "timeout") {
            FABRIC_TRY_VOID(read_timeout(value, word, settings.timeout));
        } else {
            return explain({Errc::kInvalid, 0, kReadStep},
                           "'%s' is none of socket=PATH, fabricctl=PATH, spool=PATH, "
                           "timeout=SECONDS",
                           word);
        }
    }
    return {};
}

Result<std::uint64_t> read_size(const char* text) {
    const std::string_view size = text == nullptr ? "" : text;
    const auto bytes = fabricshm::parse_bytes(size);
    const bool is_part =
        size.find_first_not_of("0123456789.") == size.npos && size.find('.') != size.npos;
    if (bytes.ok() && *bytes != 0 && !is_part) return *bytes;
    // As in other programs.
    const bool is_decimal = size.ends_with("KB") || size.ends_with("MB") || size.ends_with("GB") ||
                            size.ends_with("TB");
    return explain({Errc::kInvalid, 0, "read --fabric"},
                   "'%s' is no size; expected bytes, as 64M or 48G%s", size.data(),
                   is_part      ? " (this has no unit)"
                   : is_decimal ? " (units are of 1024, as GiB)"
                                : "");
}

std::string arena_of_job(std::uint32_t job) {
    return "slurm-" + std::to_string(job);
}

}  // namespace fabricd
