#include "fabricd/kubernetes/plugin_options.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "libfabricshm/base/reason.hpp"

using namespace fabricd;
using namespace std::chrono_literals;

namespace {

std::string error_of(const std::vector<std::string>& words) {
    const auto options = parse_plugin_options(words);
    return options.ok() ? "" : explanation_of(options.error());
}

}  // namespace

TEST_SUITE("kubernetes.plugin_options") {
    TEST_CASE("without words the places are the kubelet's and fabricd's usual ones") {
        const auto options = parse_plugin_options({}).value();
        CHECK(options.kubelet_socket() == "/var/lib/kubelet/device-plugins/kubelet.sock");
        CHECK(options.endpoint_path() == "/var/lib/kubelet/device-plugins/fabricshm-pool-gib.sock");
        CHECK(options.mounted_folder() == "/run/fabricd");
        CHECK(options.reserve == 0);
    }

    TEST_CASE("each option takes its value with a blank or an equals sign") {
        const auto options =
            parse_plugin_options({"--plugin-folder", "/k", "--socket=/run/f/pods/attach.sock",
                                  "--admin-socket", "/run/f/a=b.sock", "--reserve=1.5GiB", "--poll",
                                  "250ms"})
                .value();
        CHECK(options.endpoint_path() == "/k/fabricshm-pool-gib.sock");
        CHECK(options.mounted_folder() == "/run/f/pods");
        CHECK(options.admin_socket == "/run/f/a=b.sock");
        CHECK(options.reserve == 1536 * fabricshm::kMiB);
        CHECK(options.poll == 250ms);
    }

    TEST_CASE("help and version count before what is wrong behind them") {
        for (const char* word : {"-h", "--help"}) {
            CHECK(parse_plugin_options({word, "--bad"}).value().wants_help);
        }
        for (const char* word : {"-V", "--version"}) {
            CHECK(parse_plugin_options({word, "--bad"}).value().wants_version);
        }
    }

    TEST_CASE("what is wrong is named with what is expected") {
        const std::string path = " takes an absolute path without a slash at its end";
        const std::string length = ": the path of a socket has at most 107 characters";
        const std::string size = "--reserve takes a size, as 512MiB or 64GiB";
        const std::string time = "--poll takes a time from 100ms to 60s";
        const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
            {{"--bad"}, "unknown option '--bad' (--help)"},
            {{"pool"}, "unknown option 'pool' (--help)"},
            {{""}, "unknown option '' (--help)"},
            {{"--reserve"}, "--reserve takes a value"},
            {{"--plugin-folder="}, "--plugin-folder" + path},
            {{"--plugin-folder=kubelet"}, "--plugin-folder" + path},
            {{"--plugin-folder=/"}, "--plugin-folder" + path},
            {{"--plugin-folder=/" + std::string(83, 'x')}, "--plugin-folder" + length},
            {{"--socket=/run/fabricd/"}, "--socket" + path},
            {{"--socket=/attach.sock"}, "--socket: containers can't get the folder '/'"},
            {{"--socket=/" + std::string(107, 'x')}, "--socket" + length},
            {{"--admin-socket=x"}, "--admin-socket" + path},
            {{"--reserve=many"}, size},
            {{"--reserve=-1"}, size},
            {{"--reserve=1.5"}, size},
            {{"--poll=99ms"}, time},
            {{"--poll=61s"}, time},
            {{"--poll=1"}, time},
        };
        for (const auto& [words, text] : cases) CHECK(error_of(words) == text);
        CHECK(error_of({"--plugin-folder=/" + std::string(82, 'x')}).empty());
    }
}
