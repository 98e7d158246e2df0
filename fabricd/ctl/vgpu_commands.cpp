#include "fabricd/ctl/vgpu_commands.hpp"

#include <cstdio>

#include "fabricd/ctl/table.hpp"

namespace fabricd {

using fabricshm::format_bytes;
using fabricshm::Result;

namespace {

// quota_bytes is in force, target_bytes is where it goes; they differ while it shrinks.
Json to_json(const VgpuView& vgpu) {
    Json processes = Json::array();
    for (const auto& tenant : vgpu.tenants) {
        processes.push_back({{"pid", tenant.pid},
                             {"bytes", tenant.bytes},
                             {"denied", tenant.denied},
                             {"denied_bytes", tenant.denied_bytes},
                             {"busy_ns", tenant.busy_ns}});
    }
    return {{"name", vgpu.spec.name},
            {"gpu", vgpu.spec.gpu},
            {"device_bytes", vgpu.spec.device_bytes},
            {"reserve_bytes", vgpu.spec.reserve_bytes},
            {"quota_bytes", vgpu.quota_bytes},
            {"target_bytes", vgpu.target_bytes},
            {"share_percent", vgpu.share_percent},
            {"used_bytes", vgpu.used_bytes},
            {"peak_bytes", vgpu.peak_bytes},
            {"denied", vgpu.denied},
            {"denied_bytes", vgpu.denied_bytes},
            // null: not measured, which is another thing than 0
            {"busy_ns", vgpu.busy_known ? Json(vgpu.busy_ns) : Json()},
            {"allow_uids", vgpu.spec.allow_uids},
            {"processes", processes}};
}

// While it shrinks: from where to where.
std::string quota_text(const VgpuView& vgpu) {
    std::string text = format_bytes(vgpu.quota_bytes);
    if (vgpu.target_bytes < vgpu.quota_bytes) text += " -> " + format_bytes(vgpu.target_bytes);
    return text;
}

// Of the GPU's time so far.
std::string busy_text(const VgpuView& vgpu) {
    if (!vgpu.busy_known) return "-";
    char text[40];
    std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(vgpu.busy_ns) / 1e9);
    return text;
}

std::string text_of(const std::vector<VgpuView>& vgpus) {
    Table table({{"VGPU"},
                 {"GPU"},
                 {"QUOTA", kRight},
                 {"USED", kRight},
                 {"PEAK", kRight},
                 {"SHARE", kRight},
                 {"BUSY", kRight},
                 {"REFUSED", kRight},
                 {"BYTES REFUSED", kRight},
                 {"PROCESSES", kRight}});
    for (const auto& vgpu : vgpus) {
        table.add({vgpu.spec.name, vgpu.spec.gpu, quota_text(vgpu), format_bytes(vgpu.used_bytes),
                   format_bytes(vgpu.peak_bytes), std::to_string(vgpu.share_percent) + " %",
                   busy_text(vgpu), std::to_string(vgpu.denied), format_bytes(vgpu.denied_bytes),
                   std::to_string(vgpu.tenants.size())});
    }
    return table.text();
}

// Always a list: the JSON of a change reads as that of a query.
void print(const CtlOptions& options, const std::vector<VgpuView>& vgpus) {
    if (options.json) {
        std::printf("%s\n", one_line(json_of(vgpus)).c_str());
    } else {
        std::printf("%s", text_of(vgpus).c_str());
    }
}

}  // namespace

Json json_of(const std::vector<VgpuView>& vgpus) {
    Json list = Json::array();
    for (const auto& vgpu : vgpus) list.push_back(to_json(vgpu));
    return {{"vgpus", list}};
}

Result<void> show_vgpus(const CtlOptions& options, AdminClient& client) {
    FABRIC_TRY(const auto vgpus, client.vgpus());
    print(options, vgpus);
    return {};
}

Result<void> change_vgpu(const CtlOptions& options, AdminClient& client) {
    FABRIC_TRY(VgpuView changed, client.set_vgpu(options.vgpu));
    print(options, {std::move(changed)});
    return {};
}

}  // namespace fabricd
