// SnapshotPlan: which files a snapshot of a parameter set has, and where in them each tensor is.
// Pure; the same on every rank, and independent of how many there are.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/optim/parameter_spec.hpp"
#include "libfabricshm/optim/safetensors.hpp"

namespace fabricshm {

/// Array 0 of a set are the parameters, the others its state.
struct PlannedTensor {
    int array = 0;
    std::size_t parameter = 0;
    std::string name;
    Bytes begin = 0;  // from the end of the header
    Bytes bytes = 0;
};

struct PlannedFile {
    std::string name;
    Bytes header = 0;  // whole blocks
    Bytes bytes = 0;   // of all of it
    std::vector<PlannedTensor> tensors;
};

/// What a snapshot says of itself, in every file.
struct SnapshotStamp {
    std::uint64_t step = 0;
    std::uint64_t id = 0;  // no two snapshots have the same
};

struct SnapshotPlan {
    SnapshotStamp stamp;
    std::vector<PlannedFile> files;

    /// A file is at most `file_bytes` long, unless one tensor alone is longer. Of a valid spec.
    static SnapshotPlan of(const ParameterSpec& spec, const SnapshotStamp& stamp, Bytes file_bytes);

    /// Of file `index`; a checksum for each of its tensors.
    StoredHeader header_of(const ParameterSpec& spec, std::size_t index,
                           const std::vector<std::uint32_t>& checksums) const;

    /// What readers of several files begin with: name and text; none for what is in one file.
    struct Index {
        std::string name;
        std::string text;
    };
    std::vector<Index> indices() const;
};

/// kInvalid: a parameter has a name that means something else in a snapshot.
Result<void> check_names(const ParameterSpec& spec);

/// "exp_avg": of state 0 and up of a rule.
const char* state_name(kernels::Rule rule, int state) noexcept;

/// "optimizer.exp_avg.w"; of array 0 the parameter's own.
std::string stored_name(const ParameterSpec& spec, int array, std::size_t parameter);

// Keys of the metadata.
inline constexpr const char* kStepKey = "fabricshm.step";
inline constexpr const char* kSnapshotKey = "fabricshm.snapshot";
inline constexpr const char* kFilesKey = "fabricshm.files";
inline constexpr const char* kVersionKey = "fabricshm.version";
inline constexpr const char* kOptimiserKey = "fabricshm.optimiser";
inline constexpr const char* kChecksumKey = "fabricshm.crc32c.";  // and the tensor's name
inline constexpr const char* kSnapshotVersion = "1";

}  // namespace fabricshm
