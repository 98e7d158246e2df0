#include "fabricd/ctl/shard_commands.hpp"

#include <pwd.h>
#include <unistd.h>

#include <cstdio>

#include "fabricd/ctl/json.hpp"
#include "libfabricshm/base/reason.hpp"
#include "libfabricshm/base/units.hpp"

namespace fabricd {

using fabricshm::Errc;
using fabricshm::format_bytes;
using fabricshm::Result;

namespace {

// "user:alice" as the daemon wants it, by number. Anything else is left as it is.
// A name that no user has stays as it is, so that the daemon's refusal shows it.
std::string subject_of(const std::string& given) {
    constexpr const char* kKind = "user:";
    if (given.compare(0, 5, kKind) != 0) return given;
    const ::passwd* found = ::getpwnam(given.c_str() + 5);  // fabricctl runs on one thread
    return found == nullptr ? given : kKind + std::to_string(found->pw_uid);
}

// The name in "user:NAME" that this host does not know; "" when all is well. The daemon would call
// it a device.
std::string unknown_user(const std::string& given) {
    if (!given.starts_with("user:")) return "";
    const std::string name = given.substr(5);
    const bool number = !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
    return number || ::getpwnam(name.c_str()) != nullptr ? "" : name;
}

// Of limits.user_quota in the configuration.
constexpr std::uint64_t kLeastUserQuota = 2 * fabricshm::kMiB;

// A user's quota of 0 is none. A device's is what it says: nothing more is granted there.
std::string limit_text(const std::string& subject, std::uint64_t bytes) {
    const bool is_user = subject.starts_with("user:");
    return is_user && bytes == 0 ? "no limit" : format_bytes(bytes);
}

}  // namespace

Result<void> migrate_shard(const CtlOptions& options, AdminClient& client) {
    std::uint64_t percent = 0;
    std::uint64_t size = 0;
    // In a file the carriage returns would make one endless line.
    const bool shown = ::isatty(STDERR_FILENO) == 1;
    const auto done = client.migrate(options.move, [&](std::uint64_t moved, std::uint64_t bytes) {
        size = bytes;
        const std::uint64_t now = bytes == 0 ? 100 : moved * 100 / bytes;
        if (shown && now != percent) {
            std::fprintf(stderr, "\r%llu %%", static_cast<unsigned long long>(now));
        }
        percent = now;
    });
    if (shown && percent != 0) std::fputc('\n', stderr);
    if (!done.ok()) return done;
    if (options.json) {
        std::printf("%s\n", one_line({{"shard", options.move.shard},
                                      {"target", options.move.target},
                                      {"bytes", size}})
                                .c_str());
    } else {
        std::printf("%s (%s) is at %s\n", options.move.shard.c_str(), format_bytes(size).c_str(),
                    options.move.target.c_str());
    }
    return {};
}

Result<void> set_quota(const CtlOptions& options, AdminClient& client) {
    if (const std::string user = unknown_user(options.subject); !user.empty()) {
        return fabricshm::explain({Errc::kNotFound, 0, "quota"},
                                  "there is no user '%s' on this host (user:NAME or user:UID)",
                                  user.c_str());
    }
    const bool is_user = options.subject.starts_with("user:");
    if (is_user && options.quota_bytes != 0 && options.quota_bytes < kLeastUserQuota) {
        return fabricshm::explain({Errc::kInvalid, 0, "quota"},
                                  "a user's quota is 0, for none, or %s at least, as "
                                  "limits.user_quota is",
                                  format_bytes(kLeastUserQuota).c_str());
    }
    const auto grace_ms = static_cast<std::int64_t>(options.quota_grace * 1000.0);
    const QuotaOrder order{subject_of(options.subject), options.quota_bytes, grace_ms};
    FABRIC_TRY(const QuotaState state, client.set_quota(order));
    if (options.json) {
        std::printf("%s\n", one_line({{"subject", order.subject},
                                      {"quota_bytes", state.quota_bytes},
                                      {"target_bytes", state.target_bytes},
                                      {"used_bytes", state.used_bytes}})
                                .c_str());
    } else if (state.quota_bytes == state.target_bytes) {
        std::printf("%s: %s, %s used\n", options.subject.c_str(),
                    limit_text(order.subject, state.quota_bytes).c_str(),
                    format_bytes(state.used_bytes).c_str());
    } else {
        std::printf("%s: %s until %s are in use, at most %.0f s; %s used\n",
                    options.subject.c_str(), limit_text(order.subject, state.quota_bytes).c_str(),
                    format_bytes(state.target_bytes).c_str(), options.quota_grace,
                    format_bytes(state.used_bytes).c_str());
    }
    return {};
}

}  // namespace fabricd
