// A process of a vGPU without a process: what libfabricvgpu.so does with the two files it is given.

#pragma once

#include <memory>
#include <string>

#include "fabricd/vgpu/vgpu_limits.hpp"

namespace test_support {

/// Maps the descriptors as a process gets them. One for each vGPU, since this process has one slot
/// in each ledger.
struct VgpuTenant {
    VgpuTenant(const fabricd::VgpuLimits& limits, const std::string& name)
        : files(limits.files_of(name).value()) {
        fabricshm::MapOptions read_only;
        read_only.writable = false;
        page_map = fabricshm::Mapping::map(files.limits, 0, fabricshm::kLimitsPageBytes, read_only)
                       .value();
        ledger_map = fabricshm::Mapping::map(files.ledger, 0, fabricshm::kLedgerBytes, {}).value();
        ledger = std::make_unique<fabricshm::UsageLedger>(
            *reinterpret_cast<fabricshm::LedgerFile*>(ledger_map.data()),
            fabricshm::own_identity().value());
        slot = ledger->claim().value();
    }

    bool charge(fabricd::Bytes bytes) { return ledger->charge(slot, bytes, page()).ok(); }
    void refused(fabricd::Bytes bytes) { ledger->refused(slot, bytes); }
    const fabricshm::LimitsPage& page() const {
        return *reinterpret_cast<const fabricshm::LimitsPage*>(page_map.data());
    }
    /// What the page says now.
    fabricshm::Limits limits() const { return read_limits(page()).value(); }

    fabricd::VgpuLimits::Files files;
    fabricshm::Mapping page_map;
    fabricshm::Mapping ledger_map;
    std::unique_ptr<fabricshm::UsageLedger> ledger;
    int slot = -1;
};

}  // namespace test_support
