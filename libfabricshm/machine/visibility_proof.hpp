// VisibilityProof: what fabric-litmus found out about a profile on a machine and a device.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/machine/host_files.hpp"

namespace fabricshm {

/// The content of a result file: one "key = value" per line.
struct VisibilityProof {
    std::string profile;  // as in shm/flush_policy.hpp
    std::string machine;  // machine_fingerprint() of where it ran
    std::string device;   // what was mapped: a path, or "memory"
    int hosts = 1;        // 2: the two sides ran on two hosts
    std::uint64_t rounds = 0;
    bool proven = false;
    int line = 1;  // of the file, where it begins
};

/// Distinguishes this machine from others: its processor's model and its machine id.
std::string machine_fingerprint(const HostFiles& files = {});

std::string format_proof(const VisibilityProof& proof);
/// kCorrupt for lines that are not "key = value", unknown keys, missing ones, and a key that is
/// there twice, whose line is the detail. `line` is where `text` begins in its file.
Result<VisibilityProof> parse_proof(const std::string& text, int line = 1);
/// Several, one behind the other (cat): at least one.
Result<std::vector<VisibilityProof>> parse_proofs(const std::string& text);

}  // namespace fabricshm
