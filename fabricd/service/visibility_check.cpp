#include "fabricd/service/visibility_check.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "libfabricshm/machine/visibility_proof.hpp"

namespace fabricd {

namespace {

using fabricshm::VisibilityProof;

// What in the proof does not fit first, in the words of its keys.
ErrorMessage misfit(const VisibilityProof& proof, const Config& config, const std::string& machine,
                    const std::string& device) {
    const auto other = [](const char* key, const std::string& is, const std::string& wanted) {
        return std::string("its ") + key + " is " + is + ", not " + wanted;
    };
    if (!proof.proven) return std::string("the profile was refuted");
    if (proof.profile != config.pool.visibility) {
        return other("profile", proof.profile, config.pool.visibility);
    }
    if (proof.machine != machine) return other("machine", proof.machine, machine);
    if (proof.device != device) return other("device", proof.device, device);
    if (proof.hosts < 2) return std::string("both sides ran on one host (--role a and b)");
    return {};
}

}  // namespace

ErrorMessage check_visibility(const Config& config, const fabricshm::HostFiles& files) {
    // Coherent by the hardware of one host, whatever the profile says.
    if (config.pool.hosts == 1) return {};
    // The other kinds of pool are made of this host's own memory.
    const auto devices = config.pool.devices();
    if (config.pool.backend != "dax" || devices.empty()) {
        return std::string("pool.hosts above 1 is for a dax pool whose pool.dax_device is named");
    }
    if (config.pool.visibility == "coherent") {
        return std::string(
            "pool.visibility coherent is for one host; hosts whose hardware keeps their caches "
            "coherent have coherent-hosts, others flush");
    }
    const std::string& path = config.pool.visibility_proof;
    if (path.empty()) {
        return std::string("pool.hosts above 1 needs pool.visibility_proof (see fabric-litmus)");
    }
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    // An empty file passes here and is no proof below.
    if (!file) return "cannot read " + path + " (pool.visibility_proof)";
    const auto proofs = fabricshm::parse_proofs(text.str());
    if (!proofs.ok() && proofs.error().detail > 0) {
        return path + ":" + std::to_string(proofs.error().detail) +
               " has a key for the second time: one result of fabric-litmus has each once "
               "(pool.visibility_proof)";
    }
    if (!proofs.ok()) return path + " is no result of fabric-litmus (pool.visibility_proof)";
    const std::string machine = fabricshm::machine_fingerprint(files);
    for (const std::string& device : devices) {
        // Of each device its own; where there is none, what is wrong with the first is said.
        const auto own = std::find_if(proofs->begin(), proofs->end(),
                                      [&](const auto& proof) { return proof.device == device; });
        const VisibilityProof& proof = own != proofs->end() ? *own : proofs->front();
        // A later run may have refuted what an earlier one proved, or the other way round.
        const auto refuted = std::find_if(proofs->begin(), proofs->end(), [&](const auto& other) {
            return !other.proven && other.device == device && other.machine == machine &&
                   other.profile == config.pool.visibility;
        });
        if (refuted != proofs->end()) {
            return path + ":" + std::to_string(refuted->line) +
                   " does not prove this pool: the profile was refuted on " + device +
                   " (pool.visibility_proof)";
        }
        const auto bad = misfit(proof, config, machine, device);
        if (bad) return path + " does not prove this pool: " + *bad + " (pool.visibility_proof)";
    }
    return {};
}

}  // namespace fabricd
