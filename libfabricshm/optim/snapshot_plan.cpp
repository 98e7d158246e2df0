#include "libfabricshm/optim/snapshot_plan.hpp"

#include <array>
#include <cstdio>

#include "libfabricshm/base/check.hpp"
#include "libfabricshm/base/reason.hpp"

namespace fabricshm {

namespace {

constexpr const char* kModel = "model";
constexpr const char* kOptimiser = "optimizer";

// "model.safetensors", or "model-00002-of-00003.safetensors".
std::string file_name(const char* of, std::size_t number, std::size_t count) {
    if (count == 1) return std::string(of) + ".safetensors";
    char text[64];
    (void)std::snprintf(text, sizeof text, "%s-%05zu-of-%05zu.safetensors", of, number + 1, count);
    return text;
}

const char* collection_of(const PlannedFile& file) noexcept {
    return file.tensors.front().array == 0 ? kModel : kOptimiser;
}

// Arrays [first, last) in as many files as it takes.
std::vector<PlannedFile> cut_files(const ParameterSpec& spec, int first, int last,
                                   Bytes file_bytes) {
    std::vector<PlannedFile> files;
    for (int array = first; array < last; ++array) {
        for (std::size_t i = 0; i < spec.parameters.size(); ++i) {
            const Bytes bytes = spec.parameters[i].elements() * sizeof(float);
            if (files.empty() || files.back().bytes + bytes > file_bytes) files.emplace_back();
            PlannedFile& file = files.back();
            file.tensors.push_back({array, i, stored_name(spec, array, i), file.bytes, bytes});
            file.bytes += bytes;
        }
    }
    for (std::size_t i = 0; i < files.size(); ++i) {
        files[i].name = file_name(collection_of(files[i]), i, files.size());
    }
    return files;
}

std::string hex_of(std::uint64_t id) {
    char text[17];
    (void)std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(id));
    return text;
}

}  // namespace

const char* state_name(kernels::Rule rule, int state) noexcept {
    // As PyTorch calls them, so that its tools find what they know.
    constexpr std::array kAdam{"exp_avg", "exp_avg_sq", ""};
    constexpr std::array kBelief{"exp_avg", "exp_avg_var", "max_exp_avg_var"};
    const auto index = static_cast<std::size_t>(state);
    switch (rule) {
        case kernels::Rule::kSgd:
            return "momentum_buffer";
        case kernels::Rule::kAdam:
        case kernels::Rule::kAdamW:
            return kAdam[index];
        default:
            return kBelief[index];
    }
}

std::string stored_name(const ParameterSpec& spec, int array, std::size_t parameter) {
    const std::string& name = spec.parameters[parameter].name;
    if (array == 0) return name;
    return std::string(kOptimiser) + "." + state_name(spec.rule, array - 1) + "." + name;
}

Result<void> check_names(const ParameterSpec& spec) {
    for (const Parameter& parameter : spec.parameters) {
        const bool is_taken = parameter.name == "__metadata__" ||
                              parameter.name.starts_with(std::string(kOptimiser) + ".");
        if (!is_taken) continue;
        return explain({Errc::kInvalid, 0, "snapshot"},
                       "parameter '%.80s': in a snapshot this name means something else",
                       parameter.name.c_str());
    }
    return {};
}

SnapshotPlan SnapshotPlan::of(const ParameterSpec& spec, const SnapshotStamp& stamp,
                              Bytes file_bytes) {
    SnapshotPlan plan{stamp, cut_files(spec, 0, 1, file_bytes)};
    const int arrays = 1 + kernels::row_of(spec.rule).states();
    for (PlannedFile& file : cut_files(spec, 1, arrays, file_bytes)) {
        plan.files.push_back(std::move(file));
    }
    for (std::size_t i = 0; i < plan.files.size(); ++i) {
        PlannedFile& file = plan.files[i];
        const std::vector<std::uint32_t> none(file.tensors.size(), 0);
        file.header = format_header(plan.header_of(spec, i, none)).size();
        file.bytes += file.header;
    }
    return plan;
}

StoredHeader SnapshotPlan::header_of(const ParameterSpec& spec, std::size_t index,
                                     const std::vector<std::uint32_t>& checksums) const {
    const PlannedFile& file = files[index];
    FABRIC_CHECK(checksums.size() == file.tensors.size());
    StoredHeader header;
    header.metadata = {{"format", "pt"},
                       {kVersionKey, kSnapshotVersion},
                       {kStepKey, std::to_string(stamp.step)},
                       {kSnapshotKey, hex_of(stamp.id)},
                       {kFilesKey, std::to_string(files.size())},
                       {kOptimiserKey, kernels::row_of(spec.rule).name}};
    for (std::size_t i = 0; i < file.tensors.size(); ++i) {
        const PlannedTensor& tensor = file.tensors[i];
        header.metadata[kChecksumKey + tensor.name] = checksum_text(checksums[i]);
        header.tensors.push_back({tensor.name, "F32", spec.parameters[tensor.parameter].shape,
                                  tensor.begin, tensor.begin + tensor.bytes});
    }
    return header;
}

std::vector<SnapshotPlan::Index> SnapshotPlan::indices() const {
    std::vector<Index> found;
    for (const char* collection : {kModel, kOptimiser}) {
        Bytes total = 0;
        std::size_t count = 0;
        std::string map;
        for (const PlannedFile& file : files) {
            if (std::string_view(collection_of(file)) != collection) continue;
            ++count;
            for (const PlannedTensor& tensor : file.tensors) {
                total += tensor.bytes;
                map += (map.empty() ? "" : ",\n    ") + json_text(tensor.name) + ": " +
                       json_text(file.name);
            }
        }
        if (count < 2) continue;
        found.push_back({std::string(collection) + ".safetensors.index.json",
                         "{\n  \"metadata\": {\"total_size\": " + std::to_string(total) +
                             "},\n  \"weight_map\": {\n    " + map + "\n  }\n}\n"});
    }
    return found;
}

}  // namespace fabricshm
