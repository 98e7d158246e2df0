// FabricTransport: Transport over one RDM endpoint of libfabric.

#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "libfabricshm/net/transport.hpp"
#include "libfabricshm/os/listener_probe.hpp"

namespace fabricshm::net {

struct CloseFid {
    template <typename Object>
    void operator()(Object* object) const noexcept {
        fi_close(&object->fid);
    }
};
template <typename Object>
using Held = std::unique_ptr<Object, CloseFid>;

struct FreeInfo {
    void operator()(fi_info* info) const noexcept { fi_freeinfo(info); }
};

class FabricTransport final : public Transport {
  public:
    static std::unique_ptr<FabricTransport> open(const TransportSpec& spec, TransportError& error);
    ~FabricTransport() override;
    FabricTransport(const FabricTransport&) = delete;
    FabricTransport& operator=(const FabricTransport&) = delete;

    const char* provider() const noexcept override { return info_->fabric_attr->prov_name; }
    bool needs_lent() const noexcept override { return needs(FI_MR_LOCAL); }
    Errc lend(std::byte* base, Bytes bytes) noexcept override;
    Address address() const noexcept override { return address_; }
    Door door(int peer) const noexcept override { return at(peer).mine; }
    std::byte* memory(int peer) const noexcept override { return at(peer).memory; }
    Errc know(int peer, const Address& address, const Door& door) noexcept override;
    Errc write(int peer, const std::byte* from, Bytes bytes, Bytes offset, std::uint32_t word,
               std::atomic<int>* pending) noexcept override;
    int poll(Event* events, int capacity, int wait_ms) noexcept override;
    Presence presence(int peer) noexcept override;
    void fence(int peer) noexcept override;
    void wake() noexcept override;

  private:
    struct Peer {
        std::byte* memory = nullptr;   // what it wrote
        std::byte* written = nullptr;  // the same, for the provider
        Held<fid_mr> region;
        Door mine;    // of what it may write here
        Door theirs;  // of what we may write there
        fi_addr_t address = FI_ADDR_UNSPEC;
        sockaddr_storage listens{};  // where, over TCP
        ListenerProbe probe;
        bool lost = false;
    };
    struct Lent {
        std::byte* base = nullptr;
        Bytes bytes = 0;
        Held<fid_mr> region;
    };
    // One write on its way. The provider has the context meanwhile.
    struct Write {
        fi_context2 context{};  // first: the address of both
        int peer = -1;
        std::atomic<int>* pending = nullptr;
    };

    FabricTransport() = default;
    bool needs(int mode) const noexcept { return (info_->domain_attr->mr_mode & mode) != 0; }
    Peer& at(int peer) noexcept { return peers_[static_cast<std::size_t>(peer)]; }
    const Peer& at(int peer) const noexcept { return peers_[static_cast<std::size_t>(peer)]; }
    bool open_endpoint(TransportError& error);
    bool open_doors(const TransportSpec& spec, TransportError& error);
    int register_memory(void* base, Bytes bytes, std::uint64_t access, Held<fid_mr>& region);
    void* description_of(const std::byte* from) const noexcept;
    int read_error(Event& event) noexcept;
    void finish(Write* write) noexcept;

    // In the order in which they are made: they go the other way round.
    std::unique_ptr<fi_info, FreeInfo> info_;
    Held<fid_fabric> fabric_;
    Held<fid_domain> domain_;
    Held<fid_av> names_;
    Held<fid_cq> events_;
    std::byte* memory_ = nullptr;   // all doors, as they are read
    std::byte* written_ = nullptr;  // and as the provider writes them
    Bytes memory_bytes_ = 0;
    Bytes door_bytes_ = 0;
    std::mutex fencing_;  // of the peers' regions: fence() comes from any thread
    std::vector<Peer> peers_;
    std::vector<Lent> lent_;
    std::array<std::byte, 64> note_{};  // what a write without bytes of its own sends
    Held<fid_ep> endpoint_;
    Address address_;
    std::deque<Write> writes_;  // never moves
    std::vector<Write*> free_;
};

}  // namespace fabricshm::net
