// A DAX device, opened and identified, with the two copies of its catalogue.

#pragma once

#include <string>

#include "libfabricshm/machine/dax_catalogue.hpp"
#include "libfabricshm/machine/host_files.hpp"
#include "libfabricshm/os/fd.hpp"
#include "libfabricshm/os/mapping.hpp"

namespace fabricshm {

/// What is on a device that was found.
enum class DaxContents {
    kBlank,      // nothing in the samples
    kCatalogue,  // a pool of ours
    kDamaged,    // a catalogue that fails its checks: neither copy is valid
    kForeign,    // something else
};

/// Not thread-safe. The descriptor that clients get is one of its own, since a lock belongs to all
/// duplicates of the descriptor it was taken on, and would live on with the clients.
class DaxDevice {
  public:
    /// Opens /dev/daxX.Y, or a regular file that stands in for one in tests (alignment 2 MiB).
    /// Size and alignment come from `files`' /sys/bus/dax. kInvalid when it is neither, or is not
    /// at least two blocks long; kBusy when another daemon of this host has it, unless `read_only`.
    static Result<DaxDevice> open(const std::string& path, const HostFiles& files, bool read_only);

    /// As a host that shares the device with its owner: the catalogue is read alone, and no lock is
    /// taken; clients' descriptors can write.
    static Result<DaxDevice> open_as_guest(const std::string& path, const HostFiles& files);

    Bytes bytes() const noexcept { return bytes_; }
    Bytes align() const noexcept { return align_; }

    /// Reads the first block, and samples of the rest (its end, and a page in every GiB).
    Result<DaxContents> contents() const;

    /// The valid copy with the higher sequence. kNotFound, kCorrupt, kVersion.
    Result<DaxCatalogue> load() const;

    /// Writes the catalogue over the older copy, with a sequence one higher, and out of the caches.
    /// Reads the device first: kDenied, and nothing is written, unless it is `held` that is there
    /// (may be the same object). So a host whose pool was taken over grants nothing any more.
    Result<void> save(DaxCatalogue& catalogue, const DaxCatalogue& held);

    /// Starts afresh: wipes the first block and writes both copies, whatever was there.
    Result<void> format(DaxCatalogue& catalogue);

    /// True when the device holds this catalogue, as others see it too.
    bool still_holds(const DaxCatalogue& catalogue) const;

    /// Fills a range with zeros.
    Result<void> clear(std::uint64_t offset, Bytes bytes);

    /// Another descriptor of the device, for clients.
    Result<Fd> client_fd() const { return client_.duplicate(); }

    /// Writes a range of whole cache lines back out of this host's caches, and drops it there: some
    /// 0.5 s/GiB.
    Result<void> flush(std::uint64_t offset, Bytes bytes) const;

    /// Small words of the first block that the catalogue never uses, past all caches: the owner of
    /// a pool writes one, and a guest that reads it maps the same memory. `slot` is below kMarks.
    static constexpr std::uint32_t kMarks = 64;
    Result<void> write_mark(std::uint32_t slot, std::uint64_t value) const;
    Result<std::uint64_t> read_mark(std::uint32_t slot) const;

    /// The number of the descriptor that client_fd() duplicates.
    int client_number() const noexcept { return client_.get(); }

    /// True when `other` is a descriptor of the same device, open for reading and writing.
    bool is_same(const Fd& other) const noexcept;

  private:
    /// Without the check that save() makes. The sequence's lowest bit says which copy: the older
    /// one.
    void write(DaxCatalogue& catalogue);

    Fd fd_;      // holds the lock
    Fd client_;  // without it
    Mapping first_block_;
    Bytes bytes_ = 0;
    Bytes align_ = 0;
    bool is_file_ = false;
};

}  // namespace fabricshm
