#include "libfabricshm/machine/visibility_proof.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>

namespace fabricshm {

namespace {

const Error kBad{Errc::kCorrupt, 0, "read visibility proof"};

// A whole number, or nothing.
template <typename T>
bool read_number(const std::string& text, T& number) {
    const char* end = text.data() + text.size();
    const auto [stop, failure] = std::from_chars(text.data(), end, number);
    return failure == std::errc{} && stop == end && !text.empty();
}

}  // namespace

std::string machine_fingerprint(const HostFiles& files) {
    std::string model = "unknown processor";
    std::istringstream lines(files.text("/proc/cpuinfo").value_or(""));
    for (std::string line; std::getline(lines, line);) {
        const auto colon = line.find(": ");
        if (line.rfind("model name", 0) != 0 || colon == std::string::npos) continue;
        model = line.substr(colon + 2);
        break;
    }
    return model + ", " + files.text("/etc/machine-id").value_or("no machine id");
}

std::string format_proof(const VisibilityProof& proof) {
    std::ostringstream text;
    text << "# Written by fabric-litmus\n"
         << "profile = " << proof.profile << "\nmachine = " << proof.machine
         << "\ndevice = " << proof.device << "\nhosts = " << proof.hosts
         << "\nrounds = " << proof.rounds << "\nverdict = " << (proof.proven ? "proven" : "refuted")
         << "\n";
    return text.str();
}

Result<VisibilityProof> parse_proof(const std::string& text, int first_line) {
    std::map<std::string, std::string> values;
    std::istringstream lines(text);
    int number = first_line - 1;
    for (std::string line; std::getline(lines, line);) {
        ++number;
        if (line.empty() || line.front() == '#') continue;
        const auto equals = line.find(" = ");
        if (equals == std::string::npos) return kBad;
        const bool is_new = values.emplace(line.substr(0, equals), line.substr(equals + 3)).second;
        // Neither of the two is believed: one says "proven" and the other may not.
        if (!is_new) return Error{kBad.code, number, kBad.step};
    }
    const char* const keys[] = {"profile", "machine", "device", "hosts", "rounds", "verdict"};
    const bool all = values.size() == std::size(keys) &&
                     std::all_of(std::begin(keys), std::end(keys),
                                 [&](const char* key) { return values.count(key) == 1; });
    if (!all) return kBad;
    VisibilityProof proof;
    proof.profile = values["profile"];
    proof.machine = values["machine"];
    proof.device = values["device"];
    const std::string& verdict = values["verdict"];
    const bool sound = read_number(values["hosts"], proof.hosts) &&
                       read_number(values["rounds"], proof.rounds) &&
                       (verdict == "proven" || verdict == "refuted");
    if (!sound) return kBad;
    proof.proven = verdict == "proven";
    proof.line = first_line;
    return proof;
}

Result<std::vector<VisibilityProof>> parse_proofs(const std::string& text) {
    std::vector<std::string> records(1);
    std::vector<int> begins_at{1};
    int number = 0;
    bool has_begun = false;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        const bool begins = line.rfind("profile = ", 0) == 0;
        ++number;
        if (begins && has_begun) {
            records.emplace_back();
            begins_at.push_back(number);
        }
        has_begun = has_begun || begins;
        records.back() += line + "\n";
    }
    std::vector<VisibilityProof> proofs;
    for (std::size_t i = 0; i < records.size(); ++i) {
        FABRIC_TRY(VisibilityProof proof, parse_proof(records[i], begins_at[i]));
        proofs.push_back(std::move(proof));
    }
    return proofs;
}

}  // namespace fabricshm
