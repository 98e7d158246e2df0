// Short texts that people and other programs write: sizes, times, rates, UUIDs, the result file of
// fabric-litmus, a line of /proc/PID/stat (in which a process chooses its own name), a request
// to the metrics server, and what other hosts wrote into the cluster store.

#include "fabricd/config/machine_file.hpp"
#include "fabricd/net/host_record.hpp"
#include "fabricd/server/metrics_server.hpp"
#include "libfabricshm/machine/dax_catalogue.hpp"
#include "libfabricshm/machine/visibility_proof.hpp"
#include "libfabricshm/os/process.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace fabricshm;

namespace {

void read_bytes(const std::string& text) {
    const auto bytes = parse_bytes(text);
    if (!bytes.ok()) return;
    FUZZ_REQUIRE(!format_bytes(*bytes).empty());
    const auto again = parse_bytes(std::to_string(*bytes));
    FUZZ_REQUIRE(again.ok() && *again == *bytes);
}

void read_duration(const std::string& text) {
    const auto length = parse_duration(text);
    if (!length.ok()) return;
    FUZZ_REQUIRE(*length >= Duration::zero());
    FUZZ_REQUIRE(!format_duration(*length).empty());
    FUZZ_REQUIRE(deadline_after(Clock::now(), *length) >= Clock::now() - std::chrono::seconds(1));
}

void read_rate(const std::string& text) {
    const auto rate = fabricd::parse_bandwidth(text);
    if (rate) FUZZ_REQUIRE(*rate > 0);
}

void read_uuid(const std::string& text) {
    const auto uuid = parse_uuid(text);
    if (!uuid.ok()) return;
    const auto again = parse_uuid(format_uuid(*uuid));
    FUZZ_REQUIRE(again.ok() && *again == *uuid);
}

void read_proof(const std::string& text) {
    const auto proof = parse_proof(text);
    if (!proof.ok()) return;
    const auto again = parse_proof(format_proof(*proof));
    FUZZ_REQUIRE(again.ok());
    FUZZ_REQUIRE(again->profile == proof->profile && again->machine == proof->machine &&
                 again->device == proof->device && again->hosts == proof->hosts &&
                 again->rounds == proof->rounds && again->proven == proof->proven);
}

void read_stat(const std::string& text) {
    // The same with a name that tries to look like the rest of the line.
    const auto plain = detail::start_time_in(
        "1 (x) S 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 "
        "1 0 77 20 21");
    FUZZ_REQUIRE(plain.ok() && *plain == 77);
    (void)detail::start_time_in(text);
    if (text.find(')') != std::string::npos || text.find('\0') != std::string::npos) return;
    const auto named = detail::start_time_in("1 (" + text +
                                             ") S 2 3 4 5 6 7 8 9 10 11 12 13 14 15 "
                                             "16 17 1 0 77 20 21");
    FUZZ_REQUIRE(named.ok() && *named == 77);
}

void read_http(const std::string& text) {
    int pages = 0;
    const std::string answer = fabricd::answer_http(text, [&] {
        ++pages;
        return std::string("page\n");
    });
    FUZZ_REQUIRE(answer.starts_with("HTTP/1."));
    FUZZ_REQUIRE((pages == 1) == (answer.find(" 200 OK\r\n") != std::string::npos));
    if (pages == 1) FUZZ_REQUIRE(text.starts_with("GET /metrics"));
}

void read_host(const std::string& text) {
    if (const auto host = fabricd::decode_host(text)) {
        FUZZ_REQUIRE(fabricd::decode_host(encode(*host)) == host);
    }
    if (const auto fence = fabricd::decode_fence(text)) {
        FUZZ_REQUIRE(fabricd::decode_fence(encode(*fence)) == fence);
    }
}

using Read = void (*)(const std::string& text);
constexpr Read kReaders[] = {read_bytes, read_duration, read_rate, read_uuid,
                             read_proof, read_stat,     read_http, read_host};

void run(fuzz::Data data) {
    fuzz::Input input(data);
    const Read read = kReaders[input.below(std::size(kReaders))];
    read(fuzz::Input::text_of(input.rest()));
}

std::vector<fuzz::Buffer> seeds() {
    const VisibilityProof proof{"clwb", "a machine", "/dev/dax0.0", 2, 1000, true};
    const std::pair<int, std::string> texts[] = {
        {0, "1.5GiB"},
        {0, "4096"},
        {1, "250ms"},
        {1, "0.5min"},
        {2, "10.1 GB/s"},
        {3, "01234567-89ab-cdef-0123-456789abcdef"},
        {4, format_proof(proof)},
        {5, "17 (a) Z (b) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 123 0 0"},
        {6, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"},
        {6, "POST /metrics?a HTTP/1.0\r\n\r\n"},
        {7, encode(fabricd::HostRecord{7, 8, 9, 10, "emu", "10.0.0.1:5"})},
        {7, encode(fabricd::FenceRecord{true, "a", "command", 8, 9})},
    };
    std::vector<fuzz::Buffer> all;
    for (const auto& [reader, text] : texts) {
        all.push_back(fuzz::buffer_of(std::string(1, static_cast<char>(reader)) + text));
    }
    return all;
}

const fuzz::Registered kTarget({"texts", run, seeds});

}  // namespace
