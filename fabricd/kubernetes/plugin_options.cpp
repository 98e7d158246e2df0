#include "fabricd/kubernetes/plugin_options.hpp"

#include <sys/un.h>

#include <string_view>

#include "libfabricshm/base/reason.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::explain;
using fabricshm::Result;

const char* const kPluginHelp =
    "Usage: fabricd-device-plugin [--plugin-folder PATH] [--socket PATH] [--admin-socket PATH]\n"
    "                             [--reserve SIZE] [--poll TIME]\n"
    "Offers the pool of fabricd to Kubernetes, as the resource fabricshm.dev/pool-gib.\n\n"
    "  --plugin-folder PATH    of the kubelet's socket, kubelet.sock\n"
    "                          (default /var/lib/kubelet/device-plugins)\n"
    "  --socket PATH           the attach socket of fabricd; containers get the folder that it is "
    "in\n"
    "                          (default /run/fabricd/attach.sock)\n"
    "  --admin-socket PATH     of fabricd, for the size of its pool\n"
    "                          (default /run/fabricd/admin.sock)\n"
    "  --reserve SIZE          of the pool, not offered: 512MiB, 64GiB (default 0)\n"
    "  --poll TIME             between two looks at fabricd and at the kubelet's socket: 100ms to "
    "60s\n"
    "                          (default 1s)\n"
    "  -h, --help              print this help\n"
    "  -V, --version           print the version\n\n"
    "Ends on SIGTERM and SIGINT. Exit codes: 0 ended on request, 1 failed, 2 wrong usage.\n";

namespace {

constexpr const char* kOptionStep = "read options";
constexpr fabricshm::Error kWrongUsage{Errc::kInvalid, 0, kOptionStep};
constexpr auto kMinPoll = std::chrono::milliseconds(100);
constexpr auto kMaxPoll = std::chrono::seconds(60);

// `more` is what comes behind it in the path of a socket.
Result<std::string> read_path(const std::string& name, const std::string& value, std::size_t more) {
    if (!value.starts_with('/') || value.ends_with('/')) {
        return explain(kWrongUsage, "%s takes an absolute path without a slash at its end",
                       name.c_str());
    }
    if (value.size() + more >= sizeof(sockaddr_un::sun_path)) {
        return explain(kWrongUsage, "%s: the path of a socket has at most %zu characters",
                       name.c_str(), sizeof(sockaddr_un::sun_path) - 1);
    }
    return value;
}

Result<void> take_value(PluginOptions& options, const std::string& name, const std::string& value) {
    if (name == "--plugin-folder") {
        const std::size_t more = std::string_view(PluginOptions::kEndpoint).size() + 1;
        FABRIC_TRY(options.folder, read_path(name, value, more));
    } else if (name == "--socket") {
        FABRIC_TRY(options.socket, read_path(name, value, 0));
        if (options.mounted_folder().empty()) {
            return explain(kWrongUsage, "--socket: containers can't get the folder '/'");
        }
    } else if (name == "--admin-socket") {
        FABRIC_TRY(options.admin_socket, read_path(name, value, 0));
    } else if (name == "--reserve") {
        const auto bytes = fabricshm::parse_bytes(value);
        const bool has_unit = value.find_first_not_of("0123456789.") != std::string::npos;
        // Half a byte is a unit that was forgotten.
        const bool is_part = !has_unit && value.find('.') != std::string::npos;
        if (!bytes.ok() || is_part)
            return explain(kWrongUsage, "--reserve takes a size, as 512MiB or 64GiB");
        options.reserve = *bytes;
    } else {
        const auto poll = fabricshm::parse_duration(value);
        if (!poll.ok() || *poll < kMinPoll || *poll > kMaxPoll) {
            return explain(kWrongUsage, "--poll takes a time from 100ms to 60s");
        }
        options.poll = *poll;
    }
    return {};
}

bool takes_value(const std::string& name) {
    for (const char* known :
         {"--plugin-folder", "--socket", "--admin-socket", "--reserve", "--poll"}) {
        if (name == known) return true;
    }
    return false;
}

}  // namespace

Result<PluginOptions> parse_plugin_options(const std::vector<std::string>& words) {
    PluginOptions options;
    for (std::size_t i = 0; i < words.size(); ++i) {
        const std::string& word = words[i];
        options.wants_help = options.wants_help || word == "-h" || word == "--help";
        options.wants_version = options.wants_version || word == "-V" || word == "--version";
        if (options.wants_help || options.wants_version) return options;
        const auto equals = word.find('=');
        const std::string name = word.substr(0, equals);
        if (!takes_value(name)) {
            return explain(kWrongUsage, "unknown option '%s' (--help)", word.c_str());
        }
        const bool is_apart = equals == std::string::npos;
        if (is_apart && i + 1 == words.size()) {
            return explain(kWrongUsage, "%s takes a value", name.c_str());
        }
        const std::string value = is_apart ? words[++i] : word.substr(equals + 1);
        FABRIC_TRY_VOID(take_value(options, name, value));
    }
    return options;
}

}  // namespace fabricd
