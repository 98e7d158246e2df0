// HostFacts: what the checks of `fabricctl doctor` judge by. Plain data and files below a root, so
// that tests can make hosts up.

#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "fabricd/config/config.hpp"
#include "fabricd/ctl/picture.hpp"
#include "libfabricshm/machine/host_files.hpp"

namespace fabricd {

/// As stat() has it.
struct FileOwner {
    mode_t mode = 0;
    uid_t uid = 0;
    gid_t gid = 0;
};

/// The user that asks.
struct UserFacts {
    uid_t uid = 0;
    std::vector<gid_t> groups = {};

    /// Whether the mode lets this user read and write the file. Root may always.
    bool may_use(const FileOwner& file) const;
};

/// Bytes of a file system.
struct Space {
    Bytes total = 0;
    Bytes available = 0;
};

/// A socket of the daemon, and what came of an attempt to use it.
struct SocketFacts {
    std::string path;
    std::optional<FileOwner> owner = {};                  // nothing: there is no such file
    fabricshm::Errc answer = fabricshm::Errc::kNotFound;  // kOk: answered as it should
    std::string text = "";                                // the daemon's own words, when it refused
    Duration took{};
};

/// The configuration file of the daemon.
struct ConfigFacts {
    std::string path = "";                  // "": there is none, the defaults hold
    bool is_readable = true;                // by this user
    std::optional<std::string> wrong = {};  // what fabricd would say of it
    Config config = {};                     // the defaults when it could not be read
};

struct HostFacts {
    fabricshm::HostFiles files;
    UserFacts user;
    std::optional<Space> shared_memory;  // of /dev/shm
    std::optional<std::string> libcuda;  // why it can't be loaded; "": it can; nothing: not tried
    ConfigFacts config;
    SocketFacts admin;
    SocketFacts attach;
    std::optional<StatusView> status;  // of the daemon that answered

    /// "4711", or "self" without a daemon: a folder of /proc. "0" when it is not the daemon's.
    std::string process() const;
    /// Of all arenas together: the daemon's, else the configured one; 0: the daemon will choose.
    Bytes pool_capacity() const;
    /// What of it is not taken from the host's memory yet.
    Bytes pool_missing() const;
};

/// Owner and mode of a file of the host; nothing when it is not there or hidden.
std::optional<FileOwner> owner_of(const fabricshm::HostFiles& files, const std::string& path);

/// The word in brackets of "always [madvise] never"; "" when there is none.
std::string chosen_word(const std::string& text);

/// A command that writes `value` to a file of the kernel.
std::string write_to(const std::string& path, const std::string& value);

}  // namespace fabricd
