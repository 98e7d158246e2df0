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
        } else if (name == "timeout") {
            FABRIC_TRY_VOID(read_timeout(value, word, settings.timeout));
        } else {
            return explain({Errc::kInvalid, 0, kReadStep},
                           "'%s' is none of socket=PATH, fabricctl=PATH, timeout=SECONDS", word);
        }
    }
    return {};
}

Result<std::uint64_t> read_size(const char* text) {
    const auto bytes = fabricshm::parse_bytes(text == nullptr ? "" : text);
    if (bytes.ok() && *bytes != 0) return *bytes;
    return explain({Errc::kInvalid, 0, "read --fabric"},
                   "'%s' is no size; expected bytes, as 64M or 48G", text == nullptr ? "" : text);
}

std::string arena_of_job(std::uint32_t job) {
    return "slurm-" + std::to_string(job);
}

}  // namespace fabricd
