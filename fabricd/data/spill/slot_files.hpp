// SlotFiles: the files of the spill, of which the slots are pieces, and where they may lie.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabricd/data/spill/slot_index.hpp"
#include "libfabricshm/os/disk_writer.hpp"
#include "libfabricshm/os/fd.hpp"

namespace fabricd {

/// A folder's files `slots-000`, `slots-001`, ..., of 4,096 slots each but for the last. Their room
/// is allocated when they are opened, so that a full disk is an error then and not later.
class SlotFiles {
  public:
    /// Takes the folder, which has to be there, for this process alone. Files of an earlier budget
    /// grow, shrink or go. kBusy: another process has it. kNotFound, kDenied, kSystem (the disk is
    /// full): with the reason.
    static Result<SlotFiles> open(const std::string& folder, Bytes bytes);

    std::uint32_t slots() const noexcept { return slots_; }
    /// Why there are fewer than were asked for, for people; "": there are as many.
    const std::string& shortage() const noexcept { return shortage_; }

    const fabricshm::DiskFile& writable(std::uint32_t slot) const;
    int readable(std::uint32_t slot) const;
    /// In these two.
    Bytes offset(std::uint32_t slot) const noexcept;
    /// Reads go past the page cache, of whole blocks alone.
    bool is_direct() const noexcept { return direct_; }

  private:
    struct File {
        fabricshm::DiskFile writable;
        fabricshm::Fd readable;
    };

    // How many slots of a file there are; fewer than `wanted`: the disk is full.
    Result<std::uint32_t> open_file(const std::string& path, std::uint32_t wanted);

    fabricshm::Fd lock_;
    std::vector<File> files_;
    std::uint32_t slots_ = 0;
    std::string shortage_;
    bool direct_ = true;
};

/// Whether SlotFiles::open() would find the folder usable and the disk with enough room, without
/// touching either; "": yes, else one line for people.
std::string spill_problem(const std::string& folder, Bytes bytes);

}  // namespace fabricd
