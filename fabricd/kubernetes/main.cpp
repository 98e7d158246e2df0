// fabricd-device-plugin: fabricd's pool as a resource of Kubernetes. docs/kubernetes.md.

#include <sys/signalfd.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "fabricd/kubernetes/device_plugin.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/version.hpp"

namespace {

int fail(int code, const std::string& line) {
    std::fprintf(stderr, "fabricd-device-plugin: %s\n", line.c_str());
    return code;
}

// A container that runs as root may connect to any socket that it finds.
bool gives_admin_socket(const fabricd::PluginOptions& options) {
    return options.admin_socket.starts_with(options.mounted_folder() + "/");
}

}  // namespace

int main(int argc, char** argv) {
    const auto options = fabricd::parse_plugin_options({argv + 1, argv + argc});
    if (!options.ok()) return fail(2, explanation_of(options.error()));
    if (options->wants_help) return std::fputs(fabricd::kPluginHelp, stdout) < 0;
    if (options->wants_version) {
        return std::printf("fabricd-device-plugin %s\n", FABRIC_VERSION) < 0;
    }
    ::umask(0177);
    ::signal(SIGPIPE, SIG_IGN);  // of a log that is read no more
    sigset_t signals;
    ::sigemptyset(&signals);
    for (const int number : {SIGTERM, SIGINT}) ::sigaddset(&signals, number);
    ::sigprocmask(SIG_BLOCK, &signals, nullptr);
    const fabricshm::Fd stop(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    auto plugin = fabricd::DevicePlugin::start(*options);
    if (!stop || !plugin.ok()) {
        return fail(1, plugin.ok() ? "can't watch signals" : explanation_of(plugin.error()));
    }
    if (gives_admin_socket(*options)) {
        fail(0,
             "the folder of --socket has fabricd's admin socket in it, which containers that run "
             "as root can use (docs/kubernetes.md)");
    }
    plugin->run(stop);
    return 0;
}
