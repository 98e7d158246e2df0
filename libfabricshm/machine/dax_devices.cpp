#include "libfabricshm/machine/dax_devices.hpp"

#include <algorithm>
#include <filesystem>

#include "libfabricshm/base/reason.hpp"

namespace fabricshm {

namespace {

// "device 2 of 3 of pool 0011..."
std::string place_of(const DaxCatalogue& catalogue) {
    return "device " + std::to_string(catalogue.device + 1) + " of " +
           std::to_string(catalogue.devices) + " of pool " + format_uuid(catalogue.uuid);
}

}  // namespace

Error DaxDevices::name_of(const Error& error, std::uint32_t device, const std::string& why) const {
    return explain(error, "%s %s (pool.dax_devices)", paths_[device].c_str(), why.c_str());
}

Result<DaxDevices> DaxDevices::open(const std::vector<std::string>& paths, const HostFiles& files) {
    if (paths.empty() || paths.size() > Stripes::kFilesMax) {
        return explain({Errc::kInvalid, 0, "open dax devices"},
                       "a pool lies on 1 to %u devices, and %zu are named (pool.dax_devices)",
                       Stripes::kFilesMax, paths.size());
    }
    DaxDevices all;
    all.paths_ = paths;
    for (std::uint32_t i = 0; i < paths.size(); ++i) {
        // Asked before: it would be locked, by this process.
        const bool is_twice = std::any_of(paths.begin(), paths.begin() + i, [&](const auto& other) {
            std::error_code ignored;
            return std::filesystem::equivalent(other, paths[i], ignored);
        });
        if (is_twice) {
            return all.name_of({Errc::kInvalid, 0, "open dax devices"}, i, "is named twice");
        }
        auto device = DaxDevice::open(paths[i], files, false);
        // Of one device the caller knows the key.
        if (!device.ok() && paths.size() == 1) return device.error();
        if (!device.ok())
            return all.name_of(device.error(), i, "cannot be used: " + describe(device.error()));
        all.devices_.push_back(std::move(*device));
        if (all.devices_[i].align() == all.align()) continue;
        return all.name_of({Errc::kInvalid, 0, "open dax devices"}, i,
                           "is aligned to " + format_bytes(all.devices_[i].align()) + ", and " +
                               paths[0] + " to " + format_bytes(all.align()));
    }
    return all;
}

Result<DaxDevices> DaxDevices::open_as_guest(const std::vector<std::string>& paths,
                                             const HostFiles& files) {
    DaxDevices all;
    all.paths_ = paths;
    for (std::uint32_t i = 0; i < paths.size(); ++i) {
        auto device = DaxDevice::open_as_guest(paths[i], files);
        if (!device.ok() && paths.size() == 1) return device.error();
        if (!device.ok())
            return all.name_of(device.error(), i, "cannot be used: " + describe(device.error()));
        all.devices_.push_back(std::move(*device));
    }
    if (all.devices_.empty()) return Error{Errc::kInvalid, 0, "open dax devices"};
    FABRIC_TRY(const DaxCatalogue catalogue, all.first().load());
    FABRIC_TRY_VOID(all.check(catalogue));
    return all;
}

std::string DaxDevices::names() const {
    std::string text;
    for (const std::string& path : paths_) text += (text.empty() ? "" : ", ") + path;
    return text;
}

Bytes DaxDevices::stripe() const noexcept {
    if (count() == 1) return 0;
    Bytes stripe = align();
    // The first block is in no stripe.
    while ((space(stripe) - align()) / stripe > kStripesMax) stripe *= 2;
    return stripe;
}

Bytes DaxDevices::space(Bytes stripe) const noexcept {
    if (count() == 1) return first().bytes();
    Bytes each = ~Bytes{0};
    for (const DaxDevice& device : devices_) {
        each = std::min(each, (device.bytes() - align()) / stripe * stripe);
    }
    return align() + each * count();
}

Result<void> DaxDevices::check(const DaxCatalogue& catalogue) const {
    const Error wrong{Errc::kNotFound, 0, "open dax pool: its devices"};
    if (catalogue.device != 0) {
        return name_of(wrong, 0, "is " + place_of(catalogue) + ": name all of them, in this order");
    }
    if (catalogue.devices != count()) {
        return name_of(wrong, 0,
                       "is " + place_of(catalogue) + ", and " + std::to_string(count()) +
                           (count() == 1 ? " is" : " are") + " named");
    }
    for (std::uint32_t i = 1; i < count(); ++i) {
        const auto label = devices_[i].load();
        DaxCatalogue expected = catalogue;
        expected.device = i;
        const bool is_none = !label.ok() && label.error().code == Errc::kNotFound;
        if (is_none) return name_of(wrong, i, "has no label, and should be " + place_of(expected));
        if (!label.ok()) {
            return name_of(label.error(), i,
                           "should be " + place_of(expected) + ", but: " + describe(label.error()));
        }
        const bool is_right = label->uuid == catalogue.uuid && label->device == i &&
                              label->devices == catalogue.devices &&
                              label->stripe == catalogue.stripe;
        if (!is_right) {
            return name_of(wrong, i,
                           "is " + place_of(*label) + ", and should be " + place_of(expected));
        }
        // Of each device the space uses as much.
        const Bytes used = align() + (catalogue.device_bytes - align()) / count();
        if (devices_[i].bytes() < used) {
            return name_of({Errc::kCorrupt, 0, wrong.step}, i,
                           "has " + format_bytes(devices_[i].bytes()) +
                               ", of which the pool uses " + format_bytes(used));
        }
    }
    return {};
}

Result<void> DaxDevices::check_others(
    const std::function<Result<void>(const DaxDevice&)>& check) const {
    const auto own = first().load();
    for (std::uint32_t i = 1; i < count(); ++i) {
        const auto label = devices_[i].load();
        // Of the pool of the first, whatever host its label names: see follow().
        if (own.ok() && label.ok() && own->uuid == label->uuid) continue;
        const auto checked = check(devices_[i]);
        if (!checked.ok()) {
            return name_of(checked.error(), i, "cannot be used: " + describe(checked.error()));
        }
    }
    return {};
}

Result<void> DaxDevices::check_blank() const {
    for (std::uint32_t i = 1; i < count(); ++i) {
        FABRIC_TRY(const DaxContents contents, devices_[i].contents());
        if (contents == DaxContents::kBlank) continue;
        const auto label = devices_[i].load();
        return name_of({Errc::kExists, 0, "open dax pool: its devices"}, i,
                       label.ok() ? "is " + place_of(*label) + ", and " + paths_[0] + " is blank"
                                  : "holds other data, and " + paths_[0] + " is blank");
    }
    return {};
}

Result<void> DaxDevices::format_labels(const DaxCatalogue& catalogue) {
    for (std::uint32_t i = 1; i < count(); ++i) {
        DaxCatalogue label = catalogue;
        label.device = i;
        label.entries.clear();
        FABRIC_TRY_VOID(devices_[i].format(label));
    }
    return {};
}

Result<void> DaxDevices::follow(const DaxCatalogue& catalogue) {
    for (std::uint32_t i = 1; i < count(); ++i) {
        FABRIC_TRY(const DaxCatalogue held, devices_[i].load());
        if (held.host == catalogue.host && held.epoch == catalogue.epoch) continue;
        DaxCatalogue label = held;
        label.host = catalogue.host;
        label.epoch = catalogue.epoch;
        FABRIC_TRY_VOID(devices_[i].save(label, held));
    }
    return {};
}

// Each has a number of its own, so that two of them that show one memory are noticed, too.
Result<void> DaxDevices::write_mark(std::uint32_t slot, std::uint64_t value) const {
    for (const DaxDevice& device : devices_) FABRIC_TRY_VOID(device.write_mark(slot, value++));
    return {};
}

Result<std::uint64_t> DaxDevices::read_mark(std::uint32_t slot) const {
    FABRIC_TRY(const std::uint64_t value, first().read_mark(slot));
    std::uint64_t expected = value;
    for (const DaxDevice& device : devices_) {
        FABRIC_TRY(const std::uint64_t found, device.read_mark(slot));
        if (found != expected++) return ~value;
    }
    return value;
}

Result<void> DaxDevices::clear(const Stripes& stripes, std::uint64_t offset, Bytes bytes) {
    for (std::uint32_t i = 0; i < count(); ++i) {
        const Stripes::Part part = stripes.part(i, offset, bytes);
        if (part.bytes != 0) FABRIC_TRY_VOID(devices_[i].clear(part.offset, part.bytes));
    }
    return {};
}

Result<void> DaxDevices::flush(const Stripes& stripes, std::uint64_t offset, Bytes bytes) const {
    for (std::uint32_t i = 0; i < count(); ++i) {
        const Stripes::Part part = stripes.part(i, offset, bytes);
        if (part.bytes != 0) FABRIC_TRY_VOID(devices_[i].flush(part.offset, part.bytes));
    }
    return {};
}

Result<std::vector<Fd>> DaxDevices::other_fds() const {
    std::vector<Fd> fds;
    for (std::uint32_t i = 1; i < count(); ++i) {
        FABRIC_TRY(Fd fd, devices_[i].client_fd());
        fds.push_back(std::move(fd));
    }
    return fds;
}

bool DaxDevices::are_same(const Fd& first, std::span<const Fd> others) const noexcept {
    if (others.size() + 1 != devices_.size() || !devices_[0].is_same(first)) return false;
    return std::equal(others.begin(), others.end(), devices_.begin() + 1,
                      [](const Fd& fd, const DaxDevice& device) { return device.is_same(fd); });
}

std::vector<int> DaxDevices::client_numbers() const {
    std::vector<int> numbers;
    for (const DaxDevice& device : devices_) numbers.push_back(device.client_number());
    return numbers;
}

}  // namespace fabricshm
