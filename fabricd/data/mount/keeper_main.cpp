// fabric-mount-keeper: holds a mount of fabric-mount(1), which starts it.

#include <syslog.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "fabricd/data/mount/keeper.hpp"
#include "libfabricshm/base/log.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/version.hpp"

namespace {

constexpr const char* kHelp =
    "Usage: fabric-mount-keeper [OPTIONS] MOUNTPOINT -- SERVER [WORD...]\n"
    "Holds a mount while its servers come and go. fabric-mount starts it.\n\n"
    "  --allow-other           all users may enter the mount\n"
    "  --nonempty              the mount point may have files, which are hidden then\n"
    "  --user NAME             the server runs as this user\n"
    "  --ready-fd NUMBER       gets a byte when the mount is served\n"
    "  --syslog                log there instead of to standard error\n"
    "  -h, --help, -V, --version\n\n"
    "Ends on SIGTERM and SIGINT, and unmounts. Exit codes: 0 ended on request, 1 failed, 2 wrong\n"
    "usage; of a server that could not start its own.\n";

int fail(const std::string& line) {
    std::fprintf(stderr, "fabric-mount-keeper: %s\n", line.c_str());
    return 2;
}

void to_syslog(fabricshm::LogLevel level, const char* line) {
    constexpr int kPriorities[] = {LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERR, LOG_ERR};
    ::syslog(kPriorities[static_cast<int>(level)], "%s", line);
}

}  // namespace

int main(int argc, char** argv) {
    fabricd::KeeperOptions options;
    if (std::getenv("FABRIC_LOG") == nullptr) fabricshm::set_log_level(fabricshm::LogLevel::kInfo);
    std::string mount_point;
    int at = 1;
    for (; at < argc && std::string(argv[at]) != "--"; ++at) {
        const std::string word = argv[at];
        if (word == "-h" || word == "--help") return std::fputs(kHelp, stdout) < 0;
        if (word == "-V" || word == "--version") {
            return std::printf("fabric-mount-keeper %s\n", FABRIC_VERSION) < 0;
        }
        const bool takes_value = word == "--user" || word == "--ready-fd";
        if (takes_value && at + 1 == argc) return fail(word + " takes a value");
        if (word == "--allow-other") {
            options.allow_other = true;
        } else if (word == "--nonempty") {
            options.nonempty = true;
        } else if (word == "--user") {
            options.user = argv[++at];
        } else if (word == "--ready-fd") {
            options.ready = std::atoi(argv[++at]);
        } else if (word == "--syslog") {
            fabricshm::set_log_sink(to_syslog);
        } else if (word.rfind("-", 0) == 0 || !mount_point.empty()) {
            return fail("unknown word '" + word + "' (--help)");
        } else {
            mount_point = word;
        }
    }
    for (++at; at < argc; ++at) options.command.emplace_back(argv[at]);
    if (mount_point.empty() || options.command.empty()) {
        return fail("expected MOUNTPOINT -- SERVER (--help)");
    }
    const auto canonical = fabricd::canonical_mount_point(mount_point);
    if (!canonical.ok()) return fail(explanation_of(canonical.error()));
    options.mount_point = *canonical;
    return fabricd::MountKeeper(options).run();
}
