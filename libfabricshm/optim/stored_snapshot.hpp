// StoredSnapshot: a snapshot on disk, for reading: its files checked against each other, its
// tensors against a set.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/optim/parameter_spec.hpp"
#include "libfabricshm/optim/safetensors.hpp"

namespace fabricshm {

class StoredSnapshot {
  public:
    /// Reads the headers in `path`. kNotFound: there is no such directory, or no snapshot in it.
    /// kCorrupt names the file: it is damaged, too short, missing, or another snapshot's. kVersion:
    /// a later version has written it.
    static Result<StoredSnapshot> open(const std::string& path);

    std::uint64_t step() const noexcept { return step_; }

    /// kMismatch names the tensor: it is not there, has another shape or type, or is none of the
    /// set's; or the optimiser is another.
    Result<void> check(const ParameterSpec& spec) const;

    /// Fills `data` with the tensor, and compares its checksum: kCorrupt names file and tensor.
    Result<void> read(const std::string& tensor, std::byte* data) const;

  private:
    struct File {
        std::string path;
        Bytes data = 0;  // where the tensors begin
        StoredHeader header;
    };
    struct Place {
        std::size_t file;
        std::size_t tensor;
    };
    static Result<File> read_file(const std::string& path);
    Result<void> check_stamps();

    std::string path_;
    std::uint64_t step_ = 0;
    std::vector<File> files_;
    std::map<std::string, Place> tensors_;
};

}  // namespace fabricshm
