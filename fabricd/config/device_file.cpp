#include "fabricd/config/device_file.hpp"

#define TOML_EXCEPTIONS 0
#define TOML_ASSERT(condition) static_cast<void>(0)  // 3.3 asserts what files say: "[.a]"
#include <toml++/toml.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

#include "libfabricshm/proto/messages.hpp"

namespace fabricd {

namespace {

// More than any host has: a generated file cannot fill the daemon.
constexpr std::size_t kDevicesMax = 1024;
constexpr std::size_t kUsersMax = 256;
constexpr std::int64_t kNoUser = 0xffffffff;
constexpr std::int64_t kMaxNodes = 1024;  // as many as Linux knows of
constexpr double kMaxNumber = 1e9;        // GFLOP/s and GB/s: an exaflop, an exabyte per second
// 128 TiB: as much as one process can map.
constexpr Bytes kMaxBytes = Bytes{1} << 47;
constexpr auto kMaxWait = std::chrono::minutes(10);
constexpr auto kMaxLatency = std::chrono::seconds(1);

// Each reader takes one value into the device and says what it wanted when the value is not that.
using Wanted = std::optional<std::string>;
using Reader = Wanted (*)(const toml::node& value, DeviceSpec& device);

// A table as in config_keys.cpp, but smaller: these keys are in a list of sections, and there is no
// command line for them.
struct Key {
    const char* name;
    Reader read;
};

template <double DeviceSpec::*field>
Wanted read_number(const toml::node& value, DeviceSpec& device) {
    const auto number = value.value<double>();  // also from a whole number
    // Written so that a NaN is refused too.
    if (!number || !(*number > 0.0 && *number <= kMaxNumber)) return "a number above 0, up to 1e9";
    device.*field = *number;
    return {};
}

// As text with a unit: a bare number of bytes in a file is a mistake more often than not.
template <std::uint64_t DeviceSpec::*field>
Wanted read_bytes(const toml::node& value, DeviceSpec& device) {
    const char* wanted = "a size as \"512MiB\" or \"2GiB\", up to 128 TiB";
    const auto* text = value.as_string();
    if (text == nullptr) return wanted;
    const auto bytes = fabricshm::parse_bytes(text->get());
    if (!bytes.ok() || *bytes == 0 || *bytes > kMaxBytes) return wanted;
    device.*field = *bytes;
    return {};
}

// Names go into paths, options and labels: printable ASCII without blanks, and short enough for the
// messages of the attach protocol.
Wanted read_name(const toml::node& value, DeviceSpec& device) {
    const auto* text = value.as_string();
    const auto plain = [](unsigned char c) { return c > 0x20 && c < 0x7f && c != '"'; };
    const bool is_good = text != nullptr && !text->get().empty() &&
                         text->get().size() < fabricshm::proto::kNameBytes &&
                         std::all_of(text->get().begin(), text->get().end(), plain);
    if (!is_good) return "1 to 63 characters without blanks";
    device.name = text->get();
    return {};
}

Wanted read_kind(const toml::node& value, DeviceSpec& device) {
    const auto* text = value.as_string();
    const auto& kinds = device_kinds();
    if (text != nullptr && std::find(kinds.begin(), kinds.end(), text->get()) != kinds.end()) {
        device.kind = text->get();
        return {};
    }
    std::string wanted = "one of";
    for (const auto& kind : kinds) wanted += (kind == kinds.front() ? " " : ", ") + kind;
    return wanted;
}

// A UUID names a GPU, or a slice of one in MIG mode, for good; a number is what CUDA calls it on
// this host, and may change with the next boot.
Wanted read_gpu(const toml::node& value, DeviceSpec& device) {
    const auto* text = value.as_string();
    const std::string gpu = text != nullptr ? text->get() : "";
    const auto plain = [](unsigned char c) { return c > 0x20 && c < 0x7f && c != '"'; };
    const auto digit = [](unsigned char c) { return c >= '0' && c <= '9'; };
    const bool is_number = gpu.size() <= 4 && std::all_of(gpu.begin(), gpu.end(), digit);
    const bool is_named = gpu.rfind("GPU-", 0) == 0 || gpu.rfind("MIG-", 0) == 0;
    const bool is_uuid = is_named && gpu.size() < fabricshm::proto::kNameBytes &&
                         std::all_of(gpu.begin(), gpu.end(), plain);
    if (gpu.empty() || (!is_number && !is_uuid)) {
        return "a GPU's UUID (\"GPU-...\", \"MIG-...\") or its number (\"0\")";
    }
    device.gpu = gpu;
    return {};
}

Wanted read_node(const toml::node& value, DeviceSpec& device) {
    const auto* node = value.as_integer();
    if (node == nullptr || node->get() < 0 || node->get() >= kMaxNodes) {
        return "the number of a NUMA node of this machine, from 0 to 1023";
    }
    device.numa_node = static_cast<int>(node->get());
    return {};
}

// Exactly an integer: 33.3 per cent would be rounded to something else than what was written.
Wanted read_share(const toml::node& value, DeviceSpec& device) {
    const auto* percent = value.as_integer();
    if (percent == nullptr || percent->get() < 1 || percent->get() > 100) {
        return "a whole number from 1 to 100";
    }
    device.share_percent = static_cast<std::uint32_t>(percent->get());
    return {};
}

Wanted read_wait(const toml::node& value, DeviceSpec& device) {
    const char* wanted = "a time as \"500ms\" or \"2s\", \"0s\" for none, up to 10 min";
    const auto* text = value.as_string();
    if (text == nullptr) return wanted;
    const auto length = fabricshm::parse_duration(text->get());
    if (!length.ok() || *length < Duration::zero() || *length > kMaxWait) return wanted;
    device.wait_ms = std::chrono::duration_cast<std::chrono::milliseconds>(*length).count();
    return {};
}

Wanted read_uids(const toml::node& value, DeviceSpec& device) {
    const char* wanted = "a list of 1 to 256 user ids, as [1000, 1001]";
    const auto* list = value.as_array();
    // An empty one would read like "no user" and mean "every user".
    if (list == nullptr || list->empty() || list->size() > kUsersMax) return wanted;
    for (const auto& item : *list) {
        const auto* uid = item.as_integer();
        // The largest number means "no user" to the kernel.
        if (uid == nullptr || uid->get() < 0 || uid->get() >= kNoUser) return wanted;
        device.allow_uids.push_back(static_cast<std::uint32_t>(uid->get()));
    }
    return {};
}

Wanted read_latency(const toml::node& value, DeviceSpec& device) {
    const char* wanted = "a time as \"2us\" or \"1ms\", up to 1 s";
    const auto* text = value.as_string();
    if (text == nullptr) return wanted;
    const auto length = fabricshm::parse_duration(text->get());
    if (!length.ok() || *length < Duration::zero() || *length > kMaxLatency) return wanted;
    device.link_latency_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(*length).count();
    return {};
}

// Keys are in any number: those that are left out stay 1.
Wanted read_efficiency(const toml::node& value, DeviceSpec& device) {
    const char* wanted =
        "a table of convolution, fully_connected, activation and other, each above 0, up to 1";
    const auto* table = value.as_table();
    if (table == nullptr) return wanted;
    DeviceEfficiency& all = device.efficiency;
    const std::pair<const char*, double*> fields[] = {{"convolution", &all.convolution},
                                                      {"fully_connected", &all.fully_connected},
                                                      {"activation", &all.activation},
                                                      {"other", &all.other}};
    for (const auto& [key, share] : *table) {
        const auto* field =
            std::find_if(std::begin(fields), std::end(fields),
                         [&, name = key.str()](const auto& known) { return name == known.first; });
        const auto number = share.value<double>();
        const bool is_good = field != std::end(fields) && number && *number > 0.0 && *number <= 1.0;
        if (!is_good) return wanted;
        *field->second = *number;
    }
    return {};
}

constexpr Key kKeys[] = {
    {"name", read_name},
    {"kind", read_kind},
    {"gflops", read_number<&DeviceSpec::gflops>},
    {"memory", read_bytes<&DeviceSpec::memory_bytes>},
    {"vgpu_memory", read_bytes<&DeviceSpec::quota_bytes>},
    {"vgpu_guaranteed", read_bytes<&DeviceSpec::guaranteed_bytes>},
    {"priority", read_number<&DeviceSpec::priority>},
    {"vgpu_share_percent", read_share},
    {"vgpu_reserve", read_bytes<&DeviceSpec::reserve_bytes>},
    {"vgpu_context", read_bytes<&DeviceSpec::context_bytes>},
    {"vgpu_allow_uids", read_uids},
    {"vgpu_wait", read_wait},
    {"gpu", read_gpu},
    {"link_gbytes_per_s", read_number<&DeviceSpec::link_gbytes_per_s>},
    {"link_latency", read_latency},
    {"numa_node", read_node},
    {"efficiency", read_efficiency},
};
// What has no sensible default: without them the planner would compute with zeros.
constexpr const char* kRequired[] = {"name", "kind", "gflops", "memory", "link_gbytes_per_s"};

std::string place(const std::string& file, const toml::source_region& source) {
    return file + ":" + std::to_string(source.begin.line);
}

ErrorMessage read_device(const toml::table& table, const std::string& file, DeviceSpec& device) {
    // Missing keys first: a device without a name is named by its line.
    const std::string where = place(file, table.source());
    for (const char* key : kRequired) {
        if (!table.contains(key)) return where + ": the device has no " + key;
    }
    for (const auto& [name, value] : table) {
        const std::string here = place(file, name.source());
        const auto* key =
            std::find_if(std::begin(kKeys), std::end(kKeys),
                         [&, key = name.str()](const Key& known) { return key == known.name; });
        if (key == std::end(kKeys)) {
            return here + ": unknown key \"" + std::string(name.str()) + "\"";
        }
        if (const Wanted wanted = key->read(value, device)) {
            return here + ": " + key->name + " takes " + *wanted;
        }
    }
    // Without a quota the slice has all of the device's memory.
    if (device.quota_bytes == 0) device.quota_bytes = device.memory_bytes;
    if (device.quota_bytes > device.memory_bytes) {
        return where + ": vgpu_memory of " + device.name + " is larger than its memory";
    }
    if (device.guaranteed_bytes == 0) device.guaranteed_bytes = device.quota_bytes;
    if (device.guaranteed_bytes > device.quota_bytes) {
        return where + ": vgpu_guaranteed of " + device.name + " is larger than its vgpu_memory";
    }
    // They are about CUDA contexts, which a device without a GPU has none of.
    if (device.gpu.empty() && (device.reserve_bytes != 0 || device.context_bytes != 0)) {
        return where + ": vgpu_reserve and vgpu_context of " + device.name + " need gpu";
    }
    if (device.gpu.empty() && device.wait_ms >= 0) {
        return where + ": vgpu_wait of " + device.name + " needs gpu";
    }
    if (device.gpu.empty() && !device.allow_uids.empty()) {
        return where + ": vgpu_allow_uids of " + device.name + " needs gpu";
    }
    if (!device.gpu.empty() && device.name.find('/') != std::string::npos) {
        return where + ": the name of a device with gpu becomes a file's: no slash";
    }
    return {};
}

}  // namespace

const std::vector<std::string>& device_kinds() {
    static const std::vector<std::string> kinds = {"cpu", "gpu",  "npu",  "tpu",
                                                   "bpu", "fpga", "asic", "dpu"};
    return kinds;
}

ErrorMessage parse_device_file(const std::string& text, const std::string& name,
                               std::vector<DeviceSpec>& devices) {
    const toml::parse_result parsed = toml::parse(text, name);
    if (!parsed) {
        return place(name, parsed.error().source()) + ": " +
               std::string(parsed.error().description());
    }
    // Into a list of its own: `devices` is touched only when everything is right.
    std::vector<DeviceSpec> found;
    for (const auto& [key, value] : parsed.table()) {
        const std::string where = place(name, key.source());
        if (key.str() != "device") {
            return where + ": unknown key \"" + std::string(key.str()) + "\"";
        }
        const auto* list = value.as_array();
        if (list == nullptr) return where + ": a device is a section: [[device]]";
        for (const auto& item : *list) {
            const auto* table = item.as_table();
            if (table == nullptr) return where + ": a device is a section: [[device]]";
            DeviceSpec device;
            if (auto bad = read_device(*table, name, device)) return bad;
            const bool is_taken = std::any_of(found.begin(), found.end(), [&](const auto& other) {
                return other.name == device.name;
            });
            if (is_taken) {
                return place(name, table->source()) + ": two devices are called " + device.name;
            }
            found.push_back(std::move(device));
        }
    }
    if (found.empty()) return name + ": has no [[device]]";
    if (found.size() > kDevicesMax) return name + ": has more than 1024 devices";
    devices = std::move(found);
    return {};
}

ErrorMessage read_device_file(const std::string& path, std::vector<DeviceSpec>& devices) {
    std::ifstream file(path);
    std::ostringstream text;
    // Reading an empty file sets the fail bit of `text`, so that only `file` shows it.
    if (file) text << file.rdbuf();
    if (!file || file.bad()) return path + ": can't be read";
    return parse_device_file(text.str(), path, devices);
}

}  // namespace fabricd
