#include "fabricd/config/data_file.hpp"

#include <algorithm>

#include "fabricd/config/nearest_word.hpp"
#include "fabricd/config/prep_section.hpp"
#include "fabricd/config/section_keys.hpp"
#include "fabricd/config/toml_text.hpp"
#include "fabricd/data/silo/memory_silo.hpp"
#include "fabricd/data/silo/silo.hpp"

namespace fabricd {

namespace {

// More than any host has: a generated file cannot fill the service.
constexpr std::size_t kSilosMax = 256;
constexpr std::size_t kPeersMax = 1024;
// Eight blocks of 4 MiB; 128 TiB are as much as one process can map.
constexpr Bytes kMinMemory = 32 * fabricshm::kMiB;
constexpr Bytes kMinKept = 8 * fabricshm::kMiB;
constexpr Bytes kMaxMemory = Bytes{1} << 47;
// Sixteen slots of 4 MiB.
constexpr Bytes kMinSpill = 64 * fabricshm::kMiB;
constexpr Bytes kMaxSpill = Bytes{1} << 47;

std::string read_memory(const toml::node& value, DataSpec& spec) {
    const auto* text = value.as_string();
    const auto bytes = fabricshm::parse_bytes(text != nullptr ? text->get() : "");
    if (!bytes.ok() || *bytes < kMinMemory || *bytes > kMaxMemory) {
        return "a size as \"8GiB\", 32 MiB to 128 TiB";
    }
    spec.memory = *bytes;
    return "";
}

std::string read_memory_min(const toml::node& value, DataSpec& spec) {
    const auto* text = value.as_string();
    const auto bytes = fabricshm::parse_bytes(text != nullptr ? text->get() : "");
    if (!bytes.ok() || *bytes < kMinKept || *bytes > kMaxMemory) {
        return "a size as \"1GiB\", 8 MiB to 128 TiB";
    }
    spec.memory_min = *bytes;
    return "";
}

std::string read_spill_bytes(const toml::node& value, DataSpec& spec) {
    const auto* text = value.as_string();
    const auto bytes = fabricshm::parse_bytes(text != nullptr ? text->get() : "");
    if (!bytes.ok() || *bytes < kMinSpill || *bytes > kMaxSpill) {
        return "a size as \"200GiB\", 64 MiB to 128 TiB";
    }
    spec.spill_bytes = *bytes;
    return "";
}

bool is_folder_path(const std::string& path) {
    return !path.empty() && path.front() == '/' && path == printable(path);
}

std::string read_spill(const toml::node& value, DataSpec& spec) {
    const auto* text = value.as_string();
    if (text == nullptr || (!text->get().empty() && !is_folder_path(text->get()))) {
        return "a folder of a local disk, as \"/var/cache/fabricd\", or \"\"";
    }
    spec.spill = text->get();
    spec.spill_line = static_cast<int>(value.source().begin.line);
    return "";
}

std::string read_state(const toml::node& value, DataSpec& spec) {
    const auto* text = value.as_string();
    if (text == nullptr || !is_folder_path(text->get())) {
        return "a folder, as \"/var/lib/fabricd\"";
    }
    spec.state = text->get();
    spec.state_line = static_cast<int>(value.source().begin.line);
    return "";
}

std::string read_files(const toml::node& value, DataSpec& spec) {
    constexpr std::int64_t kMaxFiles = std::int64_t{1} << 32;
    const auto* number = value.as_integer();
    if (number == nullptr || number->get() < 1 || number->get() > kMaxFiles) {
        return "a number of files, 1 to 4294967296";
    }
    spec.files = static_cast<std::uint64_t>(number->get());
    return "";
}

template <typename Section, fabricshm::Duration Section::*field>
std::string read_time(const toml::node& value, Section& section) {
    constexpr auto kMin = std::chrono::milliseconds(100);
    constexpr auto kMax = std::chrono::hours(24);
    const auto* text = value.as_string();
    const auto time = fabricshm::parse_duration(text != nullptr ? text->get() : "");
    if (!time.ok() || *time < kMin || *time > kMax) return "a time as \"30s\", 100ms to 1 day";
    section.*field = *time;
    return "";
}

std::string read_group(const toml::node& value, DataSpec& spec) {
    const auto* text = value.as_string();
    const std::string name = text != nullptr ? text->get() : "";
    const bool is_name =
        !name.empty() && name.size() <= 32 &&
        std::all_of(name.begin(), name.end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
    if (!is_name) return "the name of a group";
    spec.group = name;
    spec.group_line = static_cast<int>(value.source().begin.line);
    return "";
}

bool begins_with(const std::string& text, const char* begin) {
    return text.rfind(begin, 0) == 0;
}

bool is_web(const std::string& from) {
    return begins_with(from, "http://") || begins_with(from, "https://");
}

bool is_s3(const std::string& from) {
    return begins_with(from, "s3://");
}

// Files that nothing keeps but the cache.
constexpr std::string_view kMemory = "memory";

std::string read_from(const toml::node& value, SiloSpec& silo) {
    constexpr std::string_view kScheme = "file://";
    const auto* text = value.as_string();
    std::string from = text != nullptr ? text->get() : "";
    // What stands behind the scheme is the silo's to check.
    if (is_web(from) || is_s3(from) || from == kMemory) {
        silo.from = from;
        return "";
    }
    if (begins_with(from, kScheme.data())) from.erase(0, kScheme.size());
    const bool is_folder =
        !from.empty() && from.front() == '/' && from.find('\0') == std::string::npos;
    if (!is_folder) {
        return "a folder (\"/data/images\"), a web server (\"https://host/path/\"), a bucket "
               "(\"s3://bucket/prefix\") or \"memory\"";
    }
    silo.from = from;
    return "";
}

template <std::string SiloSpec::*field>
std::string read_word(const toml::node& value, SiloSpec& silo) {
    const auto* text = value.as_string();
    const std::string word = text != nullptr ? text->get() : "";
    const bool is_word =
        !word.empty() &&
        std::all_of(word.begin(), word.end(), [](unsigned char c) { return c > 0x20 && c < 0x7f; });
    if (!is_word) return "a text without blanks";
    silo.*field = word;
    return "";
}

std::string read_credentials(const toml::node& value, SiloSpec& silo) {
    const auto* text = value.as_string();
    if (text == nullptr || text->get().rfind('/', 0) != 0)
        return "the path of a file, as \"/etc/fabricd/s3.key\"";
    silo.credentials = text->get();
    return "";
}

std::string read_write(const toml::node& value, SiloSpec& silo) {
    const auto* text = value.as_string();
    const std::string word = text != nullptr ? text->get() : "";
    if (word == "off") {
        silo.write = WritePolicy::kOff;
    } else if (word == "through") {
        silo.write = WritePolicy::kThrough;
    } else if (word == "back") {
        silo.write = WritePolicy::kBack;
    } else {
        return "\"off\" (read-only), \"through\" or \"back\"";
    }
    return "";
}

bool is_host_port(const std::string& text) {
    const std::size_t colon = text.rfind(':');
    if (colon == std::string::npos || colon == 0) return false;
    const std::string port = text.substr(colon + 1);
    const bool is_number = !port.empty() && port.size() <= 5 &&
                           port.find_first_not_of("0123456789") == std::string::npos;
    const bool is_plain = std::all_of(text.begin(), text.end(), [](unsigned char c) {
        return c > 0x20 && c < 0x7f && c != '/' && c != '@';
    });
    return is_number && is_plain && std::stoul(port) >= 1 && std::stoul(port) <= 65535;
}

template <std::string PeersSpec::*field>
std::string read_address(const toml::node& value, PeersSpec& peers) {
    const auto* text = value.as_string();
    if (text == nullptr || !is_host_port(text->get()))
        return "a host and a port, as \"10.0.0.1:7411\"";
    peers.*field = text->get();
    return "";
}

template <std::string PeersSpec::*field>
std::string read_pem(const toml::node& value, PeersSpec& peers) {
    const auto* text = value.as_string();
    if (text == nullptr || text->get().rfind('/', 0) != 0) return "the path of a PEM file";
    peers.*field = text->get();
    return "";
}

std::string read_copies(const toml::node& value, PeersSpec& peers) {
    const auto copies = value.value_exact<std::int64_t>();
    if (!copies || *copies < 1 || *copies > 16) return "a number from 1 to 16";
    peers.copies = static_cast<unsigned>(*copies);
    return "";
}

std::string read_head_start(const toml::node& value, PeersSpec& peers) {
    const auto* text = value.as_string();
    const auto time = fabricshm::parse_duration(text != nullptr ? text->get() : "");
    if (!time.ok() || *time > std::chrono::minutes(1)) return "a time as \"50ms\", 0s to 1min";
    peers.head_start = *time;
    return "";
}

// "host:port", or "host:port pool=NAME".
bool parse_member(const std::string& text, PeerSpec& member) {
    constexpr std::string_view kPool = " pool=";
    const std::size_t at = text.find(kPool);
    member.address = text.substr(0, at);
    if (at != std::string::npos) {
        member.pool = text.substr(at + kPool.size());
        if (member.pool.empty() || member.pool.find(' ') != std::string::npos) return false;
    }
    return is_host_port(member.address);
}

std::string read_members(const toml::node& value, PeersSpec& peers) {
    constexpr const char* kWanted =
        "a list of \"HOST:PORT\" or \"HOST:PORT pool=NAME\", of at most 1024 different hosts";
    const auto* list = value.as_array();
    if (list == nullptr || list->size() > kPeersMax) return kWanted;
    peers.members.clear();
    for (const auto& item : *list) {
        const auto* text = item.as_string();
        PeerSpec member;
        if (text == nullptr || !parse_member(text->get(), member)) return kWanted;
        for (const PeerSpec& other : peers.members) {
            if (other.address == member.address) return kWanted;
        }
        peers.members.push_back(member);
    }
    return "";
}

constexpr SectionKey<PeersSpec> kPeersKeys[] = {{"listen", read_address<&PeersSpec::listen>},
                                                {"self", read_address<&PeersSpec::self>},
                                                {"members", read_members},
                                                {"copies", read_copies},
                                                {"head_start", read_head_start},
                                                {"authority", read_pem<&PeersSpec::authority>},
                                                {"certificate", read_pem<&PeersSpec::certificate>},
                                                {"key", read_pem<&PeersSpec::key>}};

bool is_loopback(const std::string& address) {
    return address.rfind("127.", 0) == 0 || address.rfind("[::1]:", 0) == 0;
}

// What the keys of [peers] demand of each other.
std::string problem_of(PeersSpec& peers) {
    if (peers.self.empty()) peers.self = peers.listen;
    if (peers.members.empty()) return "peers without members";
    const bool is_member = std::any_of(peers.members.begin(), peers.members.end(),
                                       [&](const auto& one) { return one.address == peers.self; });
    if (!peers.listen.empty() && !is_member) {
        return peers.self + " is none of the members; self is this host's address among them";
    }
    const int files =
        int(!peers.authority.empty()) + int(!peers.certificate.empty()) + int(!peers.key.empty());
    if (files != 0 && files != 3) return "authority, certificate and key go together";
    const bool is_open = (!peers.listen.empty() && !is_loopback(peers.listen)) ||
                         !std::all_of(peers.members.begin(), peers.members.end(),
                                      [](const auto& one) { return is_loopback(one.address); });
    if (is_open && files == 0) {
        return "addresses that other hosts reach take authority, certificate and key";
    }
    return "";
}

constexpr SectionKey<DataSpec> kCacheKeys[] = {
    {"memory", read_memory}, {"memory_min", read_memory_min},
    {"files", read_files},   {"silo_timeout", read_time<DataSpec, &DataSpec::silo_timeout>},
    {"spill", read_spill},   {"spill_bytes", read_spill_bytes},
    {"state", read_state}};
constexpr SectionKey<DataSpec> kServiceKeys[] = {{"group", read_group}};
constexpr SectionKey<SiloSpec> kSiloKeys[] = {
    {"at", [](const toml::node& value, SiloSpec& silo) { return read_place(value, silo.at); }},
    {"from", read_from},
    {"endpoint", read_word<&SiloSpec::endpoint>},
    {"region", read_word<&SiloSpec::region>},
    {"credentials", read_credentials},
    {"index", read_word<&SiloSpec::index>},
    {"refresh", read_time<SiloSpec, &SiloSpec::refresh>},
    {"write", read_write}};
constexpr const char* kSiloRequired[] = {"at", "from"};

// Keys of one kind of silo mean nothing for another: written there, one was meant to do something.
std::string misplaced_key(const SiloSpec& silo) {
    const bool s3 = is_s3(silo.from);
    const struct {
        const char* name;
        const std::string& text;
        bool belongs;
        const char* kind;
    } keys[] = {{"endpoint", silo.endpoint, s3, "s3://"},
                {"region", silo.region, s3, "s3://"},
                {"credentials", silo.credentials, s3, "s3://"},
                {"index", silo.index, is_web(silo.from), "http:// or https://"}};
    for (const auto& key : keys) {
        if (key.text.empty() || key.belongs) continue;
        return std::string(key.name) + " is of silos from " + key.kind;
    }
    if (silo.write != WritePolicy::kOff && is_web(silo.from)) {
        return "a web server can't be written to: write is of folders and of silos from s3://";
    }
    return s3 && silo.endpoint.empty() ? "a silo from s3:// needs endpoint" : "";
}

// "/a" holds "/a/b", and both would answer for it.
bool is_within(const std::string& inner, const std::string& outer) {
    return inner.rfind(outer, 0) == 0 &&
           (inner.size() == outer.size() || inner[outer.size()] == '/');
}

ErrorMessage add_silo(const SiloSpec& silo, const std::string& file, DataSpec& spec) {
    const std::string where = file + ":" + std::to_string(silo.line);
    for (const SiloSpec& other : spec.silos) {
        if (!is_within(silo.at, other.at) && !is_within(other.at, silo.at)) continue;
        return where + ": " + silo.at + " and " + other.at + " (line " +
               std::to_string(other.line) + ") lie within each other";
    }
    if (spec.silos.size() == kSilosMax) return file + ": has more than 256 silos";
    spec.silos.push_back(silo);
    return {};
}

ErrorMessage read_silo(const toml::table& table, const std::string& file, DataSpec& spec) {
    const std::string where = place_in(file, table.source());
    for (const char* key : kSiloRequired) {
        if (!table.contains(key)) return where + ": the silo has no " + key;
    }
    SiloSpec silo;
    silo.line = static_cast<int>(table.source().begin.line);
    if (auto bad = read_keys(table, file, kSiloKeys, silo)) return bad;
    if (silo.from == kMemory) {
        if (table.contains("write")) {
            return where + ": write: jobs write into \"memory\" in any case: leave write out";
        }
        silo.write = WritePolicy::kThrough;
        silo.made = std::make_shared<MadeFiles>();
    }
    const std::string misplaced = misplaced_key(silo);
    if (!misplaced.empty()) return where + ": " + misplaced;
    return add_silo(silo, file, spec);
}

ErrorMessage read_prep(const toml::table& table, const std::string& file, DataSpec& spec) {
    SiloSpec silo;
    if (auto bad = read_prep_section(table, file, spec.silos, silo)) return bad;
    return add_silo(silo, file, spec);
}

// A section that stands once for each of its kind.
using ReadItem = ErrorMessage (*)(const toml::table& table, const std::string& file,
                                  DataSpec& spec);
ErrorMessage read_list(const toml::node& value, const std::string& where, const char* kind,
                       const std::string& file, ReadItem read_item, DataSpec& spec) {
    const std::string wrong = where + ": a " + kind + " is a section: [[" + kind + "]]";
    const auto* list = value.as_array();
    if (list == nullptr) return wrong;
    for (const auto& item : *list) {
        const auto* table = item.as_table();
        if (table == nullptr) return wrong;
        if (auto bad = read_item(*table, file, spec)) return bad;
    }
    return {};
}

}  // namespace

ErrorMessage parse_data_file(const std::string& text, const std::string& name, DataSpec& spec) {
    std::string ascii = text;
    if (auto bad = take_ascii(ascii, name)) return bad;
    const toml::parse_result parsed = toml::parse(ascii, name);
    if (!parsed) {
        return place_in(name, parsed.error().source()) + ": " +
               std::string(parsed.error().description());
    }
    DataSpec found;
    for (const auto& [key, value] : parsed.table()) {
        const std::string where = place_in(name, key.source());
        const std::string word(key.str());
        if (word == "cache" || word == "service") {
            const auto* table = value.as_table();
            if (table == nullptr) return where + ": " + word + " is a section: [" + word + "]";
            auto bad = word == "cache" ? read_keys(*table, name, kCacheKeys, found)
                                       : read_keys(*table, name, kServiceKeys, found);
            if (bad) return bad;
            if (word == "cache" && found.memory_min > found.memory) {
                return where + ": memory_min is larger than memory, which is " +
                       fabricshm::format_bytes(found.memory);
            }
            const bool is_half = found.spill.empty() != (found.spill_bytes == 0);
            if (word == "cache" && is_half) {
                return where + (found.spill.empty() ? ": spill_bytes needs spill"
                                                    : ": spill needs spill_bytes");
            }
        } else if (word == "silo") {
            if (auto bad = read_list(value, where, "silo", name, read_silo, found)) return bad;
        } else if (word == "prep") {
            // Read below: what it is made of may stand behind it.
        } else if (word == "peers") {
            const auto* table = value.as_table();
            if (table == nullptr) return where + ": peers is a section: [peers]";
            if (auto bad = read_keys(*table, name, kPeersKeys, found.peers)) return bad;
            const std::string problem = problem_of(found.peers);
            if (!problem.empty()) return where + ": " + problem;
        } else {
            return where + ": unknown section \"" + word + "\"" +
                   did_you_mean(word, {"cache", "peers", "prep", "service", "silo"});
        }
    }
    if (found.silos.empty()) return name + ": has no [[silo]]";
    if (const auto preps = parsed.table().find("prep"); preps != parsed.table().end()) {
        const std::string where = place_in(name, preps->first.source());
        if (auto bad = read_list(preps->second, where, "prep", name, read_prep, found)) return bad;
    }
    spec = std::move(found);
    return {};
}

ErrorMessage read_data_file(const std::string& path, DataSpec& spec) {
    std::string text;
    if (auto bad = read_small_text(path, text)) return bad;
    return parse_data_file(text, path, spec);
}

}  // namespace fabricd
