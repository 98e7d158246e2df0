// What plugstack.conf says to the plugin: socket=PATH fabricctl=PATH
// spool=PATH timeout=SECONDS.

#pragma once

#include <chrono>
#include <span>
#include <string>

#include "libfabricshm/base/result.hpp"

namespace fabricd {

struct PluginSettings {
    std::string socket = "/run/fabricd/attach.sock";  // of the daemon, for the tasks
    std::string fabricctl = "/usr/bin/fabricctl";
    std::string spool = "/run/fabricd-slurm";  // of records of jobs; JobRecords
    std::chrono::milliseconds timeout{5000};   // of each question to the daemon
};

/// The admin socket: `admin.sock` next to the attach socket.
std::string admin_socket_of(const PluginSettings& settings);

/// Reads `words` over the defaults that are in `settings`. kInvalid, with the word in the reason,
/// for one that is not known, a path that is not absolute, and a time that is none from 1 to 60.
fabricshm::Result<void> read_settings(std::span<const char* const> words, PluginSettings& settings);

/// The value of --fabric: bytes as fabricd takes them ("64M", "48GiB"). kInvalid, with the text in
/// the reason, for what is no size, for 0, and for parts of a byte ("1.5").
fabricshm::Result<std::uint64_t> read_size(const char* text);

/// The arena of a job: "slurm-17". The components of a heterogeneous job share their leader's.
std::string arena_of_job(std::uint32_t job);

}  // namespace fabricd
