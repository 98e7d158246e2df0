// SnapshotStage: one rank's shard as it was at a step boundary, in the order and at the places that
// it has in the files. Whatever comes first saves a piece: the thread that writes the snapshot, or
// the step that is about to change the piece.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "libfabricshm/base/result.hpp"
#include "libfabricshm/base/units.hpp"
#include "libfabricshm/optim/parameter_spec.hpp"
#include "libfabricshm/optim/snapshot_plan.hpp"
#include "libfabricshm/os/mapping.hpp"

namespace fabricshm {

/// Memory of this process alone: as large as the shard's parameters and state. It stays for the
/// next snapshot, since fresh memory costs more than the copy.
class SnapshotStage {
  public:
    /// Bytes of a file that are together in the stage.
    struct Extent {
        std::size_t file = 0;
        Bytes offset = 0;  // in the file
        Bytes bytes = 0;
        const std::byte* data = nullptr;  // equal to offset, modulo a block
    };
    /// What of a tensor lies in the shard.
    struct Part {
        std::size_t file = 0;
        std::size_t tensor = 0;  // of the file
        int array = 0;
        ElementRange elements;  // of the set
        std::byte* data = nullptr;
    };

    /// Takes over the memory of `before`, if there is one that is long enough. Borrows `arrays`:
    /// the parameters, then the states, of all elements of the set. kNoMemory, kSystem.
    static Result<std::shared_ptr<SnapshotStage>> make(const SnapshotPlan& plan,
                                                       const ParameterLayout& layout,
                                                       std::vector<const float*> arrays,
                                                       ElementRange shard, SnapshotStage* before);

    /// On return the elements of the shard in `range` are saved: by this call, by an earlier one,
    /// or by the other thread, which is waited for. By the rank's thread and the writing one, at
    /// the same time. True when this call has copied something.
    bool save(ElementRange range) noexcept;
    void save_all() noexcept { save(shard_); }

    /// Saves the elements that the stage has from `begin` to `end`: with the parameters that are
    /// written first, their states.
    void save_staged(const std::byte* begin, const std::byte* end) noexcept;

    const std::vector<Extent>& extents() const noexcept { return extents_; }
    const std::vector<Part>& parts() const noexcept { return parts_; }
    std::span<std::byte> memory() const noexcept { return memory_; }

  private:
    SnapshotStage(std::vector<const float*> arrays, ElementRange shard);

    void place(const SnapshotPlan& plan, const ParameterLayout& layout);
    void copy(ElementRange range) noexcept;

    std::vector<const float*> arrays_;
    ElementRange shard_;
    std::vector<Extent> extents_;
    std::vector<Part> parts_;          // by array, then by element
    std::vector<std::size_t> firsts_;  // of each array, in parts_; one more at the end
    std::vector<std::atomic<std::uint8_t>> pieces_;
    Mapping mapping_;
    std::span<std::byte> memory_;
};

}  // namespace fabricshm
