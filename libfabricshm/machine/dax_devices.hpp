// The DAX devices of one pool, in their order. docs/pool.md, "Several devices".

#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "libfabricshm/machine/dax_device.hpp"
#include "libfabricshm/os/stripes.hpp"

namespace fabricshm {

/// One device, or several that a pool is striped over; the first has the catalogue. Offsets are
/// those of the catalogue. Not thread-safe.
class DaxDevices {
  public:
    /// As DaxDevice::open() of each. kInvalid also when they are more than Stripes::kFilesMax, one
    /// of them twice, or of different alignments. The reason names the device.
    static Result<DaxDevices> open(const std::vector<std::string>& paths, const HostFiles& files);

    /// As DaxDevice::open_as_guest() of each, with the catalogue that they have to be of.
    static Result<DaxDevices> open_as_guest(const std::vector<std::string>& paths,
                                            const HostFiles& files);

    DaxDevice& first() noexcept { return devices_.front(); }
    const DaxDevice& first() const noexcept { return devices_.front(); }
    std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(devices_.size()); }
    Bytes align() const noexcept { return first().align(); }
    /// Calls `check` with each but the first that is not of the first one's pool; the reason of a
    /// refusal names the device.
    Result<void> check_others(const std::function<Result<void>(const DaxDevice&)>& check) const;
    /// "/dev/dax0.0, /dev/dax1.0".
    std::string names() const;

    /// The stripe that a pool made of them gets: the smallest of which a process that maps all of
    /// the pool has at most kStripesMax mappings. 0 for one device.
    Bytes stripe() const noexcept;
    /// What DaxCatalogue::device_bytes says of a pool of them: the smallest one counts for each.
    Bytes space(Bytes stripe) const noexcept;

    /// kOk when all carry what belongs to `catalogue`, which was read from the first of them.
    /// kNotFound: another number of devices, one of another pool or at another place, or without a
    /// label; the reason names it.
    Result<void> check(const DaxCatalogue& catalogue) const;
    /// kExists, with its name in the reason: one of those after the first holds something.
    Result<void> check_blank() const;

    /// Makes the labels of those after the first, whatever was there.
    Result<void> format_labels(const DaxCatalogue& catalogue);
    /// After check(): the labels say the host and the epoch of the catalogue. That only keeps other
    /// hosts from formatting them; whose pool it is says the catalogue.
    Result<void> follow(const DaxCatalogue& catalogue);

    /// DaxDevice's, on all of them: the number that is read is another one unless each device is
    /// the one that it was written to.
    Result<void> write_mark(std::uint32_t slot, std::uint64_t value) const;
    Result<std::uint64_t> read_mark(std::uint32_t slot) const;

    /// As those of DaxDevice.
    Result<void> clear(const Stripes& stripes, std::uint64_t offset, Bytes bytes);
    Result<void> flush(const Stripes& stripes, std::uint64_t offset, Bytes bytes) const;

    /// Descriptors for clients, of those after the first.
    Result<std::vector<Fd>> other_fds() const;
    /// DaxDevice::is_same() of each in turn: a copy of a device has its label.
    bool are_same(const Fd& first, std::span<const Fd> others) const noexcept;
    bool is_same(std::size_t device, const Fd& other) const noexcept {
        return devices_[device].is_same(other);
    }
    /// As it was named.
    const std::string& path(std::size_t device) const { return paths_[device]; }
    /// The numbers of all, as DaxDevice::client_number().
    std::vector<int> client_numbers() const;

    static constexpr Bytes kStripesMax = 16384;

  private:
    Error name_of(const Error& error, std::uint32_t device, const std::string& why) const;

    std::vector<std::string> paths_;
    std::vector<DaxDevice> devices_;
};

}  // namespace fabricshm
